"""A store says how many commands are best decided in one commit, and takes every single decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, AcquireAll, EndSession, Inspect, InspectSession, OpenSession, Sweep
from dibs.core.limits import FREED_MAX
from dibs.core.outcomes import Granted, GrantedAll, Held, Queued
from dibs.core.session_outcomes import SessionState
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.stores.port import CommitTooLarge, Conflict
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.port import Snapshot

BATCH_MAX = 16


class SmallBatches(MemoryStore):
    capabilities = MemoryStore.capabilities.replace(batch_max=BATCH_MAX)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.sizes: list[int] = []
        self.overtaken = 0  # how many of the next commits are too late
        self.reads = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        self.reads += 1
        return super().read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        assert set(puts) <= set(expect)
        self.sizes.append(len(expect))
        if self.overtaken:
            self.overtaken -= 1
            raise Conflict
        return super().commit(expect, puts, events)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = SmallBatches(self.clock)
        self.coordinator = Coordinator(self.store, pause=lambda seconds: None)

    def run(self, *commands: Command) -> list[Any]:
        return self.coordinator.run(commands)

    def sweep_all(self) -> int:
        rounds = 0
        while keys := self.store.due(1).keys:
            self.run(*[Sweep(key=key) for key in keys])
            rounds += 1
            assert rounds < 1_000
        return rounds


@pytest.fixture
def world() -> World:
    return World()


def acquire(name: str, who: str = "a", **fields: Any) -> Acquire:
    claim: dict[str, Any] = {"ns": "d", "principal": who, "owner": who, "ttl_ms": 60_000}
    return Acquire(name=name, fresh_lease_id=new_id(), **{**claim, **fields})


def acquire_all(count: int, **fields: Any) -> AcquireAll:
    names = tuple(f"all-{number}" for number in range(count))
    claim: dict[str, Any] = {"ns": "d", "principal": "a", "owner": "a", "ttl_ms": 60_000}
    return AcquireAll(names=names, fresh_lease_id=new_id(), **{**claim, **fields})


@pytest.mark.parametrize("overtaken", [0, 1, 5])
def test_a_large_batch_is_committed_in_parts_and_everybody_is_answered_in_order(world: World, overtaken: int) -> None:
    world.store.overtaken = overtaken
    results = world.run(
        *[acquire(f"job-{number}") for number in range(100)],
        *[acquire(f"job-{number}", "late") for number in range(100)],
    )
    assert [type(each) for each in results] == [Granted] * 100 + [Held] * 100
    assert max(world.store.sizes) == BATCH_MAX + 1, "the jobs of one batch, and what all of them look at"


@pytest.mark.fault("F-035")
def test_one_command_that_needs_many_records_is_one_commit(world: World) -> None:
    _, granted, last = world.run(acquire("x"), acquire_all(100), acquire("y"))
    assert isinstance(granted, GrantedAll)
    assert isinstance(last, Granted)
    assert world.store.sizes == [103]


def test_looking_has_no_limit(world: World) -> None:
    looks = world.run(*[Inspect(ns="d", name=f"job-{number}") for number in range(5 * BATCH_MAX)])
    assert not [each for each in looks if isinstance(each, BaseException)]
    world.run(OpenSession(ns="default", fresh_id="s", principal="a", owner="a", ttl_ms=60_000))
    world.run(*[acquire(f"job-{number}", session="s") for number in range(3 * BATCH_MAX)])
    (state,) = world.run(InspectSession(session="s", principal=None))
    assert isinstance(state, SessionState)
    assert len(state.holds) == 3 * BATCH_MAX


@pytest.mark.promise("session")
@pytest.mark.parametrize(
    ("ended", "count", "commits"),
    [("by its owner", 200, 1), ("by silence", 200, 1), ("by its owner", FREED_MAX + 1, 2)],
)
def test_a_session_that_holds_many_jobs_hands_all_of_them_over_at_once(
    world: World, ended: str, count: int, commits: int
) -> None:
    world.run(OpenSession(ns="default", fresh_id="s", principal="a", owner="a", ttl_ms=10_000))
    world.run(*[acquire(f"job-{number}", session="s") for number in range(count)])
    waiting = world.run(*[acquire(f"job-{number}", "next", wait=True) for number in range(count)])
    assert {type(each) for each in waiting} == {Queued}
    before, reads = len(world.store.sizes), world.store.reads
    if ended == "by its owner":
        world.run(EndSession(session="s", principal="a"))
    else:
        world.clock.advance(10_000)
    world.sweep_all()
    assert len(world.store.sizes) - before == commits
    assert world.store.reads - reads < 20, "a read for each job"
    owners = [
        each.lock.holders[0].owner for each in world.run(*[Inspect(ns="d", name=f"job-{n}") for n in range(count)])
    ]
    assert owners == ["next"] * count


class ShortTexts(MemoryStore):
    """Takes so many characters in one write."""

    room = 10_000

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if len(repr(puts)) > self.room:
            raise CommitTooLarge("too long")
        return super().commit(expect, puts, events)


def _long_claim(number: int, length: int) -> Acquire:
    return Acquire(
        ns="default",
        name=f"job-{number}",
        principal="p",
        owner="a",
        ttl_ms=60_000,
        metadata="x" * length,
        fresh_lease_id=new_id(),
    )


def test_a_batch_whose_text_is_too_long_is_written_in_parts_and_one_command_that_is_too_long_is_reported() -> None:
    store = ShortTexts(ManualClock())
    lengths = [100] * 20 + [1_000] * 20 + [11_000] + [10] * 20
    commands = [_long_claim(number, length) for number, length in enumerate(lengths)]
    results = Coordinator(store).run(commands)
    assert isinstance(results[40], CommitTooLarge)
    assert {type(each) for at, each in enumerate(results) if at != 40} == {Granted}
    assert len(store.scan("lock/")) == len(commands) - 1
