"""Finds and kills the processes of a command when only one of its guards is left.

They are found in two ways: as descendants, because the nearest living guard adopts orphans, and by the token in their
environment. The first finds processes with a new environment, the second those that are no longer below us. Where the
system offers neither (macOS), only the command's process group is known. Processes that left it are not found.
"""

from __future__ import annotations

import os
import select

from dibs.base import platforms
from dibs.base.cheap import Callable, Iterable
from dibs.base.clock import steady_ms
from dibs.system import table
from dibs.system.session_mark import marked, process_mark

# Finds all descendants of a process, even those that left its process group.
#
# On Linux a process can adopt the orphans below it (a "child subreaper"). Then all its descendants stay below it,
# however often they fork, and can be found by walking from parent to children. Other systems have no such thing: there,
# processes that left the process group cannot be found.

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = 9
_SIGCONT = 18


def adopt_orphans() -> bool:
    """From now on, orphans among our descendants become our children. False if the system does not support it."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def leave_orphans() -> None:
    """The opposite: from now on they become the children of who adopts them above us, which collects them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def die_with(parent: int) -> None:
    """In a child: be killed when `parent`, which forked it, ends. Does nothing if the system does not support it."""
    if _prctl(_PR_SET_PDEATHSIG, _SIGKILL) and os.getppid() != parent:
        os._exit(128 + _SIGKILL)  # it ended before this call


def wake_with_parent() -> None:
    """If this process is paused when its parent ends, continue it. Does nothing if the system does not support it."""
    _prctl(_PR_SET_PDEATHSIG, _SIGCONT)


def _prctl(option: int, value: int) -> bool:
    if not platforms.IS_LINUX:
        return False
    try:
        from ctypes import CDLL  # only for `dibs run`

        return bool(CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def descendants(pid: int) -> list[int]:
    """All descendants, parents first. Processes that fork meanwhile may be missing, so call it again."""
    children = table().children
    found = children(pid)
    for each in found:
        found += children(each)  # the list grows during the loop
    return found


NAP_MS = 1_000  # select does not count suspend: whoever measures time looks at least this often
LOOK_MS = 10
_DYING_MS_MAX = 2_000
_LOOKS = 2


class Survivors:
    """`token` is in the environment of the command. `guards` are the pids of the guards, which are not killed."""

    def __init__(self, token: str, guards: Iterable[int]) -> None:
        self._token = token
        self._guards = {*guards, os.getpid()}
        self.untouchable: set[int] = set()  # processes of another user, which cannot be killed
        self._group = 0
        self._leader: str | None = None

    def has_group(self, group: int) -> None:
        """The process group of the command. Needed where its processes cannot be found."""
        self._group, self._leader = group, process_mark(group)

    def end(self, roots: Callable[[], Iterable[int]]) -> bool:
        """Kill all descendants of the roots, and all with the token, until none is left. False if some cannot be
        killed."""
        if self._is_our_group():
            signalled(-self._group)
        empty = 0
        while empty < _LOOKS:
            left = self._found(roots()) - self.untouchable
            empty = 0 if left else empty + 1
            for pid in left:
                if not signalled(pid):
                    self.untouchable.add(pid)
            if left:
                _nap()
        return not self.untouchable

    def _is_our_group(self) -> bool:
        """Tell whether its number has not come again. While the group has members, no new process gets it."""
        return bool(self._group) and process_mark(self._group) in (None, self._leader)

    def _found(self, roots: Iterable[int]) -> set[int]:
        """One look at all processes. It may miss one whose parent ends at this moment; the next look finds it."""
        found = set(marked(self._token))
        if self._is_our_group():
            found.update(table().group(self._group))
        for root in roots:
            found.update(descendants(root))
        return {pid for pid in found - self._guards if process_mark(pid) is not None}


def wait_for_end(is_gone: Callable[[], bool]) -> None:
    """Wait for the end of a guard whose pipe is closed: only then its children are adopted, and can be found."""
    until_ms = steady_ms() + _DYING_MS_MAX
    while not is_gone() and steady_ms() < until_ms:
        _nap()


def signalled(pid: int, number: int = _SIGKILL) -> bool:
    """Send a signal, or with 0 only ask. False if the process is another user's; and for 0 if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return number != 0
    except PermissionError:
        return False
    return True


def _nap() -> None:
    select.select([], [], [], LOOK_MS / 1000)
