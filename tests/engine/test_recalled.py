"""A decision by records that the store remembers is as right as one by records that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.core.commands import Acquire, Inspect, Release, Renew
from dibs.core.lease_outcomes import Released, Renewed
from dibs.core.limits import RECALL_PAUSE
from dibs.core.outcomes import Granted, Held
from dibs.core.records import lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Snapshot, StoreProxy
from tests.build import tries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.commands import Command
    from dibs.stores.port import Versioned

NAMES = ("x", "y", "path:a", "path:a/b")


class Remembering(StoreProxy):
    """Remembers what it read, and recalls only that, however old it is: the worst that a store may do."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.known: dict[str, Versioned] = {}
        self.reads = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        self.reads += 1
        snapshot = self.inner.read(keys)
        self.known.update(snapshot.records)
        return snapshot

    def recall(self, keys: Iterable[str]) -> Snapshot:
        fresh = self.inner.read(keys)
        found = {key: self.known.setdefault(key, record) for key, record in fresh.records.items()}
        return Snapshot(now_ms=fresh.now_ms, records=found, is_recalled=True)


class World:
    def __init__(self) -> None:
        self.truth = MemoryStore(lambda: 1_000)
        self.stores = [Remembering(self.truth), Remembering(self.truth)]
        self.servers = [Coordinator(store, pause=lambda s: None) for store in self.stores]


def acquire(who: str, name: str) -> Acquire:
    return Acquire(ns="d", name=name, principal="p", owner=who, ttl_ms=60_000, fresh_lease_id=f"{who}-{name}")


def command_of(kind: str, who: str, name: str) -> Command:
    if kind == "release":
        return Release(ns="d", name=name, principal="p", lease_id=f"{who}-{name}")
    if kind == "renew":
        return Renew(ns="d", name=name, principal="p", lease_id=f"{who}-{name}", ttl_ms=60_000)
    return acquire(who, name) if kind == "acquire" else Inspect(ns="d", name=name)


@pytest.mark.promise("excl")
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(("acquire", "release", "renew", "look", "read the lock alone")),
            st.sampled_from(("ann", "bob")),
            st.sampled_from(NAMES),
        ),
        max_size=40,
    )
)
@settings(max_examples=tries(100, 200))
def test_two_servers_that_remember_everything_answer_as_if_they_read_everything(
    asked: list[tuple[int, str, str, str]],
) -> None:
    world, reader = World(), Coordinator(MemoryStore(lambda: 1_000))
    for server, kind, who, name in asked:
        if kind == "read the lock alone":  # as a sweep does, without the tree
            world.stores[server].read([lock_key("d", name)])
            continue
        command = command_of(kind, who, name)
        assert world.servers[server].one(command) == reader.one(command)


@pytest.mark.fault("F-724")
@pytest.mark.promise("answer")
def test_what_a_renewal_did_not_look_at_may_be_older_than_the_lease() -> None:
    world = World()
    world.servers[0].one(acquire("ann", "path:b"))
    world.servers[1].one(acquire("bob", "path:a"))
    world.stores[0].read([lock_key("d", "path:a")])  # as a sweep does, without the tree
    renewed = world.servers[0].one(command_of("renew", "bob", "path:a"))
    assert isinstance(renewed, Renewed)


def test_an_answer_that_writes_nothing_is_compared_with_one_read() -> None:
    world = World()
    ann, bob = world.servers
    assert isinstance(ann.one(acquire("ann", "x")), Granted)
    world.stores[0].reads = 0
    assert isinstance(ann.one(acquire("bob", "x")), Held)
    assert world.stores[0].reads == 1
    assert isinstance(bob.one(command_of("release", "ann", "x")), Released)
    assert isinstance(ann.one(acquire("bob", "x")), Granted)


def test_an_answer_that_is_written_takes_no_read() -> None:
    world = World()
    (server, _), (store, _) = world.servers, world.stores
    assert isinstance(server.one(acquire("ann", "x")), Granted)
    assert store.reads == 0


def test_after_a_record_that_was_old_the_store_is_asked_for_a_while() -> None:
    world = World()
    (server, other), (store, _) = world.servers, world.stores
    assert isinstance(server.one(acquire("ann", "x")), Granted)
    assert isinstance(other.one(acquire("bob", "y")), Granted)
    assert isinstance(server.one(acquire("ann", "z")), Granted)
    assert store.reads == 0, "others wrote other records"
    assert isinstance(other.one(command_of("release", "ann", "x")), Released)
    assert isinstance(server.one(acquire("bob", "x")), Granted)
    assert store.reads == 1
    for number in range(RECALL_PAUSE + 3):
        assert isinstance(server.one(acquire("ann", f"another-{number}")), Granted)
    assert store.reads == 1 + RECALL_PAUSE
