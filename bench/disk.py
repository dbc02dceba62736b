"""Whether the disk stalled under a measurement: bare appends with an fdatasync before and after each say so.

A stalled disk is a fact about the machine, and its figures are no figures of what was measured: such a measurement is
rejected, counted, and made again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")
APPENDS = 100
TRIES_MAX = 3
STALL = 3.0
"""How many times the calm probe's time is a stall. One append of 20 ms among a hundred of 0.1 ms is one."""


def probe_ms(folder: Path) -> float:
    """The mean time to append 4 KiB and have it on disk. What others left to be written is written first."""
    path = folder / "disk-probe"
    block = b"x" * 4096
    os.sync()
    with path.open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(APPENDS):
            file.write(block)
            os.fdatasync(file.fileno())
        spent = time.perf_counter() - began
    path.unlink()
    return spent / APPENDS * 1e3


def is_stalled(disk_ms: float, calm_ms: float) -> bool:
    return disk_ms > STALL * calm_ms


class Disk:
    """Takes measurements, and keeps count of those that a stall spoiled. `is_try`: none is rejected, because nobody
    will read the figures."""

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        probe: Callable[[Path], float] = probe_ms,
        *,
        is_try: bool = False,
    ) -> None:
        self._folder = folder
        self._is_try = is_try
        self._say = say
        self._probe = probe
        self.calm_ms = math.inf  # the least that any probe took
        self.taken = 0
        self.rejected: list[dict[str, Any]] = []

    def probe(self) -> float:
        found = self._probe(self._folder)
        self.calm_ms = min(self.calm_ms, found)
        return found

    def calm(self, what: str, take: Callable[[], Found]) -> tuple[Found, float] | None:
        """What `take` measured on a calm disk, and the longer of the probes around it. None if the disk stalled each
        time."""
        before = self.probe()
        for _ in range(TRIES_MAX):
            found = take()
            self.taken += 1
            worst, before = max(before, after := self.probe()), after
            if self._is_try or not is_stalled(worst, self.calm_ms):
                return found, worst
            self.reject(what, worst)
        return None

    def reject(self, what: str, disk_ms: float) -> None:
        self.rejected.append({"what": what, "disk_ms": disk_ms})
        self._say(f"!!! REJECTED {what}: an append took {disk_ms:.2f} ms, on a calm disk {self.calm_ms:.2f} ms")

    def settle(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows that were measured on a calm disk. What was calm is known at the end."""
        kept = []
        for row in rows:
            if is_stalled(row.get("disk_ms", 0.0), self.calm_ms) and not self._is_try:
                names = [str(row[key]) for key in ("target", "service", "workload", "connections") if key in row]
                self.reject(" ".join(names), row["disk_ms"])
            else:
                kept.append(row)
        return kept

    def document(self) -> dict[str, Any]:
        about = {"appends": APPENDS, "stall": STALL, "calm_ms": self.calm_ms}
        return {**about, "taken": self.taken, "rejected": self.rejected}

    def go_on_from(self, document: dict[str, Any]) -> None:
        self.calm_ms, self.taken = document["calm_ms"], document["taken"]
        self.rejected = document["rejected"]
