"""Jobs in memory, for tests of code that uses dibs: no server, no file, and time that moves when the test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dibs.client.pool import TransportPool
from dibs.core.durations import Duration, duration_ms
from dibs.engine.coordinator import Coordinator
from dibs.sdk import default
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.client import Client
from dibs.sdk.heart import WATCHDOG
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock


class MemoryDibs:
    """Any number of clients with the same jobs. Leases run out only when `advance` moves the time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._store = MemoryStore(self.clock)
        self._transports: list[TransportPool] = []

    def client(self, owner: str = "test", namespace: str | None = None) -> Client:
        """A client for threads. All clients of one MemoryDibs see the same jobs, and exclude each other."""
        client = Client("memory://", owner=owner, namespace=namespace)
        self._share(client._transports)
        return client

    def async_client(self, owner: str = "test", namespace: str | None = None) -> AsyncClient:
        """A client for event loops, with the same jobs."""
        client = AsyncClient("memory://", owner=owner, namespace=namespace)
        self._share(client._transports.transports)
        return client

    def _share(self, transports: TransportPool) -> None:
        transports.store = _Shared(self._store)  # type: ignore[assignment]  # it has what is asked of it
        self._transports.append(transports)

    def advance(self, time: Duration) -> None:
        """Let time pass for every lease. A claim that runs out learns of it at once: `check()` raises LeaseLost."""
        ms = duration_ms(time, "time")
        self.clock.advance(ms)
        for transports in self._transports:
            for heart in WATCHDOG.hearts_of(transports):
                heart.pass_time(ms)

    @contextmanager
    def as_default(self, owner: str = "test") -> Iterator[MemoryDibs]:
        """Inside the block `dibs.claim`, `dibs.exclusive`, `dibs.Lock` and the job functions use these jobs."""
        asked = default._asked()
        ours: dict[Any, Any] = {
            (Client, asked): self.client(owner),
            (AsyncClient, asked): self.async_client(owner),
        }
        before = {key: default._clients.get(key) for key in ours}
        default._clients.update(ours)
        try:
            yield self
        finally:
            for key, client in before.items():
                if client is None:
                    default._clients.pop(key, None)
                else:
                    default._clients[key] = client


def memory_client(owner: str = "test") -> Client:
    """A client with jobs of its own, in memory."""
    return MemoryDibs().client(owner)


class _Shared:
    """The store as one of several clients has it: closing that client leaves the store open."""

    def __init__(self, store: MemoryStore) -> None:
        self._coordinator = Coordinator(store)

    def coordinator(self) -> Coordinator:
        return self._coordinator

    def close(self) -> None:
        pass
