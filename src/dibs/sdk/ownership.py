"""Who acquired what through an object that several threads or tasks share.

An object such as a Lock is asked by many. What one of them got belongs to that one. Another who comes later, because
the first lost it and does not know yet, gets something else, and neither lets go of the other's.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Generic, TypeVar

T = TypeVar("T")
Acquirer = threading.Thread | asyncio.Task[object]


class Acquired(Generic[T]):
    """What was acquired, by acquirer: a thread, or a task of an event loop.

    What an acquirer left behind when it ended may be taken up by anybody: `asyncio.wait_for(lock.acquire(), 5)` has a
    task of its own for that one call before Python 3.12."""

    def __init__(self) -> None:
        self._entries: list[tuple[Acquirer, T]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, thing: T) -> None:
        """It belongs to whoever runs this."""
        # One call that cannot be interrupted, and no lock: an interrupt between the two would leave it unknown.
        self._entries.append((_acquirer(), thing))

    def mine(self) -> T | None:
        """The newest that belongs to whoever runs this."""
        entry = self._mine(_acquirer())
        return None if entry is None else entry[1]

    def take(self) -> T | None:
        """The same, which then belongs to nobody any more."""
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
