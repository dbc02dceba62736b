"""What a system tells of its processes.

`ProcessTable` tells nothing, and so proves nothing. Linux, macOS and `ps` know more, each as far as its system does.
"""

from __future__ import annotations

import os

from dibs.system import ways

# A file that becomes readable when a process ends. Only Linux has one; elsewhere the process is looked at again.


def process_handle(pid: int) -> int | None:
    """A handle on the process, if the system gives one. None proves nothing."""
    if not ways.IS_LINUX:
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError, OverflowError):
        return None


# Begins a start time that is too coarse, or too dependent on the wall clock, to prove that a process is another one.
ABOUT = "~"


class ProcessEntry:
    """One process. `started` is written as the system tells it; the same process always has the same."""

    __slots__ = ("has_ended", "is_kernel", "parent", "started")

    def __init__(self, parent: int, started: str, *, has_ended: bool = False, is_kernel: bool = False) -> None:
        self.parent = parent
        self.started = started
        self.has_ended = has_ended
        self.is_kernel = is_kernel


class ProcessTable:
    """Of a system that tells nothing."""

    def namespace(self) -> str:
        """Names the set of processes in which a number means one process. Empty where that is not known."""
        return ""

    def has_our_numbers(self) -> bool:
        """Return whether the numbers in this table are those that this process uses."""
        return False

    def shows_all(self) -> bool:
        """Return whether the list is complete, and the environment of every process of this user can be read."""
        return False

    def pids(self) -> list[int]:
        return []

    def entry(self, pid: int) -> ProcessEntry | None:
        """None if there is no such process, or if it cannot be seen."""
        return None

    def is_listed(self, pid: int) -> bool:
        return self.entry(pid) is not None

    def is_dead(self, pid: int) -> bool:
        """Return whether the process has ended and only its entry is left. False when that cannot be seen."""
        return False

    def children(self, pid: int) -> list[int]:
        """Empty if the process is gone, or if they cannot be seen."""
        return []

    def group(self, number: int) -> list[int]:
        """The living processes of a process group, of all users. Empty if they cannot be seen."""
        return []

    def command(self, pid: int) -> tuple[str, bytes] | None:
        """The path of the program, and its words."""
        return None

    def environment(self, pid: int) -> bytes | None:
        """The variables with which a process was started, each ended by a NUL byte. None when the system does not
        tell."""
        return None
