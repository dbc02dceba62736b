"""What the workers did to the world, as the world sees it: one line for every side effect, whoever caused it.

The file is opened with O_APPEND and a line is one write, so that lines of several processes never mix. dibs neither
writes nor reads it. What stands here twice was done twice.
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
    """Everything that was written, in order. A file that was never made holds nothing."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
    except FileNotFoundError:
        return []
    return [Effect(job, int(step), worker, int(token)) for job, step, worker, token in rows]


class Count(NamedTuple):
    """Of one job: how many of its steps were done, and how many lines are there beyond one for each."""

    steps: int
    duplicates: int


def counted(effects: Iterable[Effect], jobs: Sequence[str]) -> dict[str, Count]:
    """For each of `jobs`, what the ledger says."""
    steps: dict[str, list[int]] = {job: [] for job in jobs}
    for effect in effects:
        steps[effect.job].append(effect.step)
    return {job: Count(len(set(done)), len(done) - len(set(done))) for job, done in steps.items()}
