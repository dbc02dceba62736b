"""Runs `dibs` with a wall clock that is off by as many milliseconds as a file says at that moment.

stepped.py FILE WORDS...       WORDS are those of the dibs command

Only the wall clock is moved. The steady clock, which counts from boot, cannot be set on a real machine either.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path


def step_wall_clock(offset_file: Path) -> None:
    true_time, true_time_ns, true_clock, true_clock_ns = (
        time.time,
        time.time_ns,
        time.clock_gettime,
        time.clock_gettime_ns,
    )

    def offset_ms() -> int:
        return int(offset_file.read_text())

    def clock_ns(which: int) -> int:
        return true_clock_ns(which) + (offset_ms() * 10**6 if which == time.CLOCK_REALTIME else 0)

    def clock(which: int) -> float:
        return true_clock(which) + (offset_ms() / 1000 if which == time.CLOCK_REALTIME else 0)

    time.time = lambda: true_time() + offset_ms() / 1000
    time.time_ns = lambda: true_time_ns() + offset_ms() * 10**6
    time.clock_gettime = clock
    time.clock_gettime_ns = clock_ns


if __name__ == "__main__":
    step_wall_clock(Path(sys.argv[1]))
    sys.argv[:2] = []
    sys.argv.insert(0, "dibs")
    runpy.run_module("dibs", run_name="__main__", alter_sys=True)
