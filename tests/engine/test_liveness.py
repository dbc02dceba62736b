"""Nothing ends in a time for which nobody vouches; a slow store is no outage."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Break, EndSession, Inspect, OpenSession, Renew, Sweep
from dibs.core.lease_outcomes import Broken, Renewed, Swept
from dibs.core.limits import CONFLICT_RETRIES_MAX, GRACE_MS_MAX, OUTAGE_MS_MIN, PULSE_LATE_MS, PULSE_MS, TICK_MS
from dibs.core.outcomes import Granted, Held, Status
from dibs.core.records import META_KEY, PULSE_PREFIX, Meta, lock_key
from dibs.core.upkeep.outages import live_servers
from dibs.engine.coordinator import Contended, Coordinator
from dibs.engine.decider import Decider
from dibs.engine.liveness import Liveness
from dibs.engine.metrics import Metrics
from dibs.engine.pulses import is_idle, pulses_of
from dibs.engine.thread import EngineThread
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Busy, Conflict
from dibs.testing.clock import ManualClock
from dibs.testing.faulty import FaultyStore
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.records import Outage, Stored
    from dibs.engine.coordinator import Result
    from dibs.stores.port import Due, Snapshot, Store
    from dibs.testing.faulty import Fault


@pytest.fixture(params=["on the thread", "at once"], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where batches are decided. At once: what has to wait is decided by `run` afterwards, as the batcher does it."""
    run = Decider.run

    def run_at_once_first(decider: Decider, commands: Sequence[Command]) -> list[Result]:
        decider._at_once = nullcontext()
        results = decider.run_at_once(commands)
        late = [index for index, result in enumerate(results) if isinstance(result, Busy)]
        if late:
            for index, result in zip(late, run(decider, [commands[index] for index in late]), strict=True):
                results[index] = result
        return results

    if request.param == "at once":
        monkeypatch.setattr(Decider, "run", run_at_once_first)


class World:
    def __init__(self, store: Store | None = None) -> None:
        self.clock = ManualClock()
        self.store = store or MemoryStore(self.clock)
        self.decider = Decider(self.store, lambda events, last_seq: None, self.clock.steady_ms)
        self.decider.beat_if_due()

    def acquire(self, who: str = "a", ttl_ms: int = 10_000) -> Result:
        return self.decider.run([acquire(who, ttl_ms)])[0]

    def acquire_another(self) -> Result:
        return self.decider.run([acquire("a").replace(name=new_id())])[0]

    def outages(self) -> int:
        """How many are recorded, after what the upkeep thread does a moment later."""
        self.decider.beat_if_due()
        return len(outages_of(self.store))

    def live(self, ms: int) -> None:
        """Time passes, and this process runs."""
        for _ in range(0, ms, 100):
            self.clock.advance(100)
            self.decider.liveness.tick()

    def pulse_ms(self) -> int:
        (pulse,) = [each for each in pulses_of(self.store) if each.server == self.decider.server]
        return pulse.at_ms


def outages_of(store: Store) -> tuple[Outage, ...]:
    meta = store.read((META_KEY,)).records[META_KEY].record
    return meta.outages if isinstance(meta, Meta) else ()


def acquire(who: str = "a", ttl_ms: int = 10_000) -> Acquire:
    return Acquire(ns="d", name="job", principal=who, owner=who, ttl_ms=ttl_ms, fresh_lease_id=new_id())


def test_a_beat_is_written_when_one_is_due_apart_from_the_batches() -> None:
    world = World()
    began = world.pulse_ms()
    world.clock.advance(PULSE_MS - 1)
    world.decider.beat_if_due()
    assert world.pulse_ms() == began
    world.clock.advance(1)
    world.acquire()
    assert world.pulse_ms() == began
    world.decider.beat_if_due()
    assert world.pulse_ms() == began + PULSE_MS


def test_a_server_that_had_nothing_to_do_for_an_hour_was_not_away() -> None:
    world = World()
    for _ in range(36):
        world.clock.advance(PULSE_LATE_MS)
        world.decider.liveness.tick()
    assert isinstance(world.acquire(), Granted)
    assert world.outages() == 0


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize("away_ms", [OUTAGE_MS_MIN + 1, 60_000, 24 * 3600 * 1000])
def test_after_a_gap_nothing_ends_before_the_outage_is_noted_nor_right_after(away_ms: int) -> None:
    world = World()
    world.acquire("a", ttl_ms=1_000)
    world.clock.advance(away_ms)
    assert isinstance(world.acquire("b"), Held)
    assert world.outages() == 1
    assert isinstance(world.acquire("b"), Held)
    world.live(1_000)
    assert isinstance(world.acquire("b"), Granted)


def test_a_gap_that_is_no_outage_is_none() -> None:
    world = World()
    world.acquire("a", ttl_ms=1_000)
    for _ in range(2):  # a lease outlasts one silence that is not noticed, not two
        world.clock.advance(PULSE_LATE_MS)
        world.decider.liveness.tick()
    assert isinstance(world.acquire("b"), Granted)
    assert world.outages() == 0


@pytest.mark.fault("F-021")
@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize("away_ms", [PULSE_LATE_MS + 1, OUTAGE_MS_MIN])
def test_a_short_stop_is_no_outage_and_gives_as_much_time_again(away_ms: int) -> None:
    world = World()
    world.acquire("a", ttl_ms=1_000)
    world.clock.advance(500)
    world.decider.liveness.tick()
    world.clock.advance(away_ms)
    assert isinstance(world.acquire("b"), Held)
    assert world.outages() == 0
    world.live(away_ms // 100 * 100 - 100)
    assert isinstance(world.acquire("b"), Held)
    world.live(300)
    assert isinstance(world.acquire("b"), Granted)
    assert world.outages() == 0


@pytest.mark.fault("F-021")
@pytest.mark.promise("lease:outage-credit")
def test_a_machine_that_is_always_busy_keeps_a_dead_owners_lease_for_a_few_seconds_only() -> None:
    world = World()
    began_ms = world.clock()
    world.acquire("a", ttl_ms=60_000)
    while not isinstance(world.acquire("b"), Granted):
        world.clock.advance(1_400)
        world.decider.liveness.tick()
        assert world.outages() == 0
    assert world.clock() - began_ms - 60_000 <= GRACE_MS_MAX + 1_400


@pytest.mark.promise("lease:outage-credit")
def test_a_sweep_after_a_gap_ends_nothing() -> None:
    world = World()
    world.acquire("a", ttl_ms=5_000)
    world.clock.advance(60_000)
    for outages in (1, 1):
        (swept,) = world.decider.upkeep([Sweep(key=lock_key("d", "job"))])
        assert isinstance(swept, Swept)
        assert swept.expired == 0
        assert world.outages() == outages


class Sleepy(FaultyStore):
    """The process is stopped in the middle of a read: after the look at the clock, before the records are read."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self.clock = clock
        self.naps_ms: list[int] = []

    def read(self, keys: Iterable[str]) -> Snapshot:
        keys = list(keys)
        if keys and self.naps_ms:
            self.clock.advance(self.naps_ms.pop(0))
        return super().read(keys)


def sleepy_world() -> tuple[World, Sleepy]:
    world = World()
    sleepy = Sleepy(world.store, world.clock)
    world.decider = Decider(sleepy, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    return world, sleepy


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize("beat_was_due", [False, True])
def test_a_stop_between_the_look_and_the_read_is_noticed(beat_was_due: bool) -> None:
    world, sleepy = sleepy_world()
    world.acquire("a", ttl_ms=2_000)
    if beat_was_due:
        world.clock.advance(PULSE_MS)
    sleepy.naps_ms = [60_000]
    assert isinstance(world.acquire("b"), Held)
    assert world.outages() == 1


class Slow(FaultyStore):
    """Answers late, while the process runs. Counts the calls."""

    def __init__(self, world: World, read_ms: int = 0, commit_ms: int = 0) -> None:
        super().__init__(world.store)
        self.world, self.read_ms, self.commit_ms = world, read_ms, commit_ms
        self.calls: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def read(self, keys: Iterable[str]) -> Snapshot:
        self.calls.append("read")
        self.world.live(self.read_ms)
        return super().read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self.calls.append("commit")
        self.world.live(self.commit_ms)
        self.meanwhile()
        return super().commit(expect, puts, events)


def slow_world(read_ms: int = 0, commit_ms: int = 0) -> tuple[World, Slow]:
    world = World()
    slow = Slow(world, read_ms, commit_ms)
    world.decider = Decider(slow, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    return world, slow


@pytest.mark.fault("F-021")
@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize(("read_ms", "commit_ms"), [(0, 1_200), (900, 0), (1_000, 1_000), (2_000, 2_400)])
def test_a_slow_store_is_no_outage_and_refuses_nobody(read_ms: int, commit_ms: int) -> None:
    world, _ = slow_world(read_ms, commit_ms)
    began_ms = world.clock()
    world.acquire("a", ttl_ms=60_000)
    while not isinstance(world.acquire("b"), Granted):
        assert isinstance(world.acquire_another(), Granted)
        assert world.outages() == 0
    late_ms = world.clock() - began_ms - 60_000
    assert 0 <= late_ms <= 20_000, "some rounds of this loop, of which each has nine slow calls"


@pytest.mark.fault("F-022")
def test_a_claim_costs_one_read_and_one_commit_whatever_is_due() -> None:
    world, slow = slow_world()
    world.acquire("a", ttl_ms=2_000)
    world.clock.advance(60_000)  # a beat is due, a gap is to be recorded, a lease to be swept
    slow.calls.clear()
    assert isinstance(world.acquire_another(), Granted)
    assert slow.calls == ["read", "commit"]


@pytest.mark.fault("F-021")
@pytest.mark.promise("lease:outage-credit")
def test_a_store_that_answers_nobody_for_long_is_an_outage_though_it_answers_at_last() -> None:
    world, slow = slow_world()
    world.acquire("a", ttl_ms=10_000)
    slow.commit_ms = 30_000
    world.acquire_another()
    slow.commit_ms = 0
    assert isinstance(world.acquire("b"), Held)
    assert world.outages() == 1
    world.live(9_900)
    assert isinstance(world.acquire("b"), Held)
    world.live(200)
    assert isinstance(world.acquire("b"), Granted)


@pytest.mark.promise("lease:outage-credit")
def test_a_stop_of_the_store_counts_from_its_beginning_though_pulses_went_on() -> None:
    """They have their own connection."""
    world, slow = slow_world()
    world.acquire("a", ttl_ms=2_000)

    def beat() -> None:
        slow.meanwhile = lambda: None
        for _ in range(20):
            slow.commit_ms = 0
            world.decider.beat_if_due()
            world.live(PULSE_MS)

    slow.meanwhile = beat
    world.acquire_another()
    assert isinstance(world.acquire("b"), Held)
    assert world.outages() == 1
    assert isinstance(world.acquire("b"), Held)


class Standing(FaultyStore):
    """Stands still while upkeep asks it, and nobody else does."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.world = world
        self.at_last: Callable[[], object] = lambda: None

    def due(self, limit: int) -> Due:
        self.world.live(6_000)
        self.at_last()
        return super().due(limit)


@pytest.mark.fault("F-021")
@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize("is_first", [False, True], ids=["upkeep is answered first", "a claim is"])
def test_a_store_that_stood_still_while_only_upkeep_asked_is_an_outage(is_first: bool) -> None:
    world = World()
    standing = Standing(world)
    world.decider = Decider(standing, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    world.acquire("a", ttl_ms=3_000)
    told: list[Result] = []

    def claim() -> None:
        thread = threading.Thread(target=lambda: told.append(world.acquire("b")))
        thread.start()
        thread.join(60)

    if is_first:
        standing.at_last = claim
    world.decider.store.due(0)
    told.append(world.acquire("b"))
    assert world.outages() == 1
    told.append(world.acquire("b"))
    assert {type(each) for each in told} == {Held}


@pytest.mark.promise("lease:never-early")
def test_a_renewal_that_comes_while_a_slow_batch_is_written_is_in_time() -> None:
    world, slow = slow_world()
    held = world.acquire("a", ttl_ms=1_500)
    assert isinstance(held, Granted)
    slow.commit_ms = 2_000
    swept: list[Result] = []

    def sweep() -> None:
        slow.meanwhile = lambda: None
        swept.extend(world.decider.upkeep([Sweep(key=lock_key("d", "job"))]))

    slow.meanwhile = sweep
    world.acquire_another()
    assert isinstance(swept[0], Swept)
    assert swept[0].expired == 0, "whoever renews waits for the batch"
    slow.commit_ms = 0
    renew = Renew(ns="d", name="job", principal="a", lease_id=held.lease.lease_id)
    rival, renewed = world.decider.run([acquire("b"), renew])
    assert isinstance(rival, Held)
    assert isinstance(renewed, Renewed)
    assert world.outages() == 0


@pytest.mark.fault("F-023")
def test_reads_are_answered_while_nothing_can_be_written() -> None:
    world = World()
    faulty = FaultyStore(world.store)
    world.decider = Decider(faulty, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    world.acquire("a", ttl_ms=1_000)
    for _ in range(3):
        world.clock.advance(9_000)
        faulty.faults = ["refused"] * 9
        refused, shown = world.decider.run([acquire("b").replace(name="other"), Inspect(ns="d", name="job")])
        assert isinstance(refused, StoreUnavailable)
        assert isinstance(shown, Status)
        assert [holder.owner for holder in shown.lock.holders] == ["a"]
        with pytest.raises(StoreUnavailable):
            world.decider.beat_if_due()
    faulty.faults = []
    assert world.outages() == 1


def test_a_break_whose_fate_is_unknown_is_not_repeated_after_a_stop() -> None:
    world, sleepy = sleepy_world()
    world.acquire("a")
    sleepy.faults = ["lost after"]
    sleepy.naps_ms = [0, 60_000]
    (lost,) = world.decider.run([Break(ns="d", name="job", principal="op", reason="stuck")])
    assert isinstance(lost, StoreUnavailable)
    assert lost.unknown
    # It had been written; whoever asks again sees so.
    (again,) = world.decider.run([Break(ns="d", name="job", principal="op", reason="stuck")])
    assert again == Broken(now_ms=world.clock(), name="job", holders=())


def test_a_short_trouble_with_the_store_is_no_outage_and_a_long_one_is() -> None:
    world = World()
    faulty = FaultyStore(world.store)
    world.decider = Decider(faulty, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    for away_ms, outages in ((PULSE_MS, 0), (PULSE_LATE_MS + 1, 1)):
        faulty.faults = ["refused", "refused"]
        assert isinstance(world.acquire_another(), StoreUnavailable)
        world.clock.advance(away_ms // 2)
        assert isinstance(world.acquire_another(), StoreUnavailable)
        world.clock.advance(away_ms - away_ms // 2)
        assert not isinstance(world.acquire_another(), BaseException)
        assert world.outages() == outages


class Crowded(FaultyStore):
    """Another writer is always first, which takes time. Only a server's own pulse has no other writer."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self.clock = clock
        self.conflict_ms: list[int] = []

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self.conflict_ms and not all(key.startswith(PULSE_PREFIX) for key in puts):
            self.clock.advance(self.conflict_ms.pop(0))
            raise Conflict
        return super().commit(expect, puts, events)


def crowded_world() -> tuple[World, Crowded]:
    world = World()
    crowded = Crowded(world.store, world.clock)
    world.decider = Decider(
        crowded, lambda events, last_seq: None, world.clock.steady_ms, pause=lambda s: world.clock.advance(0)
    )
    world.decider.beat_if_due()
    return world, crowded


@pytest.mark.promise("lease:outage-credit")
def test_conflicts_on_a_store_that_answers_are_no_outage_and_fail_nobody() -> None:
    world, crowded = crowded_world()
    world.acquire("a", ttl_ms=60_000)
    for beat_was_due in (False, True):
        world.clock.advance(PULSE_MS if beat_was_due else 0)
        crowded.conflict_ms = [PULSE_LATE_MS // 3] * 20  # six seconds of it
        results = world.decider.run([acquire("b"), acquire("c").replace(name=new_id())])
        assert [type(each) for each in results] == [Held, Granted]
        world.clock.advance(PULSE_MS)
        world.acquire_another()
        assert world.outages() == 0


def test_conflicts_without_end_fail_the_command_and_are_no_outage() -> None:
    world, crowded = crowded_world()
    crowded.conflict_ms = [PULSE_LATE_MS // 3] * 2 * CONFLICT_RETRIES_MAX
    assert isinstance(world.acquire("a"), Contended)
    world.clock.advance(PULSE_MS)
    crowded.conflict_ms = [PULSE_LATE_MS // 3] * 2 * CONFLICT_RETRIES_MAX
    assert isinstance(world.acquire("a"), Contended), "with a beat before it"
    crowded.conflict_ms = []
    assert isinstance(world.acquire("a"), Granted)
    assert world.outages() == 0


class Halting(FaultyStore):
    """The process is stopped in a commit, after the store has taken it."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self.clock = clock
        self.halts_ms: list[int] = []

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        seq = super().commit(expect, puts, events)
        if self.halts_ms:
            self.clock.advance(self.halts_ms.pop(0))
        return seq


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.parametrize("first", [False, True], ids=["while it is up", "at its start"])
def test_a_stop_in_the_commit_of_a_beat_is_an_outage(first: bool) -> None:
    world = World()
    world.acquire("a", ttl_ms=2_000)
    halting = Halting(world.store, world.clock)
    world.decider = Decider(halting, lambda events, last_seq: None, world.clock.steady_ms)
    if not first:
        world.decider.beat_if_due()
        world.clock.advance(PULSE_MS)
    halting.halts_ms = [60_000]
    world.decider.beat_if_due()
    assert not halting.halts_ms
    assert isinstance(world.acquire("b"), Held)
    assert world.outages() == 1


@pytest.mark.promise("lease:outage-credit")
def test_a_store_whose_every_commit_is_a_gap_decides_all_the_same_and_ends_no_lease() -> None:
    world = World()
    world.acquire("a", ttl_ms=2_000)
    halting = Halting(world.store, world.clock)
    world.decider = Decider(halting, lambda events, last_seq: None, world.clock.steady_ms)
    for _ in range(3):
        halting.halts_ms = [3_000] * 2  # the command, and the beat that follows it
        assert isinstance(world.acquire_another(), Granted)
        assert isinstance(world.acquire("b"), Held)
        world.decider.beat_if_due()
    halting.halts_ms = []
    world.decider.beat_if_due()
    assert isinstance(world.acquire("b"), Held)
    for _ in range(5):  # the store is quick again, and the owner does not renew
        world.clock.advance(PULSE_LATE_MS)
        world.decider.liveness.tick()
    assert isinstance(world.acquire("b"), Granted)


@pytest.mark.promise("lease:outage-credit")
def test_a_stop_that_ends_in_a_conflict_is_an_outage() -> None:
    world, crowded = crowded_world()
    world.acquire("a", ttl_ms=2_000)
    crowded.conflict_ms = [100, 60_000, 100]
    first, second = world.decider.run([acquire("b"), acquire("c").replace(name=new_id())])
    assert isinstance(first, Held)
    assert isinstance(second, Granted)
    assert world.outages() == 1


def test_time_stands_for_the_stores_clock_not_the_steady_one() -> None:
    clock = ManualClock()
    liveness = Liveness(clock.steady_ms)
    liveness.beating()()
    clock.advance(60_000)
    liveness.tick()
    clock.advance(500)
    assert liveness.gap(store_now_ms=977_000) == (977_000 - 60_500, 977_000 - 500)
    assert liveness.vouch()(977_000) == 977_000 - 60_500


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.fault("F-194")
def test_a_short_stop_and_a_failure_right_after_it_are_one_gap() -> None:
    clock = ManualClock()
    liveness = Liveness(clock.steady_ms)
    liveness.beating()()
    clock.advance(1_500)
    liveness.tick()
    for _ in range(5):
        asked_ms = clock.steady_ms()
        clock.advance(400)
        liveness.failed(asked_ms)
    assert liveness.vouch()(977_000) == 977_000 - 3_500


def another_server(world: World) -> Decider:
    """A server that starts now. The store answers it."""
    other = Decider(world.store, lambda events, last_seq: None, world.clock.steady_ms)
    other.beat_if_due()
    return other


def while_a_batch_hangs(world: World, slow: Slow, ms: int, then: Callable[[], object], *others: Decider) -> None:
    """Only the batch is not answered: upkeep of all servers is. `then` happens just before its answer."""

    def hang() -> None:
        slow.meanwhile = lambda: None
        for _ in range(0, ms, PULSE_MS):
            for decider in (world.decider, *others):
                decider.liveness.tick()
                decider.beat_if_due()
            world.live(PULSE_MS)
        then()

    slow.meanwhile = hang
    world.acquire_another()


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.fault("F-400")
@pytest.mark.parametrize("hangs_ms", [2_100, 6_000])
def test_a_server_that_starts_while_the_only_other_one_hangs_ends_nothing(hangs_ms: int) -> None:
    """Pulses have their own connection. They must not say that a server serves whose batch is not answered."""
    world, slow = slow_world()
    world.acquire("a", ttl_ms=2_000)
    began_ms = world.clock()
    told: list[Result] = []
    while_a_batch_hangs(world, slow, hangs_ms, lambda: told.extend(another_server(world).run([acquire("b")])))
    assert isinstance(told[0], Held)
    assert 0 < world.pulse_ms() - began_ms <= PULSE_LATE_MS
    assert [outage.began_ms for outage in outages_of(world.store)] == [world.pulse_ms()]


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.fault("F-400")
def test_a_store_that_fails_now_and_then_beside_a_hanging_batch_does_not_hide_it() -> None:
    """The beat after a failure is written all the same. It counts from when the batch was asked."""
    world, slow = slow_world()
    world.acquire("a", ttl_ms=2_000)
    told: list[Result] = []

    def fail() -> None:
        for _ in range(20):
            world.live(PULSE_MS)
            world.decider.liveness.failed(world.clock.steady_ms())
            world.decider.beat_if_due()
        told.extend(another_server(world).run([acquire("b")]))

    while_a_batch_hangs(world, slow, 0, fail)
    assert isinstance(told[0], Held)


@pytest.mark.fault("F-400")
def test_a_server_that_starts_beside_one_whose_batch_takes_a_second_finds_no_outage() -> None:
    world, slow = slow_world()
    world.acquire("a")
    while_a_batch_hangs(world, slow, 1_200, lambda: another_server(world))
    assert world.outages() == 0


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.fault("F-400")
def test_a_server_that_hangs_beside_one_that_serves_is_no_outage() -> None:
    world, slow = slow_world()
    other = another_server(world)
    world.acquire("a", ttl_ms=2_000)
    live: list[str] = []
    told: list[Result] = []

    def start() -> None:
        live.extend(live_servers(pulses_of(world.store), world.clock()))
        told.extend(another_server(world).run([acquire("b")]))

    while_a_batch_hangs(world, slow, 6_000, start, other)
    assert live == [other.server], "the one that hangs ends nothing, so the other sweeps all"
    assert isinstance(told[0], Granted), "who wanted to renew could do so at the other server"
    assert world.outages() == 0
    assert world.decider.server in live_servers(pulses_of(world.store), world.clock())


@pytest.mark.promise("lease:outage-credit")
@pytest.mark.fault("F-400")
def test_renewals_that_are_answered_beside_a_call_that_hangs_count_though_a_new_server_notes_an_outage() -> None:
    """A server cannot tell which of its calls renewals wait for. A wrong outage makes leases longer, nothing else."""
    world = World()
    standing = Standing(world)
    world.decider = Decider(standing, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    held = world.acquire("a", ttl_ms=7_000)
    assert isinstance(held, Granted)
    told: list[Result] = []

    def renew() -> None:
        told.extend(world.decider.run([Renew(ns="d", name="job", principal="a", lease_id=held.lease.lease_id)]))
        told.extend(another_server(world).run([acquire("b")]))

    standing.at_last = renew
    world.decider.store.due(0)
    assert [type(each) for each in told] == [Renewed, Held]
    assert world.outages() == 1, "that of the start: the first server finds the other's pulse"
    world.live(7_100)
    assert isinstance(world.acquire("b"), Granted)


class Taken(FaultyStore):
    """Others use the store: the next reads or commits would have to wait."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.busy_reads = self.busy_commits = self.busy_reads_after_commit = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        if self.busy_reads:
            self.busy_reads -= 1
            raise Busy("taken")
        return super().read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self.busy_commits:
            self.busy_commits -= 1
            raise Busy("taken")
        self.busy_reads, self.busy_reads_after_commit = self.busy_reads_after_commit, 0
        return super().commit(expect, puts, events)


def taken_world() -> tuple[World, Taken]:
    world = World()
    taken = Taken(world.store)
    world.decider = Decider(taken, lambda events, last_seq: None, world.clock.steady_ms)
    world.decider.beat_if_due()
    world.decider._at_once = nullcontext()
    return world, taken


@pytest.mark.parametrize("where", ["reads", "commits"])
def test_a_store_that_is_taken_is_not_waited_for_and_is_no_outage(where: str) -> None:
    world, taken = taken_world()
    setattr(taken, f"busy_{where}", 1)
    (result,) = world.decider.run_at_once([acquire("a")])
    assert isinstance(result, Busy)
    world.clock.advance(PULSE_LATE_MS // 2)
    assert not world.decider.liveness.has_gap()
    assert isinstance(world.decider.run([acquire("a")])[0], Granted)
    assert world.outages() == 0


def test_a_thread_that_must_not_wait_leaves_conflicts_to_one_that_may() -> None:
    slept: list[float] = []
    world = World()
    crowded = Crowded(world.store, world.clock)
    world.decider = Decider(crowded, lambda *_: None, world.clock.steady_ms, pause=slept.append)
    world.decider.beat_if_due()
    world.decider._at_once = nullcontext()
    crowded.conflict_ms = [0] * 5
    (result,) = world.decider.run_at_once([acquire("a")])
    assert isinstance(result, Busy)
    assert not slept
    assert isinstance(world.decider.run([acquire("a")])[0], Granted)


@pytest.mark.promise("lease:outage-credit")
def test_a_thread_that_must_not_wait_ends_nothing_after_a_gap() -> None:
    world, _ = taken_world()
    world.decider.run([acquire("a", ttl_ms=2_000)])
    world.clock.advance(60_000)
    (result,) = world.decider.run_at_once([acquire("b")])
    assert isinstance(result, Held)
    assert world.outages() == 1


def test_a_break_whose_fate_is_unknown_is_not_left_to_another_thread() -> None:
    world, taken = taken_world()
    world.decider.run([acquire("a")])
    taken.faults, taken.busy_reads_after_commit = ["lost after"], 1
    (lost,) = world.decider.run_at_once([Break(ns="d", name="job", principal="op", reason="stuck")])
    assert isinstance(lost, StoreUnavailable)
    assert lost.unknown
    assert not isinstance(lost, Busy)


class OnceWritten(FaultyStore):
    """The next commit is the last that is heard of it. It is best given one command at a time."""

    def __init__(self, store: Store, fault: Fault, failure: StoreUnavailable) -> None:
        super().__init__(store, [fault])
        self.capabilities = store.capabilities.replace(batch_max=1)
        self.failure = failure

    def read(self, keys: Iterable[str]) -> Snapshot:
        if self.commits_tried:
            raise self.failure
        return super().read(keys)


@pytest.mark.promise("idem:acquire")
@pytest.mark.fault("F-260")
@pytest.mark.parametrize("failure", [StoreUnavailable("No database answers."), Busy("taken")], ids=["away", "taken"])
@pytest.mark.parametrize("fault", ["none", "lost after"])
def test_a_look_that_fails_changes_no_answer_to_what_was_written_before_it(
    fault: Fault, failure: StoreUnavailable
) -> None:
    world = World()
    world.acquire("a")
    store = OnceWritten(world.store, fault, failure)
    world.decider = Decider(store, lambda events, last_seq: None, world.clock.steady_ms)
    told, looked = world.decider.run(
        [Break(ns="d", name="job", principal="op", reason="stuck"), Inspect(ns="d", name="job")]
    )
    assert looked is failure
    if fault == "none":
        assert isinstance(told, Broken)
    else:
        assert isinstance(told, StoreUnavailable)
        assert told.unknown


@pytest.mark.promise("session")
@pytest.mark.fault("F-029")
def test_what_a_session_held_is_free_at_its_end_also_while_nobody_vouches_for_the_time() -> None:
    store = MemoryStore(ManualClock())
    doubts = Coordinator(store, vouch=lambda: lambda now_ms: 0)
    doubts.one(OpenSession(ns="default", fresh_id="s", principal="team", owner="a", ttl_ms=60_000))
    terms = Acquire(
        ns="default", name="job", principal="team", owner="a", fresh_lease_id=new_id(), ttl_ms=0, session="s"
    )
    assert isinstance(doubts.one(terms), Granted)
    doubts.one(EndSession(session="s", principal="team"))
    other = Acquire(ns="default", name="job", principal="team", owner="b", fresh_lease_id=new_id(), ttl_ms=60_000)
    assert isinstance(doubts.one(other), Granted)


@pytest.mark.parametrize("what", ["nothing", "hold", "place", "session", "broken"])
def test_a_store_is_idle_if_nobody_there_has_anything_since_then(what: str) -> None:
    world = World()
    before_ms = world.store.read(()).now_ms
    if what in ("hold", "place", "broken"):
        world.acquire()
    if what == "place":
        world.decider.run([acquire("b").replace(wait=True)])
    if what == "session":
        world.decider.run([OpenSession(fresh_id="s", ns="default", principal="p", owner="o", ttl_ms=60_000)])
    for number in range(3 if what == "hold" else 0):
        world.decider.run([acquire("a").replace(name=f"a-{number}")])
    if what == "broken":
        world.decider.run([Break(ns="d", name="job", principal="op", reason="r")])
    is_there = what in ("hold", "place", "session")
    assert is_idle(world.store) is not is_there
    assert is_idle(world.store, before_ms + 1) is not is_there
    assert is_idle(world.store, before_ms) is (what != "place"), "who came later lost nothing in a gap before"


def test_a_failed_commit_blocks_the_word_that_writes_work_until_one_succeeds() -> None:
    metrics, clock = Metrics(), ManualClock()
    store = FaultyStore(MemoryStore(clock))
    decider = Decider(store, lambda events, last_seq: None, clock.steady_ms, metrics=metrics)
    decider.run([acquire("a")])
    assert (metrics.is_write_blocked(), metrics.write_failed_us) == (False, 0)
    store.faults = ["refused"]
    assert isinstance(decider.run([acquire("a").replace(name="b")])[0], StoreUnavailable)
    assert metrics.is_write_blocked()
    decider.run([acquire("a").replace(name="c")])
    assert (metrics.is_write_blocked(), metrics.write_failed_us) == (False, 0)


def test_a_thread_of_its_own_ticks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ticked, waited = threading.Semaphore(0), list[float]()

    def steady() -> int:
        ticked.release()
        return 0

    liveness = Liveness(steady)
    wait = liveness._wake.wait

    def wait_shortly(seconds: float) -> bool:
        waited.append(seconds)
        return wait(0.001)

    monkeypatch.setattr(liveness._wake, "wait", wait_shortly)
    others = {*threading.enumerate()}  # servers of other tests have such threads, too
    liveness.start()
    (works,) = [each for each in threading.enumerate() if each.name == "dibs-liveness" and each not in others]
    assert works.daemon
    for _ in range(10):
        assert ticked.acquire(timeout=WAIT_S_MAX)
    liveness.stop(0)
    works.join(WAIT_S_MAX)
    assert not works.is_alive()
    assert {*waited} == {TICK_MS / 1000}


def test_a_thread_that_works_on_is_waited_for_as_long_as_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(EngineThread):
        def _work(self) -> None:
            assert go_on.wait(WAIT_S_MAX)

    go_on, waited = threading.Event(), list[float]()
    slow = Slow("dibs-slow")
    assert slow.stop(1_500)  # it was never started
    slow.start()
    with monkeypatch.context() as patch:
        patch.setattr(slow._works, "join", waited.append)
        assert not slow.stop(1_500)
    go_on.set()
    assert slow.stop(int(WAIT_S_MAX) * 1_000)
    assert waited == [1.5]


def test_conflicts_and_reads_that_fail_are_counted() -> None:
    metrics, store = Metrics(), FaultyStore(MemoryStore(ManualClock()), ["conflict"])
    decider = Decider(store, lambda events, last_seq: None, metrics=metrics)
    with pytest.raises(Conflict):
        decider.store.commit({}, {}, ())
    assert (metrics.conflicts, metrics.read_errors) == (1, 0)
    store.reads_lost = 1
    with pytest.raises(StoreUnavailable):
        decider.store.read(())
    assert (metrics.conflicts, metrics.read_errors) == (1, 1)
