"""A store takes only so many records in one commit: batches are split, and one command that needs more is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.commands import Acquire, AcquireAll, EndSession, Inspect, InspectSession, OpenSession, Sweep
from dibs.core.lease_outcomes import SessionState
from dibs.core.outcomes import Granted, GrantedAll, Held, Queued
from dibs.errors import InvalidInput
from dibs.ids import new_id
from dibs.service.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.stores.port import CommitTooLarge, Conflict
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.records import Stored

KEYS_MAX = 16


class SmallCommits(MemoryStore):
    capabilities = MemoryStore.capabilities.replace(commit_keys_max=KEYS_MAX)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.sizes: list[int] = []
        self.overtaken = 0  # how many of the next commits are too late

    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
        assert set(puts) <= set(expect)
        assert len(expect) <= KEYS_MAX
        self.sizes.append(len(expect))
        if self.overtaken:
            self.overtaken -= 1
            raise Conflict
        return super().commit(expect, puts, events)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = SmallCommits(self.clock)
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
def test_a_large_batch_is_committed_in_parts_and_everybody_is_answered_in_order(
    world: World, overtaken: int
) -> None:
    world.store.overtaken = overtaken
    results = world.run(
        *[acquire(f"job-{number}") for number in range(100)],
        *[acquire(f"job-{number}", "late") for number in range(100)],
    )
    assert [type(each) for each in results] == [Granted] * 100 + [Held] * 100
    assert max(world.store.sizes) > KEYS_MAX // 2, "parts smaller than they need to be"


def test_one_command_that_needs_more_than_a_commit_is_told_so_and_the_others_are_served(world: World) -> None:
    first, too_large, last = world.run(acquire("x"), acquire_all(KEYS_MAX + 1), acquire("y"))
    assert isinstance(first, Granted)
    assert isinstance(last, Granted)
    assert isinstance(too_large, InvalidInput)
    assert (
        str(too_large) == "This takes 18 records in one write; the store can write 16. Ask for fewer at once."
    )
    assert [event.job for event in world.store.events(0, 10)] == ["x", "y"], "nothing of it was written"


def test_one_that_just_fits_is_served(world: World) -> None:
    _, fits = world.run(acquire("x"), acquire_all(KEYS_MAX - 1))
    assert isinstance(fits, GrantedAll)
    assert max(world.store.sizes) == KEYS_MAX


def test_looking_has_no_limit(world: World) -> None:
    looks = world.run(*[Inspect(ns="d", name=f"job-{number}") for number in range(5 * KEYS_MAX)])
    assert not [each for each in looks if isinstance(each, BaseException)]
    world.run(OpenSession(fresh_id="s", principal="a", owner="a", ttl_ms=60_000))
    world.run(*[acquire(f"job-{number}", session="s") for number in range(3 * KEYS_MAX)])
    (state,) = world.run(InspectSession(session="s", principal=None))
    assert isinstance(state, SessionState)
    assert len(state.holds) == 3 * KEYS_MAX


@pytest.mark.promise("session")
@pytest.mark.parametrize("ended", ["by its owner", "by silence"])
def test_a_session_that_holds_more_than_a_commit_can_carry_frees_all_of_it(world: World, ended: str) -> None:
    count = 4 * KEYS_MAX
    world.run(OpenSession(fresh_id="s", principal="a", owner="a", ttl_ms=10_000))
    world.run(*[acquire(f"job-{number}", session="s") for number in range(count)])
    waiting = world.run(*[acquire(f"job-{number}", "next", wait=True) for number in range(count)])
    assert {type(each) for each in waiting} == {Queued}
    if ended == "by its owner":
        world.run(EndSession(session="s", principal="a"))
    else:
        world.clock.advance(10_000)
    world.sweep_all()
    owners = [
        each.lock.holders[0].owner
        for each in world.run(*[Inspect(ns="d", name=f"job-{n}") for n in range(count)])
    ]
    assert owners == ["next"] * count


class ShortTexts(MemoryStore):
    """Takes so many characters in one write."""

    room = 10_000

    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
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


def test_a_batch_whose_text_is_too_long_is_written_in_parts_and_one_command_that_is_too_long_is_told() -> (
    None
):
    store = ShortTexts(ManualClock())
    lengths = [100] * 20 + [1_000] * 20 + [11_000] + [10] * 20
    commands = [_long_claim(number, length) for number, length in enumerate(lengths)]
    results = Coordinator(store).run(commands)
    assert isinstance(results[40], CommitTooLarge)
    assert {type(each) for at, each in enumerate(results) if at != 40} == {Granted}
    assert len(store.scan("lock/")) == len(commands) - 1
