"""The tables of `stores.py`: medians of the rounds, ratios paired by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from operations import OPERATIONS
from stats import Spread, paired_ratio, spread
from store_targets import SQL_BARE, SQL_HTTP
from stores import StoreResults, Turn

OURS = "dibs, 1 server"
AIMS = (SQL_HTTP, SQL_BARE)
BATCHING_AIM, HAND_OFF_AIM = 3.0, 2.0
NAMES = {"postgres": "PostgreSQL", "etcd": "etcd"}


def tables(found: StoreResults) -> list[str]:
    kinds = list(dict.fromkeys(turn.database for turn in found.turns))
    lines = []
    for kind in kinds:
        lines += _rates([turn for turn in found.turns if turn.database == kind], NAMES[kind])
    return [*lines, *_ratios(found), *_hand_offs(found), *costs(found)]


def _rates(turns: Sequence[Turn], name: str) -> list[str]:
    lines = [f"**Acquire and release on {name}**: requests/s (half of them acquires), ms, CPU time", ""]
    lines += [
        "| | conn. | requests/s | p50 / p99, ms | CPU a request, µs: service + database |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for contender, connections in sorted(dict.fromkeys((t.contender, t.connections) for t in turns)):
        mine = [t for t in turns if (t.contender, t.connections) == (contender, connections)]

        def middle(value: Callable[[Turn], float], of: Sequence[Turn] = mine) -> float:
            return spread([value(turn) for turn in of]).median

        rate = spread([turn.measured.sample.requests_per_s for turn in mine]).text()
        p50, p99 = middle(lambda t: t.measured.sample.p50_ms), middle(lambda t: t.measured.sample.p99_ms)
        service = middle(lambda t: t.measured.service_cpu_s / _answered(t) * 1e6)
        database = middle(lambda t: t.measured.database_cpu_s / _answered(t) * 1e6)
        text = f"{service:.0f} + {database:.0f}" if service else f"- + {database:.0f}"
        lines.append(f"| {contender} | {connections} | {rate} | {p50:.2f} / {p99:.2f} | {text} |")
    return [*lines, ""]


def _answered(turn: Turn) -> int:
    return max(1, turn.measured.sample.acquired + turn.measured.sample.released)


def _by_round(found: StoreResults, contender: str) -> list[float]:
    """Requests a second at the most connections, on PostgreSQL."""
    most = max(turn.connections for turn in found.turns)
    wanted = ("postgres", contender, most)
    mine = [t for t in found.turns if (t.database, t.contender, t.connections) == wanted]
    return [turn.measured.sample.requests_per_s for turn in sorted(mine, key=lambda turn: turn.round)]


def _ratios(found: StoreResults) -> list[str]:
    lines = []
    for peer in AIMS:
        ratio = paired_ratio(_by_round(found, OURS), _by_round(found, peer))
        if ratio is not None:
            text = _verdict(ratio, ratio.median >= BATCHING_AIM)
            lines.append(f"- {OURS} by *{peer}*, most connections: {text} (aim: {BATCHING_AIM:g} or more)")
    return lines


def _hand_offs(found: StoreResults) -> list[str]:
    lines, rows = [], []
    for kind in dict.fromkeys(one.database for one in found.hand_offs):
        mine = sorted((one for one in found.hand_offs if one.database == kind), key=lambda one: one.round)
        same, across = ([one for one in mine if one.way == way] for way in ("same", "across"))
        for way, those in (("on one server", same), ("across two servers", across)):
            p50, p99 = (spread([getattr(one, key) for one in those]).text(2) for key in ("p50_ms", "p99_ms"))
            rows.append(f"| {NAMES[kind]}, {way} | {p50} | {p99} |")
        ratio = paired_ratio([one.p50_ms for one in across], [one.p50_ms for one in same])
        if ratio is not None:
            text = _verdict(ratio, ratio.median <= HAND_OFF_AIM)
            lines.append(f"- {NAMES[kind]}: p50 across by p50 on one server: {text} (aim: {HAND_OFF_AIM:g} or less)")
    head = ["", "**Hand-off**, ms from a release to the next owner's reply", ""]
    return [*head, "| | p50 | p99 |", "| --- | ---: | ---: |", *rows, "", *lines, ""]


def _verdict(ratio: Spread, met: bool) -> str:
    return f"{ratio.text(2)}{'' if met else ', **not met**'}"


def cost_of(found: StoreResults, kind: str, operation: str) -> tuple[float, float, float, float | None]:
    """CPU of the dibs server and of the database in microseconds, bytes written, events: medians of the rounds."""
    mine = [cost for cost in found.costs if (cost.database, cost.operation) == (kind, operation)]
    keys = ("server_cpu_us", "database_cpu_us", "written_bytes")
    server, database, written = (spread([getattr(cost, key) for cost in mine]).median for key in keys)
    counted = [cost.events for cost in mine if cost.events is not None]
    return server, database, written, spread(counted).median if counted else None


def costs(found: StoreResults) -> list[str]:
    lines = ["**One operation**, at 32 connections and one server", ""]
    lines += ["| | operation | CPU of dibs, µs | CPU of the database, µs | bytes written | events |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: |"]
    for kind in dict.fromkeys(cost.database for cost in found.costs):
        for operation in OPERATIONS:
            server, database, written, events = cost_of(found, kind, operation)
            count = "-" if events is None else f"{events:.0f}"
            cells = f"{server:.0f} | {database:.0f} | {written:,.0f} | {count}"
            lines.append(f"| {NAMES[kind]} | {operation} | {cells} |")
    return [*lines, ""]
