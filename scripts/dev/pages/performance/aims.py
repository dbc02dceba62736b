"""The ratios that the project aims at, and where they are. Pure."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from scripts.dev.pages.performance.figures import (
    BUILDS,
    LOOP_PARTS,
    P50,
    RATE,
    Figures,
    Measured,
    cold_times,
    growth_of,
    instructions_of,
    number_text,
    ratio_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


Ratio = Callable[[Measured, str], list[float]]


class Aim:
    """One ratio that the project aims at, and how to compute it for a build."""

    def __init__(self, what: str, aim: float, ratio: Ratio, *, most: bool = False) -> None:
        self.what = what
        self.aim = aim
        self.ratio = ratio
        self.most = most  # the aim is an upper bound

    def is_met(self, value: float) -> bool:
        return value <= self.aim if self.most else value >= self.aim


def _load(field: str, workload: str, count: int, peer: str | None = None) -> Ratio:
    """Ours by a peer's, or as it is."""
    one = {"workload": workload, "connections": count}

    def ratio(measured: Measured, build: str) -> list[float]:
        load, ours = Figures(measured["load"]), {"target": build, **one}
        if peer is not None:
            return load.ratio(field, ours, {"target": peer, **one})
        return list(load.by_round(field, **ours).values())

    return ratio


def _sdk(ours: str) -> Ratio:
    def ratio(measured: Measured, build: str) -> list[float]:
        return Figures(measured["sdk"]).ratio("p50_ms", {"service": build + ours}, {"service": "redis-py `Lock`"})

    return ratio


def _handoff(measured: Measured, build: str) -> list[float]:
    hand = Figures(measured["handoff"])
    return hand.ratio("p50_ms", {"service": build, "waiters": 64}, {"service": "etcd", "waiters": 64})


def _growth(key: str) -> Ratio:
    def ratio(measured: Measured, build: str) -> list[float]:
        found = growth_of(measured, build)
        return [] if found is None else list(found[key]) if isinstance(found[key], list) else [found[key]]

    return ratio


def _tail(measured: Measured, build: str) -> list[float]:
    """wrk's own percentiles also count requests that it would have sent while it waited for one."""
    found = growth_of(measured, build)
    return [] if found is None else [found["few"]["acquire p99_ms"] / found["few"]["acquire p50_ms"]]


def _cold(command: str) -> Ratio:
    def ratio(measured: Measured, build: str) -> list[float]:
        found = cold_times(measured).get(f"{build} {command}")
        return [median(found[2])] if found else []

    return ratio


def _cold_cpu(command: str) -> Ratio:
    def seconds(measured: Measured, build: str) -> list[float]:
        found = cold_times(measured).get(f"{build} {command}")
        return [found[1] / 1000] if found else []

    return seconds


def _counted(measured: Measured, build: str) -> list[float]:
    """Thousand instructions of an acquire in a batch of its own, without sockets."""
    found = instructions_of(measured["instructions"]).get(BUILDS[build][0])
    return [sum(found["acquire"].get(part, 0) for part in LOOP_PARTS) / 1e3] if found else []


def _stores(database: str, contender: str) -> Ratio:
    """Acquire and release at 32 connections by one dibs server, as it is installed here, by another way."""

    def ratio(measured: Measured, build: str) -> list[float]:
        if build != OF_STORES:
            return []
        rates: dict[str, dict[int, float]] = {"dibs, 1 server": {}, contender: {}}
        for turn in measured["stores"]["turns"]:
            if (turn["database"], turn["connections"]) == (database, 32) and turn["contender"] in rates:
                rates[turn["contender"]][turn["round"]] = turn["measured"]["sample"]["requests_per_s"]
        ours, theirs = rates.values()
        return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]

    return ratio


def _across(database: str) -> Ratio:
    def ratio(measured: Measured, build: str) -> list[float]:
        if build != OF_STORES:
            return []
        found = {
            (one["way"], one["round"]): one for one in measured["stores"]["hand_offs"] if one["database"] == database
        }
        rounds = sorted({number for _, number in found})
        return [found["across", number]["p50_ms"] / found["same", number]["p50_ms"] for number in rounds]

    return ratio


OF_STORES = "dibs"  # the build that servers on databases are measured with
AIMS = [
    Aim("one connection: acquire p50 ÷ etcd", 0.5, _load(P50, "acquire", 1, "etcd"), most=True),
    Aim("acquire and release a second ÷ OctoStore", 1.2, _load(RATE, "cycle", 1, "octostore")),
    Aim("OctoStore's wave of 1 ÷ OctoStore", 1.2, _load(RATE, "wave", 1, "octostore")),
    Aim("acquire p99 ÷ p50, request by request", 3, _tail, most=True),
    Aim("32 connections: acquires a second ÷ etcd", 4, _load(RATE, "acquire", 32, "etcd")),
    Aim("÷ Redis, `appendfsync always`", 0.3, _load(RATE, "acquire", 32, "redis")),
    Aim("CPU an acquire, µs", 55, _load("server_cpu_us", "acquire", 32), most=True),
    Aim("OctoStore's wave of 20 ÷ OctoStore", 3, _load(RATE, "wave", 20, "octostore")),
    Aim("OctoStore's wave of 100 ÷ OctoStore", 4, _load(RATE, "wave", 100, "octostore")),
    Aim("SDK `with` block ÷ redis-py `Lock`, p50: server", 1.5, _sdk(": `with client.claim`"), most=True),
    Aim("the same, embedded", 0.8, _sdk(", embedded"), most=True),
    Aim("instructions of an acquire, thousands", 230, _counted, most=True),
    Aim(
        "PostgreSQL, 32 connections ÷ one transaction per claim",
        2.5,
        _stores("postgres", "one transaction per claim, HTTP"),
    ),
    Aim("etcd, 32 connections ÷ its own lock service", 1, _stores("etcd", "etcd's lock service")),
    Aim("hand-off across two servers ÷ at one, PostgreSQL", 1.5, _across("postgres"), most=True),
    Aim("the same, etcd", 1.5, _across("etcd"), most=True),
    Aim("hand-off at 64 waiters ÷ etcd, p50", 1, _handoff, most=True),
    Aim("renew p99 among 300,000 leases ÷ among 1,000", 1.5, _growth("renew p99"), most=True),
    Aim("memory a live lease in a server, bytes", 600, _growth("bytes_each"), most=True),
    Aim("`dibs claim` cold, embedded ÷ `python -c pass`", 2.5, _cold("claim, embedded"), most=True),
    Aim("hook before an edit ÷ `python -c pass`", 3.5, _cold("hook, before an edit"), most=True),
    Aim("`dibs mcp` to its first answer, s of CPU", 0.4, _cold_cpu("mcp, first answer"), most=True),
]


def aim_rows(measured: Measured) -> Iterator[str]:
    """A ratio in bold meets its aim."""
    there = [build for build in BUILDS if any(aim.ratio(measured, build) for aim in AIMS)]
    yield f"| what | {' | '.join(BUILDS[build][0] for build in there)} | aim |"
    yield "| --- |" + " ---: |" * (len(there) + 1)
    for aim in AIMS:
        cells = []
        for build in there:
            values = aim.ratio(measured, build)
            if not values:
                cells.append("-")
                continue
            text = number_text(values[0]) if aim.aim >= 100 and len(values) == 1 else ratio_text(values)
            cells.append(f"**{text}**" if aim.is_met(median(values)) else text)
        bound = f"{'at most' if aim.most else 'at least'} {aim.aim:g}"
        yield f"| {aim.what} | {' | '.join(cells)} | {bound} |"
