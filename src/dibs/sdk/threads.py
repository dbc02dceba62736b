"""Threads and events that an interrupt cannot break.

Ctrl-C and alarms raise in the main thread, between any two steps. `threading.Event` and `Thread.start` take a lock
inside functions written in Python. An interrupt can come after the lock was taken and before it is released; the next
thread then waits for ever. The classes here do each such step in one call that cannot be interrupted half-way.
"""

from __future__ import annotations

import _thread
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

START_SECONDS_MAX = 1.0


class Waker:
    """Wakes one thread. A ring that comes before the thread waits is not lost."""

    def __init__(self) -> None:
        self._silent = _thread.allocate_lock()
        self._silent.acquire()

    def wake(self) -> None:
        try:
            self._silent.release()
        except RuntimeError:  # it was rung already, and nobody has waited since
            pass

    def wait(self, seconds: float) -> bool:
        """Whether it was rung."""
        return self._silent.acquire(timeout=max(0.0, seconds))


class SafeEvent(threading.Event):
    """An event that stays usable if the thread that sets it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._wakers: list[Waker] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for waker in list(self._wakers):
            waker.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        waker = Waker()
        self._wakers.append(waker)
        try:
            if not self.is_set():
                waker.wait(threading.TIMEOUT_MAX if timeout is None else timeout)
            return self.is_set()
        finally:
            self._wakers.remove(waker)


def start_thread(target: Callable[[], None], name: str, *, daemon: bool) -> None:
    """Start a thread from any thread, including the main one. Raises RuntimeError if no more threads can be started."""
    begun = Waker()
    failed: list[RuntimeError] = []

    def begin() -> None:  # not in the main thread: no interrupt comes here
        try:
            threading.Thread(target=target, name=name, daemon=daemon).start()
        except RuntimeError as error:
            failed.append(error)
        begun.wake()

    _thread.start_new_thread(begin, ())
    begun.wait(START_SECONDS_MAX)
    if failed:
        raise failed[0]
