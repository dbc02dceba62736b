"""The ratios that the project aims at, and where they are. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from scripts.pages.performance.figures import (
    BUILDS,
    P50,
    RATE,
    Figures,
    Measured,
    cold_times,
    growth_of,
    number_text,
    ratio_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Aim:
    """One ratio that the project aims at, and how to compute it for a build."""

    def __init__(
        self, what: str, aim: float, ratio: Callable[[Measured, str], list[float]], *, most: bool = False
    ) -> None:
        self.what = what
        self.aim = aim
        self.ratio = ratio
        self.most = most  # the aim is an upper bound

    def is_met(self, value: float) -> bool:
        return value <= self.aim if self.most else value >= self.aim


def _load_ratio(field: str, workload: str, count: int, peer: str) -> Callable[[Measured, str], list[float]]:
    one = {"workload": workload, "connections": count}

    def ratio(measured: Measured, build: str) -> list[float]:
        return Figures(measured["load"]).ratio(field, {"target": build, **one}, {"target": peer, **one})

    return ratio


def _sdk_ratio(measured: Measured, build: str) -> list[float]:
    ours, theirs = f"{build}: `with client.claim`", "redis-py `Lock`"
    return Figures(measured["sdk"]).ratio("p50_ms", {"service": ours}, {"service": theirs})


def _handoff_ratio(field: str) -> Callable[[Measured, str], list[float]]:
    def ratio(measured: Measured, build: str) -> list[float]:
        hand = Figures(measured["handoff"])
        return hand.ratio(field, {"service": build, "waiters": 64}, {"service": "etcd", "waiters": 64})

    return ratio


def _flatness(measured: Measured, build: str) -> list[float]:
    hand = Figures(measured["handoff"])
    return hand.ratio("p50_ms", {"service": build, "waiters": 1000}, {"service": build, "waiters": 1})


def _growth(key: str) -> Callable[[Measured, str], list[float]]:
    def ratio(measured: Measured, build: str) -> list[float]:
        found = growth_of(measured, build)
        return [] if found is None else list(found[key]) if isinstance(found[key], list) else [found[key]]

    return ratio


def _cold(measured: Measured, build: str) -> list[float]:
    found = cold_times(measured).get(f"{build} claim, embedded")
    return [median(found[2])] if found else []


AIMS = [
    Aim("durable acquire, 32 connections ÷ etcd gateway", 6, _load_ratio(RATE, "acquire", 32, "etcd")),
    Aim("÷ Redis `appendfsync always` (own protocol, C)", 0.5, _load_ratio(RATE, "acquire", 32, "redis")),
    Aim("÷ no-op of the same stack", 0.35, _load_ratio(RATE, "acquire", 32, "noop-lane")),
    Aim("one connection, acquire p50 ÷ etcd", 0.4, _load_ratio(P50, "acquire", 1, "etcd"), most=True),
    Aim(
        "one connection, acquire+release per second ÷ OctoStore",
        2,
        _load_ratio(RATE, "cycle", 1, "octostore"),
    ),
    Aim("OctoStore's wave, 1 worker ÷ OctoStore", 2, _load_ratio(RATE, "wave", 1, "octostore")),
    Aim("OctoStore's wave, 20 workers ÷ OctoStore", 4, _load_ratio(RATE, "wave", 20, "octostore")),
    Aim("OctoStore's wave, 100 workers ÷ OctoStore", 4, _load_ratio(RATE, "wave", 100, "octostore")),
    Aim("SDK `with` cycle ÷ redis-py `Lock` with fsync", 1.5, _sdk_ratio, most=True),
    Aim("hand-off at 64 waiters ÷ etcd, p50", 0.4, _handoff_ratio("p50_ms"), most=True),
    Aim("hand-off at 64 waiters ÷ etcd, p99", 0.2, _handoff_ratio("p99_ms"), most=True),
    Aim("hand-off at 1,000 waiters ÷ at 1, p50 (flat: 1)", 1.25, _flatness, most=True),
    Aim("renew p99, 1,000,000 leases ÷ few", 1.2, _growth("renew p99"), most=True),
    Aim("restart to first answer, 1,000,000 leases ÷ few", 2, _growth("restart"), most=True),
    Aim("memory a live lease in a server, bytes", 600, _growth("bytes_each"), most=True),
    Aim("`dibs claim` cold, embedded ÷ `python -c pass`", 2.5, _cold, most=True),
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
