"""Shared by the parts of the store contract: places, connections, time, and records to store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.base import clock
from dibs.core.events import Event
from dibs.core.records import Holder, LockRecord, Stored, lock_key
from dibs.stores.port import Store

Connect = Callable[[], Store]
PassTime = Callable[[int], None]

WAIT_S_MAX = 20.0  # no wait of the suite is longer, but for the end of threads, of which each may have much to do
HANG_S_MAX = 240.0


class ContractBase:
    """Fixtures. A subclass defines `open_store`, and may override `advance` and `place`."""

    def open_store(self, place: Any) -> Store:
        """A new connection to the data at `place`. The first connection finds no data."""
        raise NotImplementedError("say how your store is opened")

    def advance(self, place: Any, store: Store, ms: int) -> None:
        """Let `ms` milliseconds pass on the store's clock. This one waits: override it if the clock can be set."""
        until_ms = store.read(()).now_ms + ms
        give_up_ms = clock.steady_ms() + int(WAIT_S_MAX * 1000)
        while (now_ms := store.read(()).now_ms) < until_ms:
            assert clock.steady_ms() < give_up_ms, "the store's clock stands still"
            threading.Event().wait((until_ms - now_ms) / 1000)

    @pytest.fixture
    def place(self, tmp_path: Path) -> Any:
        """The place of this test's data, which holds nothing else."""
        return tmp_path

    @pytest.fixture
    def connect(self, place: Any) -> Iterator[Connect]:
        """Makes one more connection to this test's data. All are closed at the end of the test."""
        opened: list[Store] = []

        def connect() -> Store:
            opened.append(self.open_store(place))
            return opened[-1]

        yield connect
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, connect: Connect) -> Store:
        return connect()

    @pytest.fixture
    def pass_time(self, place: Any, store: Store) -> PassTime:
        return lambda ms: self.advance(place, store, ms)


def lock(name: str, *, token: int = 1, expires_ms: int = 10**15, ns: str = "default") -> LockRecord:
    holder = Holder(
        lease_id=f"lease-{token}",
        owner="agent-7",
        principal="alice",
        token=token,
        since_ms=1,
        renewed_ms=2,
        ttl_ms=3,
        expires_ms=expires_ms,
    )
    return LockRecord(ns=ns, name=name, token=token, holders=(holder,))


def key_of(name: str) -> str:
    return lock_key("default", name)


def event(job: str, *, at_ms: int = 1, token: int = 1, ns: str = "default") -> Event:
    return Event(at_ms=at_ms, kind="acquired", ns=ns, job=job, owner="agent-7", token=token)


def put(store: Store, *records: LockRecord, events: tuple[Event, ...] = ()) -> int:
    """Write records over whatever the store has."""
    puts: dict[str, Stored | None] = {lock_key(record.ns, record.name): record for record in records}
    return store.commit(versions(store, *puts), puts, events)


def record_of(store: Store, name: str) -> Stored | None:
    return store.read([key_of(name)]).records[key_of(name)].record


def drop(store: Store, *keys: str) -> None:
    store.commit(versions(store, *keys), dict.fromkeys(keys), ())


def versions(store: Store, *keys: str) -> dict[str, int]:
    return {key: found.version for key, found in store.read(keys).records.items()}


def in_threads(jobs: list[Callable[[], None]]) -> None:
    """Run all calls at once, wait for all, and raise the error of any of them."""
    gate = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            gate.wait(WAIT_S_MAX)
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S_MAX)
        assert not thread.is_alive(), "a thread of the test hangs"
    if errors:
        raise errors[0]
