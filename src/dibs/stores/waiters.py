"""Threads of this process that wait for a store: for an event, or for the deletion of one record.

A store that hears of commits wakes the waiters that a commit concerns. That is a hint: every waiter looks at the store
itself, at first, when it is woken, and now and then without that. So a hint that is lost costs time and nothing else.
"""

from __future__ import annotations

from _thread import allocate_lock
from binascii import crc32
from collections.abc import Callable, Container, Sequence

from dibs.base.clock import steady_ms

POLL_MS_MIN = 20
POLL_MS_MAX = 100


def mark_of(key: str) -> str:
    """The mark of a record in a hint. Two keys may share one: then a waiter is woken although nothing of its own has
    changed."""
    return f"{crc32(key.encode()):08x}"


def pauses(most_ms: int) -> Callable[[int], int]:
    """For `wait_until`: from POLL_MS_MIN on, each is twice as long as the one before, up to `most_ms`."""
    return lambda last_ms: min(most_ms, 2 * last_ms or POLL_MS_MIN)


def wait_until(
    is_so: Callable[[], bool], wait: Callable[[int], object], pause_ms: Callable[[int], int], timeout_ms: int
) -> bool:
    """Look until it is so, or the time is over. True if it is. Between two looks `wait` is called with a time, which
    `pause_ms` makes from the one before, 0 at first."""
    until_ms = steady_ms() + timeout_ms
    last_ms = 0
    while not is_so():
        left_ms = until_ms - steady_ms()
        if left_ms <= 0:
            return False
        last_ms = pause_ms(last_ms)
        wait(min(last_ms, left_ms))
    return True


class StoreWaiter:
    """Waits for any event (`key` None), or for the deletion of one record."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.heard = 0  # the newest event, by the hints since this wait began
        # A lock of CPython's own: taking and giving back are single instructions, which no interrupt divides.
        self._woken = allocate_lock()
        self._woken.acquire()

    def wake(self, heard: int) -> None:
        self.heard = max(self.heard, heard)
        if self._woken.locked():
            try:
                self._woken.release()
            except RuntimeError:
                pass  # another thread did it

    def wait(self, timeout_ms: int) -> None:
        self._woken.acquire(timeout=timeout_ms / 1000)


class StoreWaiters:
    """All that wait for one store. A store that hears of commits makes a subclass, which calls `wake`."""

    def __init__(self) -> None:
        self._waiting: list[StoreWaiter] = []
        self.on_gone: Callable[[Sequence[str]], None] = lambda marks: None  # see `Store.on_gone`

    def listen(self) -> None:
        """Begin to hear of commits. Called by every thread that waits."""

    def until(
        self, key: object, is_so: Callable[[StoreWaiter], bool], pause_ms: Callable[[int], int], timeout_ms: int
    ) -> bool:
        """Wait until it is so, or the time is over. True if it is."""
        waiter = StoreWaiter(key)
        waiting = self._waiting  # a forked child makes another list
        waiting.append(waiter)  # before the first look: nothing after it is missed
        try:
            self.listen()
            return wait_until(lambda: is_so(waiter), waiter.wait, pause_ms, timeout_ms)
        finally:
            waiting.remove(waiter)

    def wake(self, keys: Container[object], heard: int = 0) -> None:
        """Wake those who wait for one of these. `heard` is the newest event, 0 if that is not known."""
        for each in tuple(self._waiting):
            if each.key in keys:
                each.wake(heard)

    def wake_all(self) -> None:
        for each in tuple(self._waiting):
            each.wake(0)
