"""Results as tables for people and as JSON for later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from interleave import Cell
from load import Sample
from stats import Spread, paired_ratio, spread
from targets import ACQUIRE, CYCLE

HERE = Path(__file__).parent
RESULTS, STORES = "results", "stores"  # the marked places of README.md
TITLES = {
    CYCLE: "Acquire and release, requests/s (half of them acquires)",
    ACQUIRE: "Acquire only, requests/s",
}


def rates(cells: Sequence[Cell], target: str, workload: str, connections: int) -> dict[int, float]:
    """Requests a second by round. The no-op's one workload stands in every table: it ignores what is asked."""
    wanted = ACQUIRE if target.startswith("noop") else workload
    return {
        cell.round: cell.sample.requests_per_s
        for cell in cells
        if (cell.target, cell.workload, cell.connections) == (target, wanted, connections)
    }


def _ratio(cells: Sequence[Cell], target: str, workload: str, connections: int) -> Spread | None:
    ours, theirs = (rates(cells, name, workload, connections) for name in ("dibs", target))
    common = sorted(ours.keys() & theirs.keys())
    return paired_ratio([ours[n] for n in common], [theirs[n] for n in common]) if common else None


def _in_order(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def workload_table(cells: Sequence[Cell], workload: str) -> list[str]:
    """One row a target: the median of the rounds (lowest..highest), and dibs by it where it is not dibs."""
    targets = _in_order([c.target for c in sorted(cells, key=lambda c: c.round) if c.target != "dibs"])
    counts = sorted({cell.connections for cell in cells})
    lines = _heading(TITLES[workload], counts)
    for target in ["dibs", *targets]:
        found = {count: list(rates(cells, target, workload, count).values()) for count in counts}
        if any(found.values()):
            texts = [spread(v).text() if (v := found[count]) else "-" for count in counts]
            lines.append(f"| {target} | " + " | ".join(texts) + " |")
    for target in targets:
        ratios = [_ratio(cells, target, workload, count) for count in counts]
        if any(ratios):
            texts = [r.text(2) if r else "-" for r in ratios]
            lines.append(f"| *dibs / {target}* | " + " | ".join(texts) + " |")
    return [*lines, ""]


def _heading(title: str, counts: Sequence[int]) -> list[str]:
    head = "| | " + " | ".join(f"{count} conn." for count in counts) + " |"
    return [f"**{title}**", "", head, "| --- " + "| ---: " * len(counts) + "|"]


def detail_table(cells: Sequence[Cell], title: str, first: str, second: str) -> list[str]:
    """Two fields of the samples side by side, each the median of its rounds."""
    counts = sorted({cell.connections for cell in cells})
    lines = _heading(title, counts)
    for target, workload in _in_order([(cell.target, cell.workload) for cell in cells]):
        mine = [cell for cell in cells if (cell.target, cell.workload) == (target, workload)]
        texts = [_pair([c.sample for c in mine if c.connections == count], first, second) for count in counts]
        lines.append(f"| {target}, {workload} | " + " | ".join(texts) + " |")
    return [*lines, ""]


def _pair(samples: Sequence[Sample], first: str, second: str) -> str:
    if not samples:
        return "-"
    medians = {key: spread([getattr(sample, key) for sample in samples]).median for key in (first, second)}
    fine = ("p50_ms", "p99_ms", "generator_cores")
    return " / ".join(f"{value:,.{2 if key in fine else 0}f}" for key, value in medians.items())


def flags(cells: Sequence[Cell]) -> list[str]:
    """Every suspect cell by name: a rate with wrong answers in it is not a rate."""
    found = [
        f"- **FLAGGED** {c.target} {c.workload}, {c.connections} connections, round {c.round + 1}: "
        f"{c.sample.bad} bad answers, the first: `{c.sample.first_bad}`"
        for c in cells
        if c.sample.bad
    ]
    return [*found, ""] if found else ["Bad answers: none.", ""]


def http_tables(cells: Sequence[Cell]) -> list[str]:
    lines = []
    for workload in (CYCLE, ACQUIRE):
        if any(cell.workload == workload for cell in cells):
            lines += workload_table(cells, workload)
    lines += detail_table(cells, "Acquires/s / releases/s", "acquires_per_s", "releases_per_s")
    lines += detail_table(cells, "Latency, ms, p50 / p99", "p50_ms", "p99_ms")
    lines += detail_table(
        cells,
        "CPU: µs of the server a request / cores of the load generator",
        "server_cpu_us",
        "generator_cores",
    )
    return lines + flags(cells)


def machine_line(machine: dict[str, str], settings: dict[str, object]) -> list[str]:
    facts = "; ".join(f"{key} {value}" for key, value in machine.items())
    how = "; ".join(f"{key} {value}" for key, value in settings.items())
    return [f"Machine: {facts}.", "", f"Run: {how}.", ""]


def save(document: dict[str, object], cells: Sequence[Cell], markdown: str) -> Path:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%MZ}.json"
    full = document | {"cells": [asdict(cell) for cell in cells]}
    path.write_text(json.dumps(full, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown + "\n")
    return path


def write_readme(place: str, markdown: str) -> None:
    """Put the tables between the two markers of a place in README.md, and touch nothing else there."""
    path = HERE / "README.md"
    begin, end = f"<!-- {place}: begin (written by run.py) -->", f"<!-- {place}: end -->"
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n\n{markdown.strip()}\n\n{end}{after}")
