"""The second guard of a command that `dibs run` started: it acts when the other two cannot.

`dibs run` renews the claim and the guardian stops the command in time. Each of them can be killed or paused, and so can
both. The warden waits for one of two things. Both are gone: it kills what they left. Or the time is over by which the
guardian should have killed everything, and nobody said that this was done: it kills everything itself, before anybody
else may own the job.

It finds the command by the token in its environment, and what lost that token by who started it. Orders, a line each,
from `dibs run` and the guardian: `D ms` (the new deadline), `I session`, `Q` (nobody is left, or may be left).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C part of `signal`, whose import costs more than a claim
import os
import select

from dibs.cli.supervise.guardian import IGNORED, NAP_MS
from dibs.cli.supervise.process_tree import descendants
from dibs.client.embedded import marked, process_mark
from dibs.clock import steady_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LATE_MS = 50  # after which a guardian that should have killed everything has not
LOOK_MS = 10


class Warden:
    """Lives in a process of its own. `end_dead_session` ends the session for which nobody else is left to do it."""

    def __init__(
        self,
        orders: int,
        token: str,
        guardian: int,
        kill_after_ms: int,
        end_dead_session: Callable[[str], None],
    ) -> None:
        self._orders = orders
        self._token = token
        self._run = os.getppid()
        self._guardian = guardian
        self._guardian_mark = process_mark(guardian)
        self._kill_after_ms = kill_after_ms
        self._end_dead_session = end_dead_session
        self._session = ""
        self._buffer = b""
        self._kill_ms: int | None = None
        self._is_done = False

    def run(self) -> None:
        """Until somebody says that nobody is left, or nobody is there to say so."""
        self._prepare()
        while not self._is_done:
            left_ms = NAP_MS if self._kill_ms is None else self._kill_ms - steady_ms()
            if select.select([self._orders], [], [], max(0, min(NAP_MS, left_ms)) / 1000)[0]:
                self._hear()
            if self._kill_ms is not None and steady_ms() >= self._kill_ms:
                self._kill_ms = None
                self._kill_all()

    def _prepare(self) -> None:
        for number in IGNORED:
            _signal.signal(number, _signal.SIG_IGN)
        os.setpgid(0, 0)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.closerange(3, self._orders)
        os.closerange(self._orders + 1, 65536)

    def _hear(self) -> None:
        some = os.read(self._orders, 65536)
        if not some:
            self._is_done = True
            if self._kill_all() and self._session:
                self._end_dead_session(self._session)
            return
        *lines, self._buffer = (self._buffer + some).split(b"\n")
        for line in lines:
            order, _, word = line.decode().partition(" ")
            if order == "D":
                self._kill_ms = int(word) + self._kill_after_ms + LATE_MS
            elif order == "I":
                self._session = word
            elif order == "Q":
                self._is_done = True

    def _kill_all(self) -> bool:
        """Until nobody is left. False when some are another user's and cannot be killed."""
        untouchable: set[int] = set()
        while left := self._found() - untouchable:
            for pid in left:
                try:
                    os.kill(pid, _signal.SIGKILL)
                except ProcessLookupError:
                    pass
                except PermissionError:
                    untouchable.add(pid)
            select.select([], [], [], LOOK_MS / 1000)
        return not untouchable

    def _found(self) -> set[int]:
        """Who is left of the command and of what it started."""
        found = set(marked(self._token))
        if os.getppid() == self._run:
            found.update(descendants(self._run))
        if process_mark(self._guardian) == self._guardian_mark:
            found.update(descendants(self._guardian))
        found -= {self._guardian, os.getpid()}
        return {pid for pid in found if process_mark(pid) is not None}
