"""Virtual time on one thread: what is to be done next, and by which thread of which server."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

from dibs.base.errors import DibsError

Call = Callable[..., object]


class Stoppable(Protocol):
    is_dead: bool
    stopped_until_ms: int


START_MS = 1_700_000_000_000


class Killed(BaseException):
    """The server was killed in the middle of its work."""


class Timer:
    __slots__ = ("args", "at_ms", "call", "thread")

    def __init__(self, at_ms: int, thread: Thread | None, call: Call | None, args: tuple[Any, ...]) -> None:
        self.at_ms, self.thread, self.call, self.args = at_ms, thread, call, args

    def cancel(self) -> None:
        self.call = None


class Thread:
    """One thread of one server: it does one thing at a time, unless its server is stopped or dead."""

    def __init__(self, server: Stoppable) -> None:
        self.server = server
        self.is_busy = False
        self.waiting: list[Timer] = []


class Timeline:
    """Time that moves to the next thing to do. What is done may let time pass, in which other threads work."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.depth = 0  # how many calls let time pass
        self.steps = 0
        self.thread: Thread | None = None  # the one that works
        self.is_over = False
        self._heap: list[tuple[int, int, Timer]] = []
        self._number = 0

    def clock(self) -> int:
        return self.now_ms

    def later(self, ms: int, thread: Thread | None, call: Call, *args: Any) -> Timer:
        timer = Timer(self.now_ms + ms, thread, call, args)
        self._push(timer)
        return timer

    def _push(self, timer: Timer) -> None:
        self._number += 1
        heappush(self._heap, (timer.at_ms, self._number, timer))

    def pass_ms(self, ms: int) -> None:
        """Let time pass, in the middle of something."""
        until_ms = self.now_ms + ms
        self.depth += 1
        self.run(until_ms)
        self.depth -= 1
        self.now_ms = max(self.now_ms, until_ms)

    def run(self, until_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms and not self.is_over:
            timer = heappop(heap)[2]
            if timer.call is not None:
                self.now_ms = max(self.now_ms, timer.at_ms)
                self._do(timer)

    def _do(self, timer: Timer) -> None:
        thread, call, before = timer.thread, timer.call, self.thread
        assert call is not None
        if thread is None:
            self.steps += 1
            call(*timer.args)
        elif thread.server.is_dead:
            pass
        elif thread.is_busy:
            thread.waiting.append(timer)
        elif thread.server.stopped_until_ms > self.now_ms:
            timer.at_ms = thread.server.stopped_until_ms
            self._push(timer)
        else:
            self.steps += 1
            thread.is_busy, self.thread = True, thread
            try:
                call(*timer.args)
            except Killed:
                pass
            thread.is_busy, self.thread = False, before
            waiting, thread.waiting = thread.waiting, []
            for each in waiting:
                each.at_ms = self.now_ms
                self._push(each)


class Rounds:
    """Something that a thread does again and again: each time it says in how many milliseconds the next one is due, or
    fails and is tried again after a while."""

    def __init__(self, time: Timeline, thread: Thread, step: Callable[[], int], failed_ms: int) -> None:
        self._time, self._thread, self._step, self._failed_ms = time, thread, step, failed_ms
        self._next: Timer | None = None

    def hurry(self, within_ms: int = 0) -> None:
        """Do the next one no later than that."""
        if self._next is None or self._next.at_ms > self._time.now_ms + within_ms:
            if self._next is not None:
                self._next.cancel()
            self._next = self._time.later(within_ms, self._thread, self._do)

    def _do(self) -> None:
        self._next = None
        try:
            rest_ms = self._step()
        except DibsError:
            rest_ms = self._failed_ms
        self.hurry(rest_ms)
