"""Several servers on one store: an outage is a time in which none of them could serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Freeze, OpenSession, Thaw
from dibs.core.limits import PULSE_KEPT_MS, PULSE_LATE_MS, PULSE_MS
from dibs.core.outcomes import Granted, Held
from dibs.core.records import META_KEY, PULSE_PREFIX, Meta, pulse_key
from dibs.engine.coordinator import Coordinator
from dibs.engine.decider import Decider
from dibs.engine.pulses import pulses_of
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Conflict, StoreProxy
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.core.events import Event
    from dibs.core.records import Outage, Stored
    from dibs.engine.coordinator import Result
    from dibs.stores.port import Store

credit = pytest.mark.promise("lease:outage-credit")


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.began_ms = self.clock()

    def start(self, store: Store | None = None) -> Decider:
        decider = Decider(
            store or self.store, lambda events, seq: None, self.clock.steady_ms, pause=lambda seconds: None
        )
        decider.beat_if_due()
        return decider

    def pass_ms(self, ms: int, *alive: Decider) -> None:
        """Time passes; these servers do what a server does meanwhile, and others are down or stopped."""
        for _ in range(0, ms, 100):
            self.clock.advance(100)
            for decider in alive:
                decider.beat_if_due()

    def outages(self) -> tuple[Outage, ...]:
        meta = self.store.read((META_KEY,)).records[META_KEY].record
        return meta.outages if isinstance(meta, Meta) else ()


def acquire(decider: Decider, who: str = "a", ttl_ms: int = 10_000, name: str = "job") -> Result:
    claim = Acquire(ns="d", name=name, principal=who, owner=who, ttl_ms=ttl_ms, fresh_lease_id=new_id())
    return decider.run([claim])[0]


@pytest.fixture
def world() -> World:
    return World()


@credit
def test_a_server_that_was_down_while_another_served_notes_no_outage(world: World) -> None:
    one, _ = world.start(), world.start()
    acquire(one, ttl_ms=2_000)
    world.pass_ms(60_000, one)
    restarted = world.start()
    assert isinstance(acquire(restarted, "b"), Granted), "its owner could have renewed at the other server"
    assert world.outages() == ()


@credit
def test_a_server_that_was_paused_while_another_served_notes_no_outage(world: World) -> None:
    one, two = world.start(), world.start()
    acquire(two, ttl_ms=2_000)
    world.pass_ms(60_000, one)
    assert isinstance(acquire(two, "b"), Held), "it does not know yet whether anybody served"
    two.beat_if_due()
    assert isinstance(acquire(two, "b"), Granted)
    assert world.outages() == ()


@credit
def test_when_all_were_away_the_first_one_back_notes_it_and_the_others_do_not_again(world: World) -> None:
    servers = [world.start() for _ in range(3)]
    acquire(servers[0], ttl_ms=2_000)
    world.pass_ms(600, *servers)
    last_ms = world.clock()
    world.clock.advance(60_000)
    for decider in servers:
        assert isinstance(acquire(decider, "b"), Held)
        decider.beat_if_due()
        assert isinstance(acquire(decider, "b"), Held)
    (outage,) = world.outages()
    assert (outage.began_ms, outage.ended_ms) == (last_ms, world.clock())


class Late(StoreProxy):
    """Just before its next commit, another does something."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.others: list[Decider] = []

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self.others:
            self.others.pop().beat_if_due()
        return super().commit(expect, puts, events)


@credit
def test_two_that_come_back_at_the_same_moment_note_one_outage(world: World) -> None:
    late = Late(world.store)
    one, two = world.start(late), world.start()
    acquire(two, ttl_ms=2_000)
    world.clock.advance(60_000)
    late.others = [two]
    one.beat_if_due()
    assert not late.others
    assert len(world.outages()) == 1


@credit
def test_servers_that_crash_one_after_the_other_faster_than_a_silence_is_noticed_are_found_out(
    world: World,
) -> None:
    last = world.start()
    acquire(last, ttl_ms=10_000)
    for _ in range(8):
        world.clock.advance(1_400)
        last = world.start()
    assert isinstance(acquire(last, "b"), Held)


@credit
def test_a_silence_that_is_no_outage_is_none_although_a_server_comes_up_after_it(world: World) -> None:
    acquire(world.start(), ttl_ms=1_000)
    world.clock.advance(PULSE_LATE_MS)
    again = world.start()
    world.pass_ms(PULSE_MS, again)
    assert isinstance(acquire(again, "b"), Granted)
    assert world.outages() == ()


def test_servers_that_nobody_needs_write_nothing_and_miss_nothing(world: World) -> None:
    """No pulse is written while nobody has anything: the next server to come up must not take that for an outage."""
    one = world.start()
    for _ in range(100):
        world.clock.advance(PULSE_MS)
        one.liveness.tick()
    world.start()
    assert world.outages() == ()


@credit
def test_a_session_is_something_to_be_lost(world: World) -> None:
    opened = OpenSession(ns="default", fresh_id="s", principal="p", owner="o", ttl_ms=10_000)
    world.start().run([opened])
    world.clock.advance(60_000)
    world.start()
    assert len(world.outages()) == 1


class Counted(StoreProxy):
    """Counts who was first where, and which records a commit compares."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.conflicts = 0
        self.compared: set[str] = set()

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self.compared |= set(expect)
        try:
            return super().commit(expect, puts, events)
        except Conflict:
            self.conflicts += 1
            raise


def test_the_beats_of_servers_that_are_up_compare_nothing_but_their_own_record(world: World) -> None:
    counted = Counted(world.store)
    servers = [world.start(counted) for _ in range(3)]
    acquire(servers[0])
    counted.compared.clear()
    world.pass_ms(10 * PULSE_MS, *servers)
    assert counted.compared == {pulse_key(each.server) for each in servers}
    assert counted.conflicts == 0


class Contended(StoreProxy):
    """Another writer is always first, for a while. Only pulses have no other writer: they go on meanwhile."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self.clock = clock
        self.left = 0
        self.meanwhile: list[Decider] = []

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self.left and not all(key.startswith(PULSE_PREFIX) for key in puts):
            self.left -= 1
            self.clock.advance(100)
            for decider in self.meanwhile:
                decider.beat_if_due()
            raise Conflict
        return super().commit(expect, puts, events)


@credit
def test_a_server_in_the_midst_of_contention_is_not_taken_for_dead(world: World) -> None:
    crowded = Contended(world.store, world.clock)
    one = world.start(crowded)
    acquire(one, ttl_ms=60_000, name="other")
    crowded.left, crowded.meanwhile = 100, [one]
    assert isinstance(acquire(one), Granted)
    world.start()
    assert world.outages() == ()


def test_the_pulses_of_servers_that_are_gone_are_removed_and_the_newest_is_not(world: World) -> None:
    for _ in range(5):
        acquire(world.start())
        world.clock.advance(1_000)
    newest_ms = max(pulse.at_ms for pulse in pulses_of(world.store))
    assert len(pulses_of(world.store)) == 5
    world.clock.advance(PULSE_KEPT_MS)
    last = world.start()
    assert [pulse.server for pulse in pulses_of(world.store)] == [last.server]
    assert world.outages()[-1].began_ms == newest_ms


def test_a_server_whose_pulse_was_removed_while_it_was_idle_goes_on(world: World) -> None:
    idle = world.start()
    for _ in range(PULSE_KEPT_MS // PULSE_LATE_MS + 1):
        world.clock.advance(PULSE_LATE_MS)
        idle.liveness.tick()
    other = world.start()
    assert [pulse.server for pulse in pulses_of(world.store)] == [other.server]
    idle.beat_if_due()
    assert isinstance(acquire(idle), Granted)
    assert len(pulses_of(world.store)) == 2
    assert world.outages() == ()


# A store that is being moved


@credit
def test_a_server_that_came_up_while_the_store_was_frozen_notes_the_outage_afterwards(world: World) -> None:
    acquire(world.start(), ttl_ms=10_000)
    world.clock.advance(30_000)
    admin = Coordinator(world.store)
    admin.one(Freeze(id="move"))
    server = world.start()
    world.pass_ms(5_000, server)
    assert world.outages() == ()
    admin.one(Thaw(id="move"))
    assert isinstance(acquire(server, "b"), Held)
    server.beat_if_due()
    assert isinstance(acquire(server, "b"), Held)
    assert world.outages()[0].began_ms <= world.began_ms or world.outages()[-1].began_ms <= world.began_ms


def test_a_move_of_the_store_is_one_outage(world: World) -> None:
    one = world.start()
    acquire(one, ttl_ms=60_000)
    admin = Coordinator(world.store)
    admin.one(Freeze(id="move"))
    world.pass_ms(30_000, one)
    admin.one(Thaw(id="move"))
    world.pass_ms(1_000, one)
    world.start()
    assert len(world.outages()) == 1
