"""Jobs in memory, for tests of code that uses dibs: no server, no file, and time that moves when the test says so."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.durations import duration_ms
from dibs.sdk import default
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.client import Client
from dibs.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.core.durations import Duration


# Time that moves when a test says so.


class ManualClock:
    """A machine's clocks: a steady one, a wall clock that can be stepped, and boots.

    Calling it gives the time of a store that was anchored when the clock was made, for `MemoryStore`; `steady_ms`,
    `wall_ms` and `boot_id` are what `SqliteStore` takes.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, steady_ms: int = 5_000_000) -> None:
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._offset_ms = wall_ms - steady_ms
        self._boots = 1

    def __call__(self) -> int:
        return self._offset_ms + self._steady_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def advance(self, ms: int) -> None:
        """Let time pass, suspend included."""
        assert ms >= 0, "time does not run backwards; step_wall does"
        self._steady_ms += ms
        self._wall_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock, forwards or back."""
        self._wall_ms += ms

    def reboot(self, *, steady_ms: int = 1_000) -> None:
        """Restart the machine: steady time begins anew. Step the wall clock as well if the test needs it."""
        self._boots += 1
        self._offset_ms += self._steady_ms - steady_ms
        self._steady_ms = steady_ms


class MemoryDibs:
    """Any number of clients with the same jobs. Leases run out only when `advance` moves the time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._store = MemoryStore(self.clock)

    def client(self, owner: str = "test", namespace: str | None = None) -> Client:
        """A client for threads. All clients of one MemoryDibs see the same jobs, and exclude each other."""
        client = Client("memory://", owner=owner, namespace=namespace)
        client._doors._store = _Shared(self._store)  # type: ignore[assignment]  # it has what is asked of it
        return client

    def async_client(self, owner: str = "test", namespace: str | None = None) -> AsyncClient:
        """A client for event loops, with the same jobs."""
        client = AsyncClient("memory://", owner=owner, namespace=namespace)
        client._door._store = _Shared(self._store)  # type: ignore[attr-defined]  # the door to a store has it
        return client

    def advance(self, time: Duration) -> None:
        """Let time pass for every lease. A claim of this process that ran out learns of it with its next request: at
        a checkpoint, at a heartbeat, at the end of its block."""
        self.clock.advance(duration_ms(time, "time"))

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
        self._store = store

    def get(self) -> MemoryStore:
        return self._store

    def close(self) -> None:
        pass


# Fixtures for pytest. In your conftest.py: `pytest_plugins = ["dibs.testing.clients"]`.


@pytest.fixture
def memory_dibs() -> Iterator[MemoryDibs]:
    """Jobs in memory that `dibs.claim` and the others use during the test. Each test has its own."""
    with MemoryDibs().as_default() as jobs:
        yield jobs
