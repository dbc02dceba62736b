"""The tables of servers on PostgreSQL and etcd. Pure. What an operation costs there is on the page about scale."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from scripts.dev.pages.scale import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scripts.dev.pages.performance.figures import Measured, Row


def store_rows(measured: Measured) -> Iterator[str]:
    """Acquire and release in turn, by store and contender; then hand-offs."""
    yield "| store | contender | conn. | CPU a request, µs: service + database | requests/s | p50 / p99, ms |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for kind, name in NAMES.items():
        turns = [turn for turn in measured["turns"] if turn["database"] == kind]
        for contender, count in sorted({(turn["contender"], turn["connections"]) for turn in turns}):
            mine = [turn for turn in turns if (turn["contender"], turn["connections"]) == (contender, count)]
            yield f"| {name} | {contender} | {count} | {_cells([turn['measured'] for turn in mine])} |"
    yield ""
    yield "| hand-off, ms from a release to the next owner's reply | p50 | p99 |"
    yield "| --- | ---: | ---: |"
    for kind, name in NAMES.items():
        for way, called in (("same", "on one server"), ("across", "across two servers")):
            mine = [one for one in measured["hand_offs"] if (one["database"], one["way"]) == (kind, way)]
            p50, p99 = (_spread([one[field] for one in mine], 2) for field in ("p50_ms", "p99_ms"))
            yield f"| {name}, {called} | {p50} | {p99} |"


def _cells(mine: Sequence[Row]) -> str:
    samples = [each["sample"] for each in mine]
    rate = _spread([sample["requests_per_s"] for sample in samples])
    p50, p99 = (median(sample[field] for sample in samples) for field in ("p50_ms", "p99_ms"))
    answered = [max(1, sample["acquired"] + sample["released"]) for sample in samples]
    service, database = (
        median(each[field] / count * 1e6 for each, count in zip(mine, answered, strict=True))
        for field in ("service_cpu_s", "database_cpu_s")
    )
    return f"{f'{service:.0f}' if service else '-'} + {database:.0f} | {rate} | {p50:.2f} / {p99:.2f}"


def _spread(values: Sequence[float], digits: int = 0) -> str:
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}..{max(values):,.{digits}f})"
