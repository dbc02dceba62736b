"""A repeat finds its place in line, however long the line is, and reads nobody else's ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.commands import Acquire, AcquireAll, OpenSession, Release
from dibs.core.outcomes import Granted, Queued
from dibs.core.records import LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.faulty import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.draft import HandedOver
    from dibs.stores.port import Snapshot

NS, JOB = "default", "job"
KEY = lock_key(NS, JOB)


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.keys: list[str] = []

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        self.keys += asked
        return super().read(asked)


class World:
    def __init__(self) -> None:
        self.store = Counting()
        self.line = FaultyStore(self.store)
        self.handed: list[HandedOver] = []
        self.coordinator = Coordinator(self.line, on_handed=self.handed.extend)
        self.coordinator.one(wait("owner", ttl_ms=86_400_000))

    def lock(self) -> LockRecord:
        record = self.store.read([KEY]).records[KEY].record
        assert isinstance(record, LockRecord)
        return record

    def reads(self, command: Acquire) -> tuple[Any, set[str]]:
        self.store.keys.clear()
        return self.coordinator.one(command), set(self.store.keys)


@pytest.fixture
def world() -> World:
    return World()


def wait(who: str, **more: Any) -> Acquire:
    made = Acquire(ns=NS, name=JOB, principal="p", owner=who, ttl_ms=60_000, fresh_lease_id=f"id-{who}", wait=True)
    return made.replace(**more)


def crowd(world: World, count: int, **more: Any) -> None:
    world.coordinator.run([wait(f"w{number}", **more) for number in range(count)])
    assert len(world.lock().line) == count


KINDS = {
    "a stranger": {},
    "with a request key": {"request_key": "k"},
    "with a session": {"session": "s"},
    "with both": {"session": "s", "request_key": "k"},
}


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("kind", KINDS)
def test_a_waiter_behind_three_hundred_reads_a_handful_of_keys(world: World, kind: str) -> None:
    world.coordinator.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="s", ttl_ms=60_000))
    crowd(world, 300)
    first, keys = world.reads(wait("late", **KINDS[kind]))
    assert (first.ticket, first.position) == (301, 301)
    assert len(keys) <= 7, keys
    again, keys = world.reads(wait("late", **KINDS[kind]))
    assert (again.ticket, again.ticket_id) == (301, first.ticket_id)
    assert len(keys) <= 7, keys
    shown = wait("late", **KINDS[kind], ticket=301, ticket_id=first.ticket_id, fresh_lease_id="other")
    again, keys = world.reads(shown)
    assert again.ticket == 301
    assert len(keys) <= 7, keys
    others = [f"ticket/{NS}/{number}/{JOB}" for number in range(3, 301)]
    assert not keys.intersection(others), "it reads other waiters' tickets, and conflicts with them"


@pytest.mark.promise("idem:acquire", "queue:one-wake")
@pytest.mark.parametrize("keyed", [False, True], ids=["by id", "by key"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one write", "one by one"])
def test_forty_waiters_whose_replies_were_lost_are_forty_places(world: World, at_once: bool, keyed: bool) -> None:
    asks = [wait(f"w{number}", request_key=f"k{number}" if keyed else None) for number in range(40)]
    batches = [asks] if at_once else [[each] for each in asks]
    results = []
    for batch in batches:
        world.line.faults = ["lost after", "lost after"]
        results += world.coordinator.run(batch)
    assert [each.position for each in results if isinstance(each, Queued)] == list(range(1, 41))
    assert len(world.lock().line) == 40
    world.line.faults.clear()
    served = 0
    while world.lock().holders:
        (holder,) = world.lock().holders
        world.coordinator.one(Release(ns=NS, name=JOB, principal="p", lease_id=holder.lease_id))
        served += 1
    assert served == 41, "somebody was served twice, or not at all"
    assert [each.number for each in world.handed] == list(range(1, 41))


@pytest.mark.promise("idem:acquire", "all-or-nothing")
def test_forty_waiters_for_several_jobs_whose_replies_were_lost_are_forty_places(world: World) -> None:
    both = AcquireAll(
        ns=NS,
        names=(JOB, "other"),
        principal="p",
        owner="w",
        ttl_ms=60_000,
        fresh_lease_id="",
        wait=True,
    )
    world.line.faults = ["lost after"]
    results = world.coordinator.run([both.replace(fresh_lease_id=f"w{number}") for number in range(40)])
    assert [each.ticket for each in results if isinstance(each, Queued)] == list(range(1, 41))
    assert len(world.lock().line) == 40


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("proof", ["ticket", "session", "key"])
def test_a_place_for_several_jobs_is_not_taken_for_one_and_does_not_double_it(world: World, proof: str) -> None:
    """The same session, key or ticket stands in line for two jobs already, and now asks for the first of them alone."""
    world.coordinator.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="s", ttl_ms=60_000))
    same = {"session": "s"} if proof == "session" else {"request_key": "k"} if proof == "key" else {}
    several = AcquireAll(
        ns=NS, names=(JOB, "other"), principal="p", owner="w", ttl_ms=60_000, fresh_lease_id="w", wait=True
    )
    both = world.coordinator.one(several.replace(**same))
    assert isinstance(both, Queued)
    shown = {"ticket": both.ticket, "ticket_id": both.ticket_id} if proof == "ticket" else {}
    for _ in range(3):
        world.line.faults = ["lost after"]
        alone = world.coordinator.one(wait("alone", **same, **shown))
        assert isinstance(alone, Queued)
        assert alone.ticket == 2
    assert world.lock().line == (1, 2)


@pytest.mark.promise("idem:acquire")
def test_marks_that_are_alike_prove_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binascii.crc32", lambda text: 7)
    asks = [wait("q", request_key="k2", principal="q"), wait("p1", request_key="k1"), wait("p2")]
    asks += [wait("mine", request_key="k2"), wait("mine", request_key="k2"), wait("p2")]
    results = world.coordinator.run(asks)
    assert [each.ticket for each in results if isinstance(each, Queued)] == [1, 2, 3, 4, 4, 3]


def test_a_line_that_shrinks_from_everywhere_keeps_its_marks(world: World) -> None:
    crowd(world, 20)
    for number in (0, 19, 7, 8, 3):
        world.coordinator.one(wait(f"w{number}", wait=False, ticket=number + 1, ticket_id=f"id-w{number}"))
    for number in (5, 12, 18):
        again = world.coordinator.one(wait(f"w{number}"))
        assert isinstance(again, Queued)
        assert again.ticket == number + 1
    assert isinstance(world.coordinator.one(wait("owner")), Granted)
