"""What is left of a command when one of its guards has to end it alone: found in every way there is, and killed.

Two ways lead to it: by who started whom, because orphans fall to the nearest guard that lives (process_tree.py), and by
the token in its environment. The first finds what was given a new environment, the second what is no longer below us.
"""

from __future__ import annotations

import os
import select

from dibs.cli.supervise.process_tree import descendants
from dibs.client.embedded import marked, process_mark
from dibs.clock import steady_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOOK_MS = 10
_DYING_MS_MAX = 2_000
_LOOKS = 2
_SIGKILL = 9


class Survivors:
    """`token`: what the command's environment carries. `guards`: those who are no part of it."""

    def __init__(self, token: str, guards: Iterable[int]) -> None:
        self._token = token
        self._guards = {*guards, os.getpid()}
        self.untouchable: set[int] = set()  # another user's: they cannot be killed

    def end(self, roots: Callable[[], Iterable[int]]) -> bool:
        """Kill everything below the roots and everything marked until nobody is left. False when some cannot be."""
        empty = 0
        while empty < _LOOKS:
            left = self._found(roots()) - self.untouchable
            empty = 0 if left else empty + 1
            for pid in left:
                if not killed(pid):
                    self.untouchable.add(pid)
            if left:
                _nap()
        return not self.untouchable

    def _found(self, roots: Iterable[int]) -> set[int]:
        """One look. It may miss somebody whose parent ends while it lasts, who has another one at the next look."""
        found = set(marked(self._token))
        for root in roots:
            found.update(descendants(root))
        return {pid for pid in found - self._guards if process_mark(pid) is not None}


def wait_for_end(is_gone: Callable[[], bool]) -> None:
    """Of a guard whose pipe is closed. A process closes its files before its children fall to another: whoever looks
    in between finds them nowhere."""
    until_ms = steady_ms() + _DYING_MS_MAX
    while not is_gone() and steady_ms() < until_ms:
        _nap()


def killed(pid: int) -> bool:
    """False when it is another user's."""
    try:
        os.kill(pid, _SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _nap() -> None:
    select.select([], [], [], LOOK_MS / 1000)
