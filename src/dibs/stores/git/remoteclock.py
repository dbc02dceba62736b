"""The remote's clock, if it can be read: the `Date` of its HTTP answers, or the time its file system gives to a new
file. ssh and git:// tell no time.

A reading is kept as two bounds on the machine's steady clock, so it does not depend on a wall clock.
"""

from __future__ import annotations

import os

from dibs.base.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HTTP_GRAIN_MS = 1_000  # a Date has whole seconds, rounded down
FILE_GRAIN_MS = 2_000  # of the coarsest file systems
_TRACE_BYTES_MAX = 1024 * 1024


class Reading:
    """The remote said `said_ms` at some moment between `began_ms` and `ended_ms` of this machine's steady clock."""

    __slots__ = ("_began_ms", "_ended_ms", "_grain_ms", "_said_ms")

    def __init__(self, said_ms: int, began_ms: int, ended_ms: int, grain_ms: int) -> None:
        self._said_ms = said_ms
        self._began_ms = began_ms
        self._ended_ms = ended_ms
        self._grain_ms = grain_ms

    def least_ms(self, steady_ms: int) -> int:
        """The earliest possible time at the remote."""
        return self._said_ms + steady_ms - self._ended_ms

    def most_ms(self, steady_ms: int) -> int:
        """The latest possible time at the remote."""
        return self._said_ms + self._grain_ms + steady_ms - self._began_ms

    def ahead_ms(self, wall_ms: int, steady_ms: int) -> int:
        """How far a wall clock is at least ahead of the remote's; negative: behind. 0: no difference can be seen."""
        if wall_ms > self.most_ms(steady_ms):
            return wall_ms - self.most_ms(steady_ms)
        return min(0, wall_ms - self.least_ms(steady_ms))


def of_folder(folder: str, steady_ms: Callable[[], int]) -> Reading | None:
    """The clock of the file system of `folder`. None if it cannot be written."""
    # git deletes leftover files with this name.
    path = os.path.join(folder, f"tmp_obj_dibs_{new_id()}")
    began_ms = steady_ms()
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(number, b"\n")
            said_ms = os.fstat(number).st_mtime_ns // 1_000_000
        finally:
            os.close(number)
            os.unlink(path)
    except OSError:
        return None
    return Reading(said_ms, began_ms, steady_ms(), FILE_GRAIN_MS)


def of_trace(path: str, began_ms: int, ended_ms: int) -> Reading | None:
    """The last `Date` in the output of GIT_TRACE_CURL."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_TRACE_BYTES_MAX).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    said = [line.rpartition(": ")[2] for line in lines if "recv header: date:" in line.lower()]
    if not said:
        return None
    from dibs.base.http_date import http_date_ms

    said_ms = http_date_ms(said[-1])
    return None if said_ms is None else Reading(said_ms, began_ms, ended_ms, HTTP_GRAIN_MS)
