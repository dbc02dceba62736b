"""The second guard of a command that `dibs run` started: it acts when the other two cannot.

`dibs run` renews the claim, and the guardian stops the command in time. One or both of them can be killed or paused.
If both are gone, this one kills the processes that are left. It does so as soon as the guardian alone is gone, because
`dibs run` may be paused. If the guardian should have killed everything by now and has not reported it, this one kills
everything itself, before anybody else can own the job.

It is a child of `dibs run` and the parent of the guardian. It adopts orphans, so when any two of the three are killed,
what the command started becomes the third one's (survivors.py). It also wakes a paused guardian when `dibs run` ends.
"""

from __future__ import annotations

import os
import select

from dibs.base.cheap import Callable, signal
from dibs.base.clock import steady_ms
from dibs.cli.supervise.guardian import IGNORED
from dibs.cli.supervise.survivors import NAP_MS, Survivors, adopt_orphans, wait_for_end, wake_with_parent
from dibs.system.processes import let_go_of_files, process_handle
from dibs.system.session_mark import process_mark

LATE_MS = 50  # how long after its deadline the guardian has to report


class SecondGuardian:
    """Runs in a process of its own. `end_dead_session` ends the session if no other guard is left."""

    def __init__(
        self, orders: int, token: str, guardian: int, kill_after_ms: int, end_dead_session: Callable[[str], None]
    ) -> None:
        self._orders = orders
        self._run = os.getppid()
        self._run_handle: int | None = None  # readable after `dibs run` has ended
        self._guardian_handle: int | None = None
        self._guardian = guardian
        self._guardian_mark = process_mark(guardian)
        self._survivors = Survivors(token, (self._run, guardian))
        self._kill_after_ms = kill_after_ms
        self._end_dead_session = end_dead_session
        self._session = ""
        self._buffer = b""
        self._kill_ms: int | None = None
        self._is_alone = False  # dibs run has ended
        self._is_done = False

    def run(self) -> None:
        """Run until a guard reports that no process is left, or until both guards are gone."""
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        os.setpgid(0, 0)
        adopt_orphans()
        wake_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        let_go_of_files(self._orders)
        self._run_handle = process_handle(self._run)  # without one, its end is seen at the next look
        self._guardian_handle = process_handle(self._guardian)
        while not self._is_done:
            left_ms = NAP_MS if self._kill_ms is None else self._kill_ms - steady_ms()
            handles = [each for each in (self._run_handle, self._guardian_handle) if each is not None]
            ready = select.select([self._orders, *handles], [], [], max(0, min(NAP_MS, left_ms)) / 1000)[0]
            if not self._is_alone and os.getppid() != self._run:
                self._wake_guardian()
            if self._orders in ready:
                self._hear()
            elif self._kill_ms is not None and steady_ms() >= self._kill_ms:
                self._kill_ms = None
                self._survivors.end(self._roots)
            if self._guardian_mark is not None and not self._guardian_lives():
                self._guardian_ended()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:  # there are none left
                pass

    def _wake_guardian(self) -> None:
        """Continue a paused guardian when `dibs run` has ended; a running one notices it by itself."""
        self._is_alone = True
        if self._run_handle is not None:
            os.close(self._run_handle)
            self._run_handle = None
        if self._guardian_lives():
            os.kill(self._guardian, signal.SIGCONT)

    def _guardian_ended(self) -> None:
        """Kill what it guarded, at the next look: if it ended in order, the pipe says so, which is read first."""
        self._guardian_mark = None
        if self._guardian_handle is not None:
            os.close(self._guardian_handle)
            self._guardian_handle = None
        self._kill_ms = steady_ms()

    def _hear(self) -> None:
        some = os.read(self._orders, 65536)
        if not some:
            self._is_done = True
            wait_for_end(lambda: os.getppid() != self._run and not self._guardian_lives())
            if self._survivors.end(self._roots) and self._session:
                self._end_dead_session(self._session)
            return
        *lines, self._buffer = (self._buffer + some).split(b"\n")
        for line in lines:
            order, _, word = line.decode().partition(" ")
            if order == "D" and self._guardian_mark is not None:
                self._kill_ms = int(word) + self._kill_after_ms + LATE_MS
            elif order == "I":
                self._session = word
            elif order == "P":
                self._survivors.has_group(int(word))
            elif order == "Q":
                self._is_done = True

    def _roots(self) -> list[int]:
        return [os.getpid(), self._guardian] if self._guardian_lives() else [os.getpid()]

    def _guardian_lives(self) -> bool:
        return self._guardian_mark is not None and process_mark(self._guardian) == self._guardian_mark
