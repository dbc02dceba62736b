"""Every target in turn: for each round, for each number of connections, one cell a target."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from load import Sample, watched
from procs import BenchError
from targets import Target


@dataclass(frozen=True, slots=True)
class Plan:
    connections: Sequence[int]
    rounds: int
    seconds: int
    warmup: int
    folder: Path
    """Where the servers keep their data: it decides what fsync costs."""


@dataclass(frozen=True, slots=True)
class Cell:
    target: str
    workload: str
    connections: int
    round: int
    sample: Sample


def rotated(targets: Sequence[Target], by: int) -> list[Target]:
    """Another target goes first in each round, so that the order favours none."""
    shift = by % len(targets)
    return [*targets[shift:], *targets[:shift]]


def measure_all(targets: Sequence[Target], plan: Plan, say: Callable[[str], None]) -> list[Cell]:
    """Every cell that could be measured. A target that fails is reported and left out from then on."""
    cells: list[Cell] = []
    alive = list(targets)
    for number in range(plan.rounds):
        for connections in plan.connections:
            for target in rotated(alive, number):
                try:
                    for cell in _one_cell(target, plan, connections, number):
                        cells.append(cell)
                        say(_progress(cell, plan.rounds))
                except BenchError as error:
                    say(f"!!! {target.name} FAILED and is left out from here on: {error}")
                    alive.remove(target)
            if not alive:
                return cells
    return cells


def _one_cell(target: Target, plan: Plan, connections: int, number: int) -> Iterator[Cell]:
    temporary = tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=plan.folder)
    with temporary as folder, target.open(Path(folder)) as server:
        if plan.warmup:
            server.measure(target.workloads[0], connections, plan.warmup)
        for workload in target.workloads:
            sample = watched(server.pids, partial(server.measure, workload, connections, plan.seconds))
            yield Cell(target.name, workload, connections, number, sample)


def _progress(cell: Cell, rounds: int) -> str:
    sample = cell.sample
    line = (
        f"round {cell.round + 1}/{rounds}  {cell.connections:>4} connections  "
        f"{cell.target:<10} {cell.workload:<8}"
        f"{sample.requests_per_s:>10,.0f} requests/s  p50 {sample.p50_ms:.2f} ms  p99 {sample.p99_ms:.2f} ms  "
        f"CPU {sample.server_cpu_us:.0f} us, load {sample.generator_cores:.2f} cores"
    )
    return f"{line}\n!!! {sample.bad} bad answers, the first: {sample.first_bad}" if sample.bad else line
