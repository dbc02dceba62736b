"""The plots of the page. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from scripts.dev.pages import plot
from scripts.dev.pages.performance.figures import (
    ALL,
    BUILDS,
    LOOP_PARTS,
    OPERATIONS,
    P50,
    RATE,
    Figures,
    Measured,
    cold_name,
    cold_times,
    instructions_of,
    sdk_names,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def _load_series(load: Figures, workload: str, counts: Sequence[int]) -> list[plot.Series]:
    found: list[plot.Series] = []
    for target, (name, colour) in ALL.items():
        points = {
            str(count): rate
            for count in counts
            if (rate := load.middle(RATE, target=target, workload=workload, connections=count)) is not None
        }
        if points:
            found.append((name, colour, False, points))
    return found


def plots(measured: Measured) -> dict[str, str]:
    """The plots by the name of their file."""
    load, hand = Figures(measured["load"]), Figures(measured["handoff"])
    acquires = _load_series(load, "acquire", (1, 8, 32, 128))
    waves = _load_series(load, "wave", (1, 20, 100))
    return {
        "acquire": plot.lines(
            "Durable acquires a second, by connections",
            "More is better. Logarithmic. Advisory locks and the no-op are not durable.",
            ("1", "8", "32", "128"),
            acquires,
        ),
        "wave": plot.lines(
            "Acquire, get, renew, release in turn: requests a second, by workers",
            "More is better. Logarithmic. Every worker has one connection and one job.",
            ("1", "20", "100"),
            waves,
        ),
        "cycle": _cycle_plot(load),
        "handoff": _handoff_plot(hand),
        "sdk": _sdk_plot(measured),
        "cold": _cold_plot(measured),
        "budget": _budget_plot(measured["instructions"]),
    }


def _cycle_plot(load: Figures) -> str:
    rows: list[plot.Bar] = []
    for target, (name, colour) in ALL.items():
        one = {"target": target, "workload": "cycle", "connections": 1}
        rate, p50, p99 = (load.middle(field, **one) for field in (RATE, P50, "p99_ms"))
        # Advisory locks touch no disk: their bar would make all others too short to read.
        if rate is not None and p50 is not None and target != "postgres-advisory":
            rows.append((name, colour, rate, f"{rate:,.0f}/s, p50 {p50:.2f}, p99 {p99:.2f} ms"))
    note = "Requests a second, half of them acquires. More is better. Not shown: advisory locks, which are in memory."
    return plot.bars("Acquire and release in turn, one connection", note, rows)


def _handoff_plot(hand: Figures) -> str:
    series: list[plot.Series] = []
    counts = sorted({row["waiters"] for row in hand.rows})
    for service, (name, colour) in ALL.items():
        for field, label in (("p50_ms", "p50"), ("p99_ms", "p99")):
            points = {
                f"{count:,}": value
                for count in counts
                if (value := hand.middle(field, service=service, waiters=count)) is not None
            }
            if points:
                series.append((f"{name} {label}", colour, field == "p99_ms", points))
    note = "Milliseconds from a release to the next owner's answer. Less is better. Logarithmic. Dashed: p99."
    return plot.lines("Hand-off, by waiters", note, [f"{count:,}" for count in counts], series)


def _sdk_plot(measured: Measured) -> str:
    sdk = Figures(measured["sdk"])
    rows: list[plot.Bar] = []
    for service, (name, colour) in sdk_names(measured).items():
        p50, cpu = sdk.middle(P50, service=service), sdk.middle("cpu_us", service=service)
        if p50 is not None and cpu is not None:
            rows.append((name, colour, p50, f"{p50:.2f} ms, CPU {cpu / 1000:.2f} ms"))
    return plot.bars("One claim from Python, and its release", "Milliseconds, p50. Less is better.", rows, 280)


def _cold_plot(measured: Measured) -> str:
    rows: list[plot.Bar] = []
    for command, (ms, _, ratios) in cold_times(measured).items():
        colour = next((c for b, (_, c) in reversed(BUILDS.items()) if command.startswith(f"{b} ")), 9)
        rows.append((cold_name(command), colour, ms, f"{ms:.1f} ms, {median(ratios):.2f} times"))
    return plot.bars("The smallest command, from a shell", "Milliseconds, median. Less is better.", rows, 280)


def _budget_plot(counted: Measured) -> str:
    rows: list[tuple[str, Sequence[float]]] = []
    for operation in OPERATIONS:
        for name, by_operation in instructions_of(counted).items():
            short = name.removeprefix("dibs, ")
            rows.append((f"{operation}, {short}", [by_operation[operation].get(part, 0) / 1e3 for part in LOOP_PARTS]))
    return plot.stacked(
        "Where a request goes", "Thousand instructions in user space. Less is better.", rows, LOOP_PARTS
    )
