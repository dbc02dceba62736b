"""Which thread or task acquired what, through an object that several share. An object such as a Lock has many users.
Each claim belongs to the user that acquired it. If a user lost its claim without knowing it and another acquires the
lock, that is a new claim, and neither releases the other's.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Generic, TypeVar

T = TypeVar("T")
Acquirer = threading.Thread | asyncio.Task[object]


class Acquired(Generic[T]):
    """The acquired claims by acquirer: a thread, or a task of an event loop. If an acquirer has ended, anybody may take
    its claims: `asyncio.wait_for(lock.acquire(), 5)` has a task of its own for that one call before Python 3.12."""

    def __init__(self) -> None:
        self._entries: list[tuple[Acquirer, T]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, thing: T) -> None:
        """It belongs to the current thread or task."""
        # One call that cannot be interrupted, and no lock: an interrupt between two calls would lose the claim.
        self._entries.append((_acquirer(), thing))

    def mine(self) -> T | None:
        """The newest claim of the current thread or task."""
        entry = self._mine(_acquirer())
        return None if entry is None else entry[1]

    def take(self) -> T | None:
        """The same, and remove it."""
        me = _acquirer()
        with self._lock:
            entry = self._mine(me)
            if entry is None:
                return None
            self._entries.remove(entry)
            return entry[1]

    def _mine(self, me: Acquirer) -> tuple[Acquirer, T] | None:
        entries = self._entries[::-1]
        own = next((entry for entry in entries if entry[0] is me), None)
        return own or next((entry for entry in entries if _is_over(entry[0])), None)


def _acquirer() -> Acquirer:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    return threading.current_thread() if task is None else task


def _is_over(acquirer: Acquirer) -> bool:
    return not acquirer.is_alive() if isinstance(acquirer, threading.Thread) else acquirer.done()
