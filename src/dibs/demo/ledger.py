"""The ledger of the demo: one line for every side effect of any worker.

The file is opened with O_APPEND and a line is one write, so that lines of several processes never mix. dibs neither
writes nor reads it. An effect with two lines happened twice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Effect(NamedTuple):
    job: str
    step: int
    worker: str
    fencing_token: int


class Ledger:
    """Writes effects at the end of the file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, effect: Effect) -> None:
        line = "\t".join([effect.job, str(effect.step), effect.worker, str(effect.fencing_token)])
        os.write(self._file, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def read(path: str) -> list[Effect]:
    """All effects, in order. A missing file has none."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
    except FileNotFoundError:
        return []
    return [Effect(job, int(step), worker, int(token)) for job, step, worker, token in rows]


class Count(NamedTuple):
    """One job's count of steps that were done, and of lines beyond one for each step."""

    steps: int
    duplicates: int


def counted(effects: Iterable[Effect], jobs: Sequence[str]) -> dict[str, Count]:
    """The counts of each of `jobs`."""
    steps: dict[str, list[int]] = {job: [] for job in jobs}
    for effect in effects:
        steps[effect.job].append(effect.step)
    return {job: Count(len(set(done)), len(done) - len(set(done))) for job, done in steps.items()}
