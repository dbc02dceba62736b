"""How long this machine stood still while tests ran: a process that only sleeps notes how late it wakes.

The host of a virtual machine may stop it for seconds. Load looks different: whoever wants to run waits for milliseconds
at a time. A thread would not do: it is late whenever another one keeps Python's lock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from time import monotonic, sleep  # as they are now: a test may replace those of the module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TICK_MS = 100
NOTED_MS = 500  # a wake-up that is less late than this is load: ten busy programs on each core make it 300 ms late
_notes: list[str] = []  # the file in which the process of this worker writes


def _now_ms() -> int:
    return int(monotonic() * 1000)


def _write(path: str) -> None:
    """One line for each standstill: when it was over, and how long it was. Ends with the process that started it."""
    parent = os.getppid()
    with open(path, "a", buffering=1) as file:
        woke_ms = _now_ms()
        file.write(f"{woke_ms} 0\n")  # it is awake
        while os.getppid() == parent:
            sleep(TICK_MS / 1000)
            woke_ms, before_ms = _now_ms(), woke_ms
            late_ms = woke_ms - before_ms - TICK_MS
            if late_ms >= NOTED_MS:
                file.write(f"{woke_ms} {late_ms}\n")


@contextmanager
def watched() -> Iterator[int]:
    """Standstills are noted in this block, by the process with this id."""
    with tempfile.NamedTemporaryFile(prefix="dibs-stalls-") as file:
        nothing = subprocess.DEVNULL
        words = [sys.executable, "-IS", __file__, file.name]
        with subprocess.Popen(words, stdin=nothing, stdout=nothing) as watching:
            _notes.append(file.name)
            try:
                yield watching.pid
            finally:
                _notes.clear()
                watching.kill()


def stood_still_ms(since_s: float) -> int:
    """How long in all, from a moment of `time.monotonic` on. Waits until the watch has woken up too."""
    if not _notes:
        return 0
    sleep(2 * TICK_MS / 1000)
    since_ms = int(since_s * 1000)
    with open(_notes[0]) as file:
        noted = [(int(over), int(late)) for over, late in map(str.split, file)]
    return sum(min(late_ms, over_ms - since_ms) for over_ms, late_ms in noted if over_ms > since_ms)


def is_in_time(began_s: float, most_s: float) -> bool:
    """Whether less than `most_s` passed since a moment of `time.monotonic`, but for what the machine stood still."""
    took_s = monotonic() - began_s
    return took_s < most_s or took_s - stood_still_ms(began_s) / 1000 < most_s


if __name__ == "__main__":
    _write(sys.argv[1])
