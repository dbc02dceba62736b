"""A pool of doors for many threads: each door is lent to one caller at a time.

A forked child has its own, and neither uses nor closes its parent's: two processes cannot share a connection.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import finalize

from dibs.base.errors import StoreUnavailable
from dibs.client.door import Door
from dibs.client.embedded import EmbeddedDoor, SharedStore, close_all
from dibs.client.http import HttpDoor
from dibs.client.pending import SLICE_SECONDS
from dibs.client.settings import Settings, naming_of, servers_of

IDLE_MAX = 8
_left_alone: list[object] = []  # the parent's doors; dropping them would close them


class LentDoor:
    """A door for this caller alone until the block ends."""

    __slots__ = ("_door", "_doors", "_timeout_ms")

    def __init__(self, doors: Doors, timeout_ms: int) -> None:
        self._doors = doors
        self._timeout_ms = timeout_ms

    def __enter__(self) -> Door:
        door = self._door = self._doors.take()
        if isinstance(door, HttpDoor):
            door.timeout_ms = self._timeout_ms
        return door

    def __exit__(self, *_: object) -> None:
        self._doors.give_back(self._door)  # in any case: a broken connection has closed itself


class Doors:
    """As many doors as there are callers at a time. `timeout_ms` is for doors to a server."""

    slice_seconds = SLICE_SECONDS

    def __init__(self, settings: Settings, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Door] = []
        self._closed = False
        naming = naming_of(settings)
        servers = self.servers = servers_of(settings)
        self._open: Callable[[bool], Door]
        if servers is not None:
            self._open = lambda keep: HttpDoor(servers, naming=naming, timeout_ms=self.timeout_ms, keep=keep)
            finalize(self, close_all, self._idle, self._pid).atexit = False
        else:
            self.store = SharedStore(settings.url)
            self._open = lambda _: EmbeddedDoor(self.store.coordinator, naming)

    def one(self, timeout_ms: int | None = None) -> LentDoor:
        """`with doors.one() as door:`. `timeout_ms` limits calls to a server in this block."""
        most_ms = self.timeout_ms
        return LentDoor(self, most_ms if timeout_ms is None else max(1, min(timeout_ms, most_ms)))

    def own(self) -> Door:
        """A door that is never lent to anybody else. It keeps no connection, so it may be dropped without a word."""
        if self._closed:
            raise StoreUnavailable("This client was closed. Connect again.")
        return self._open(False)

    def take(self) -> Door:
        if os.getpid() != self._pid:
            _left_alone.append(self._idle)
            self._pid, self._idle, self._lock = os.getpid(), [], threading.Lock()
        with self._lock:
            if self._closed:
                raise StoreUnavailable("This client was closed. Connect again.")
            return self._idle.pop() if self._idle else self._open(True)

    def give_back(self, door: Door) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(door)
                return
        if self.servers is not None:
            door.close()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for door in idle:
            door.close()
        if self.servers is None:
            self.store.close()
