"""A pool of transports for many threads: each transport is lent to one caller at a time.

A forked child has its own, and neither uses nor closes its parent's: two processes cannot share a connection.
"""

from __future__ import annotations

import os
import threading

from dibs.base.cheap import Callable
from dibs.base.errors import StoreUnavailable
from dibs.client.pending import SLICE_SECONDS
from dibs.client.settings import Settings, naming_of, servers_of
from dibs.client.transport import Transport, close_all

IDLE_MAX = 8
_left_alone: list[object] = []  # the parent's transports; dropping them would close them


class LentTransport:
    """A transport for this caller alone until the block ends."""

    __slots__ = ("_timeout_ms", "_transport", "_transports")

    def __init__(self, transports: TransportPool, timeout_ms: int) -> None:
        self._transports = transports
        self._timeout_ms = timeout_ms

    def __enter__(self) -> Transport:
        transport = self._transport = self._transports.take()
        if self._transports.servers is not None:
            transport.timeout_ms = self._timeout_ms  # type: ignore[attr-defined]  # an HttpTransport
        return transport

    def __exit__(self, *_: object) -> None:
        self._transports.give_back(self._transport)  # in any case: a broken connection has closed itself


class TransportPool:
    """As many transports as there are callers at a time. `timeout_ms` is for transports to a server."""

    slice_seconds = SLICE_SECONDS

    def __init__(self, settings: Settings, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Transport] = []
        self._closed = False
        naming = naming_of(settings)
        servers = self.servers = servers_of(settings)
        self._open: Callable[[bool], Transport]
        if servers is not None:
            from weakref import finalize

            from dibs.client.http import HttpTransport

            self._open = lambda keep: HttpTransport(servers, naming=naming, timeout_ms=self.timeout_ms, keep=keep)
            finalize(self, close_all, self._idle, self._pid).atexit = False
        else:
            from dibs.client.embedded import EmbeddedTransport, SharedStore

            self.store = SharedStore(settings.url)
            self._open = lambda _: EmbeddedTransport(self.store.coordinator, naming)

    def one(self, timeout_ms: int | None = None) -> LentTransport:
        """`with transports.one() as transport:`. `timeout_ms` limits calls to a server in this block."""
        most_ms = self.timeout_ms
        return LentTransport(self, most_ms if timeout_ms is None else max(1, min(timeout_ms, most_ms)))

    def own(self) -> Transport:
        """A transport that is never lent to anybody else. It keeps no connection, so it may be dropped at any time."""
        if self._closed:
            raise StoreUnavailable("This client was closed. Connect again.")
        return self._open(False)

    def take(self) -> Transport:
        if os.getpid() != self._pid:
            _left_alone.append(self._idle)
            self._pid, self._idle, self._lock = os.getpid(), [], threading.Lock()
        with self._lock:
            if self._closed:
                raise StoreUnavailable("This client was closed. Connect again.")
            return self._idle.pop() if self._idle else self._open(True)

    def give_back(self, transport: Transport) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(transport)
                return
        if self.servers is not None:
            transport.close()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for transport in idle:
            transport.close()
        if self.servers is None:
            self.store.close()
