"""Expiry becomes an event on time; history is pruned; an idle server is quiet; a fault is survived."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, StoreBroken, StoreUnavailable
from dibs.base.ids import new_id
from dibs.core import events
from dibs.core.claims import sessions
from dibs.core.commands import Acquire, EndSession, OpenSession, Renew, Sweep
from dibs.core.lease_outcomes import Swept
from dibs.core.limits import (
    IDLE_RECORD_MS,
    PRUNE_INTERVAL_MS,
    PULSE_MS,
    SWEEP_BATCH_MAX,
    SWEEP_BATCH_MIN,
    SWEEP_GRACE_MS,
    SWEEP_INTERVAL_MS,
    SWEEP_LATE_MS_MAX,
    SWEEP_RETRY_MS,
)
from dibs.engine.coordinator import Coordinator
from dibs.engine.decider import Decider
from dibs.engine.sweeper import NEWS_MS, Sweeper
from dibs.engine.tally import Tally
from dibs.stores.codec import decode
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Conflict, Due, StoreProxy
from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import lock
from dibs.testing.faulty import FaultyStore
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.engine.coordinator import Result
    from dibs.stores.port import Page, Snapshot, Store


class Recorded(Decider):
    """Notes what it was given to decide."""

    def upkeep(self, commands: Sequence[Command]) -> list[Result]:
        self.ran = [*getattr(self, "ran", []), *commands]
        return super().upkeep(commands)


class World:
    def __init__(
        self,
        keep_events: int = 10_000,
        keep_events_ms: int = 3_600_000,
        clock: ManualClock | None = None,
        store: Store | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.store = FaultyStore(store or MemoryStore(self.clock))
        self.tally = Tally()
        self.decider = Recorded(self.store, self.tally.committed, self.clock.steady_ms, pause=lambda seconds: None)
        self.sweeper = Sweeper(
            self.decider,
            self.tally,
            keep_events=keep_events,
            keep_events_ms=keep_events_ms,
            steady=self.clock.steady_ms,
            has_waiters=lambda: self.has_waiters,
        )
        self.has_waiters = False
        self.decider.beat_if_due()

    def acquire(self, *names: str, ttl_ms: int = 1_000) -> None:
        self.decider.run([acquire(name, ttl_ms) for name in names])

    def live_through(self, ms: int) -> int:
        """What the thread does while time passes. Returns how many rounds it took."""
        rounds = 1
        while ms > 0:
            rounds += 1
            wait_ms = max(1, min(self.sweeper.step(), ms))
            self.clock.advance(wait_ms)
            ms -= wait_ms
        self.sweeper.step()
        return rounds

    def stay_up(self, ms: int) -> None:
        """Let time pass without sweeping, and without a silence that would count as an outage."""
        for _ in range(0, ms, 500):
            self.clock.advance(min(ms, 500))
            self.decider.liveness.tick()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.store.events(0, 100_000)]


def acquire(name: str, ttl_ms: int) -> Acquire:
    return Acquire(ns="d", name=name, principal="p", owner="o", ttl_ms=ttl_ms, fresh_lease_id=new_id())


def test_an_expiry_is_an_event_within_the_bound() -> None:
    world = World()
    world.acquire("a", ttl_ms=1_000)
    world.acquire("b", ttl_ms=1_730)
    began_ms = world.clock()
    world.live_through(3_000)
    expired = {event.job: event.at_ms - began_ms for event in world.store.events(0, 10) if event.kind == events.EXPIRED}
    assert 1_000 <= expired["a"] <= 1_000 + SWEEP_LATE_MS_MAX
    assert 1_730 <= expired["b"] <= 1_730 + SWEEP_LATE_MS_MAX
    assert world.tally.live == 0


def test_due_records_of_a_newer_version_are_left_to_it_and_hold_up_nothing() -> None:
    world = World()
    record = lock("x", expires_ms=world.clock())  # its kind does not matter: the key is of none that is known
    for number in range(SWEEP_BATCH_MIN + 5):
        world.store.commit({}, {f"newer/{number}": record}, ())
    world.acquire("a", ttl_ms=1_000)
    rounds = world.live_through(3_000)
    assert world.kinds().count(events.EXPIRED) == 1
    assert rounds <= 3_000 / SWEEP_INTERVAL_MS + 2
    assert len(world.store.scan("newer/")) == SWEEP_BATCH_MIN + 5


def test_the_next_round_is_wanted_when_the_next_lease_ends_and_never_later_than_the_bound() -> None:
    world = World()
    assert world.sweeper.step() == SWEEP_LATE_MS_MAX
    world.acquire("a", ttl_ms=1_000)
    assert world.sweeper.step() == SWEEP_LATE_MS_MAX
    world.clock.advance(900)
    assert world.sweeper.step() == 100
    world.clock.advance(99)
    assert world.sweeper.step() == SWEEP_INTERVAL_MS


def test_many_that_end_together_are_swept_in_batches_without_a_pause() -> None:
    world = World()
    world.acquire(*[f"job-{number}" for number in range(SWEEP_BATCH_MAX + 5)])
    world.stay_up(1_000)
    assert world.sweeper.step() == 0
    assert world.sweeper.step() > 0
    assert world.kinds().count(events.EXPIRED) == SWEEP_BATCH_MAX + 5


def test_those_who_claim_nothing_new_wait_for_a_few_of_them_at_a_time() -> None:
    world = World()
    world.acquire(*[f"job-{number}" for number in range(3 * SWEEP_BATCH_MIN)])
    world.stay_up(500)
    world.sweeper.step()
    world.stay_up(500)
    for rounds in (1, 2, 3):
        assert world.sweeper.step() == 0, "there may be more"
        assert world.kinds().count(events.EXPIRED) == rounds * SWEEP_BATCH_MIN
    assert world.sweeper.step() > 0


def test_leases_of_other_processes_are_swept_too() -> None:
    world = World()
    Coordinator(world.store).one(acquire("theirs", 1_000))
    world.live_through(1_500)
    assert events.EXPIRED in world.kinds()
    assert world.tally.live == 0


class PolledStore(MemoryStore):
    capabilities = MemoryStore.capabilities.replace(watch="polling")


def test_what_others_did_is_looked_for_often_while_somebody_waits_here() -> None:
    clock = ManualClock()
    world = World(clock=clock, store=PolledStore(clock))
    Coordinator(world.store).one(acquire("theirs", 60_000))
    assert world.sweeper.step() == SWEEP_LATE_MS_MAX
    assert world.tally.live == 0
    world.has_waiters = True
    assert world.sweeper.step() == NEWS_MS
    assert world.tally.live == 1


def test_an_idle_server_leaves_its_store_alone() -> None:
    world = World()
    before = world.store.commits_tried
    world.live_through(10_000)
    assert world.store.commits_tried == before


def test_a_server_beats_while_somebody_holds_something() -> None:
    world = World()
    world.acquire("a", ttl_ms=60_000)
    before = world.store.commits_tried
    world.live_through(10_000)
    assert 10_000 // (PULSE_MS + SWEEP_LATE_MS_MAX) <= world.store.commits_tried - before <= 10_000 // PULSE_MS


def test_the_next_round_is_wanted_when_the_next_beat_is_due() -> None:
    world = World()
    world.acquire("a", ttl_ms=60_000)
    world.sweeper.step()
    world.clock.advance(world.decider.liveness.beat_due_in_ms() - SWEEP_INTERVAL_MS - 1)
    assert world.sweeper.step() == SWEEP_INTERVAL_MS + 1


def test_a_server_that_stood_still_beats_even_if_nobody_has_anything() -> None:
    world = World()
    world.live_through(10_000)
    before = world.store.commits_tried
    world.clock.advance(10 * PULSE_MS)
    world.live_through(1_000)
    assert world.store.commits_tried == before + 1


def test_a_long_idle_record_is_forgotten() -> None:
    world = World()
    world.acquire("a")
    world.live_through(1_500)
    world.clock.advance(IDLE_RECORD_MS)
    world.sweeper.step()
    assert world.kinds()[-1] == events.FORGOTTEN
    assert world.store.scan("lock/") == []


def test_old_history_is_pruned_rarely_and_to_what_was_asked() -> None:
    world = World(keep_events=5)
    world.acquire(*[f"job-{number}" for number in range(20)], ttl_ms=3_600_000)
    world.live_through(PRUNE_INTERVAL_MS - 1_000)
    assert len(world.kinds()) == 20
    world.live_through(1_500)
    assert len(world.kinds()) == 5


def test_history_is_pruned_by_age() -> None:
    world = World(keep_events_ms=1_000)
    world.acquire("old", ttl_ms=3_600_000)
    world.stay_up(1_500)
    world.acquire("new", ttl_ms=3_600_000)
    assert world.sweeper.prune() == 1
    assert [event.job for event in world.store.events(0, 10)] == ["new"]


def test_a_store_that_fails_is_reported_and_the_next_round_goes_on() -> None:
    world = World()
    world.acquire("a", ttl_ms=1_000)
    world.stay_up(1_000)
    world.store.faults = ["refused", "refused"]
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            world.sweeper.step()
    world.sweeper.step()
    assert events.EXPIRED in world.kinds()


def test_two_thousand_leases_on_a_disk_end_on_time(tmp_path: Path) -> None:
    """By a clock that stands still while the machine works: how fast a machine sweeps is for `bench/expiry.py`."""
    clock = ManualClock()
    path = str(tmp_path / "d.db")
    store = SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)
    world = World(clock=clock, store=store)
    # Ends spread over two seconds, as they are in life.
    world.decider.run([acquire(f"job-{number}", 1_000 + number) for number in range(2_000)])
    rounds = world.live_through(3_500)
    ends = {event.job: event.at_ms + (event.ttl_ms or 0) for event in acquired(store)}
    late = [event.at_ms - ends[event.job] for event in store.events(0, 9_999) if event.kind == events.EXPIRED]
    store.close()
    assert len(late) == 2_000
    assert min(late) >= 0
    assert max(late) <= SWEEP_INTERVAL_MS
    assert rounds <= 3_500 // SWEEP_INTERVAL_MS + 1  # one round for many that end, not one for each


@pytest.mark.promise("lease:never-early")
def test_two_thousand_renewed_leases_on_a_disk_do_not_delay_one_that_ends(tmp_path: Path) -> None:
    """The file has the renewed ones as due when they were first, and before the one that ends."""
    clock = ManualClock()
    path = str(tmp_path / "d.db")
    store = SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)
    world = World(clock=clock, store=store)
    claims = [acquire(f"job-{number}", 1_000) for number in range(2_000)]
    world.decider.run(claims)
    clock.advance(10)
    world.acquire("lost")
    clock.advance(490)
    world.decider.run(
        [Renew(ns="d", name=claim.name, principal="p", lease_id=claim.fresh_lease_id) for claim in claims]
    )
    world.live_through(510 + SWEEP_LATE_MS_MAX)
    ended = [event.job for event in store.events(0, 9_999) if event.kind == events.EXPIRED]
    store.close()
    assert ended == ["lost"]


def acquired(store: Store) -> list[events.Event]:
    return [event for event in store.events(0, 9_999) if event.kind == events.ACQUIRED]


# Several servers


class Counted(StoreProxy):
    """Counts the commits that came too late."""

    conflicts = 0

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        try:
            return super().commit(expect, puts, events)
        except Conflict:
            self.conflicts += 1
            raise


def several(count: int) -> tuple[Counted, list[World]]:
    clock = ManualClock()
    store = Counted(MemoryStore(clock))
    return store, [World(clock=clock, store=store) for _ in range(count)]


def live_on(ms: int, *worlds: World) -> None:
    """These servers do what they do every ten milliseconds, one after the other."""
    for _ in range(0, ms, 10):
        worlds[0].clock.advance(10)
        for world in worlds:
            world.sweeper.step()


def late_ms(store: Store, began_ms: int, ttl_ms: int) -> list[int]:
    return [each.at_ms - began_ms - ttl_ms for each in store.events(0, 10_000) if each.kind == events.EXPIRED]


def test_several_servers_divide_what_is_due_among_them() -> None:
    _, worlds = several(3)
    worlds[0].acquire("long", ttl_ms=600_000)
    live_on(3_000, *worlds)
    began_ms = worlds[0].clock()
    worlds[0].acquire(*[f"job-{number}" for number in range(300)], ttl_ms=2_000)
    live_on(3_000, *worlds)
    late = late_ms(worlds[0].store, began_ms, 2_000)
    assert len(late) == 300
    assert max(late) <= SWEEP_LATE_MS_MAX
    swept = [sum(1 for each in world.decider.ran if isinstance(each, Sweep)) for world in worlds]
    assert sum(swept) == 300, "nobody did what another did"
    assert min(swept) > 60
    worlds[0].acquire(*[f"more-{number}" for number in range(30)], ttl_ms=1_000)
    live_on(950, *worlds)
    worlds[0].clock.advance(50)
    worlds[0].sweeper.sweep()
    assert 0 < worlds[0].kinds().count(events.EXPIRED) - 300 < 30, "it leaves the others their part"


def test_what_a_server_left_behind_is_swept_by_another_a_moment_later() -> None:
    _, (one, two, three) = several(3)
    one.acquire("long", ttl_ms=600_000)
    live_on(3_000, one, two, three)
    began_ms = one.clock()
    one.acquire(*[f"job-{number}" for number in range(90)], ttl_ms=1_000)
    live_on(700, one, two, three)
    live_on(3_000, two)  # one and three are killed just before
    late = late_ms(two.store, began_ms, 1_000)
    assert len(late) == 90
    assert max(late) <= SWEEP_LATE_MS_MAX + 2 * SWEEP_GRACE_MS


def test_on_an_idle_store_a_server_leaves_nothing_to_others_who_say_no_more_that_they_are_up() -> None:
    _, (one, two, three) = several(3)
    one.acquire(*[f"job-{number}" for number in range(20)], ttl_ms=1_000)
    live_on(2_000, one, two, three)
    assert len(one.store.scan("lock/")) == 20
    one.clock.advance(IDLE_RECORD_MS)
    two.sweeper.step()
    assert one.store.scan("lock/") == []


def test_contention_in_a_sweep_is_no_reason_to_take_the_store_for_gone() -> None:
    world = World()
    world.acquire("a", ttl_ms=1_000)
    world.stay_up(1_000)
    world.store.faults = ["conflict"] * 10_000
    with pytest.raises(StoreUnavailable):
        world.sweeper.step()
    assert not world.decider.liveness.has_gap()


@pytest.mark.fault("F-025")
@pytest.mark.parametrize("error", [InvalidInput("too much"), RuntimeError("a bug")])
def test_records_that_cannot_be_swept_do_not_keep_the_others_waiting(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.acquire(*[f"bad-{number}" for number in range(2 * SWEEP_BATCH_MIN)], ttl_ms=1_000)
    world.acquire("good", ttl_ms=1_100)
    upkeep = world.decider.upkeep

    def failing(commands: Sequence[Command]) -> list[Result]:
        bad = [isinstance(each, Sweep) and "/bad-" in each.key for each in commands]
        good = upkeep([each for each, is_bad in zip(commands, bad, strict=True) if not is_bad])
        return [error if is_bad else good.pop(0) for is_bad in bad]

    world.decider.upkeep = failing  # type: ignore[method-assign]
    rounds = world.live_through(1_100 + SWEEP_LATE_MS_MAX)
    assert [event.job for event in world.store.events(0, 999) if event.kind == events.EXPIRED] == ["good"]
    assert caplog.text.count("cannot be swept") == 2 * SWEEP_BATCH_MIN, "each is told once"
    assert rounds < 50, "and they are not tried again at once"


class Damaged(StoreProxy):
    """The record of the job `bad` cannot be read, once it is there."""

    is_damaged = False

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        if self.is_damaged and "lock/d/bad" in asked:
            decode("lock/d/bad", "{")
        return self.inner.read(asked)

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Page:
        found = self.inner.scan(prefix, after, limit, live=live)
        if self.is_damaged and "lock/d/bad" in dict(found):
            decode("lock/d/bad", "{")
        return found


@pytest.mark.fault("F-269")
def test_a_damaged_record_does_not_keep_the_others_from_expiring() -> None:
    clock = ManualClock()
    store = Damaged(MemoryStore(clock))
    world = World(clock=clock, store=store)
    world.acquire("bad", "good", ttl_ms=1_000)
    world.acquire("later", ttl_ms=SWEEP_RETRY_MS + 10_000)
    store.is_damaged = True
    world.live_through(1_000 + SWEEP_LATE_MS_MAX)
    assert [event.job for event in world.store.events(0, 999) if event.kind == events.EXPIRED] == ["good"]
    for _ in range(SWEEP_RETRY_MS // 100):
        world.decider.run([acquire("bad", ttl_ms=1_000)])  # it answers, so this is no outage
        world.live_through(100)
    world.live_through(9_000)
    assert [event.job for event in world.store.events(0, 999) if event.kind == events.EXPIRED] == ["good", "later"]


def test_a_record_that_could_not_be_swept_is_tried_again_after_its_time() -> None:
    world = World()
    world.acquire("bad")
    world.stay_up(1_000)
    tried: list[Command] = []

    def failing(commands: Sequence[Command]) -> list[Result]:
        tried.extend(commands)
        return [ValueError("a bug")] * len(commands)

    world.decider.upkeep = failing  # type: ignore[method-assign]
    world.sweeper.sweep()
    for ms, count in ((SWEEP_RETRY_MS - 1, 1), (1, 2)):
        world.clock.advance(ms)
        world.sweeper.sweep()
        assert len(tried) == count


@pytest.mark.fault("F-026")
@pytest.mark.promise("session")
def test_whoever_waits_for_the_last_of_a_thousand_jobs_of_a_session_that_ends_is_served_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "FREED_MAX", 100)  # so its end takes several rounds
    world = World()
    world.decider.run([OpenSession(ns="default", fresh_id="s", principal="p", owner="o", ttl_ms=60_000)])
    names = [f"job-{number:04}" for number in range(1_000)]
    world.decider.run([acquire(name, 600_000).replace(session="s") for name in names])
    waits = acquire(names[-1], 60_000).replace(owner="next", wait=True)
    world.decider.run([waits])
    world.sweeper.step()
    ended_ms = world.clock()
    world.decider.run([EndSession(session="s", principal="p")])
    world.sweeper.step()
    for _ in range(1_000 // SWEEP_BATCH_MIN + 1):
        if world.sweeper.step():
            break
    (served,) = [event for event in acquired(world.store) if event.owner == "next"]
    assert served.at_ms == ended_ms, "no round was waited for"


# Pulses follow what the store has


@pytest.mark.fault("F-024")
@pytest.mark.promise("lease:outage-credit")
def test_pulses_go_on_whatever_is_counted_and_end_when_nobody_has_anything() -> None:
    world = World()
    world.decider.run([OpenSession(ns="default", fresh_id="s", principal="p", owner="o", ttl_ms=3_600_000)])
    world.tally._open.clear()  # a count that is wrong
    world.tally.live = 0
    before = world.store.commits_tried
    world.live_through(3_000)
    assert world.store.commits_tried - before >= 3_000 // (PULSE_MS + SWEEP_LATE_MS_MAX)
    world.decider.run([EndSession(session="s", principal="p")])
    world.live_through(1_000)
    world.tally._open.add(1)
    before = world.store.commits_tried
    world.live_through(3_000)
    assert world.store.commits_tried == before


@pytest.mark.fault("F-027")
def test_a_parked_job_needs_no_pulses_and_a_restart_after_hours_is_no_outage() -> None:
    world = World()
    claim = acquire("stuck", 1_000).replace(max_attempts=1)
    world.decider.run([claim])
    world.live_through(2_000)
    assert events.PARKED in world.kinds()
    before = world.store.commits_tried
    world.live_through(10_000)
    assert world.store.commits_tried == before, "nobody has anything to lose"
    world.clock.advance(5 * 3_600_000)
    again = World(clock=world.clock, store=world.store)
    again.live_through(1_000)
    assert events.OUTAGE not in world.kinds()


def test_a_claim_on_an_idle_store_is_followed_by_a_pulse_at_once() -> None:
    """If the server is killed a moment later, the next one must not take the idle time for an outage."""
    world = World()
    world.live_through(1_000)
    world.clock.advance(200)
    world.acquire("a", ttl_ms=60_000)
    world.sweeper._step_at_ms = world.clock.steady_ms() + 250
    world.sweeper.stirred(())
    assert world.sweeper._step_at_ms == world.clock.steady_ms()
    before = world.store.commits_tried
    world.sweeper.step()
    assert world.store.commits_tried == before + 1


@pytest.mark.parametrize(
    ("due", "results", "has_more"),
    [
        (Due(keys=[], next_ms=None), [], False),
        (Due(keys=[], next_ms=None, has_more=True), [], True),
        (Due(keys=["lock/d/a"], next_ms=0), [Swept(now_ms=0, key="")], False),
        (Due(keys=["lock/d/a"], next_ms=0, has_more=True), [Swept(now_ms=0, key="")], True),
        (Due(keys=["lock/d/a"], next_ms=0), [Swept(now_ms=0, key="", unfinished=True)], True),
        (Due(keys=["lock/d/a", "lock/d/b"], next_ms=0), [Swept(now_ms=0, key="", unfinished=True)] * 2, True),
        (Due(keys=["lock/d/a"], next_ms=0, has_more=True), [Swept(now_ms=0, key="", frozen=True)], False),
        (Due(keys=["lock/d/a"], next_ms=0), [InvalidInput("a fault of one record")], False),
        (Due(keys=["newer/a"], next_ms=0), [], False),
        (Due(keys=["lock/d/a"] * SWEEP_BATCH_MIN, next_ms=0), [Swept(now_ms=0, key="")] * SWEEP_BATCH_MIN, True),
    ],
)
def test_the_next_round_follows_at_once_if_there_is_more(
    monkeypatch: pytest.MonkeyPatch, due: Due, results: list[Result], has_more: bool
) -> None:
    world = World()
    monkeypatch.setattr(world.store, "due", lambda limit: due)
    monkeypatch.setattr(world.decider, "upkeep", lambda commands: results)
    assert world.sweeper.sweep() == has_more


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreBroken("another format")])
def test_a_store_that_fails_in_a_sweep_fails_the_round(
    monkeypatch: pytest.MonkeyPatch, error: StoreUnavailable | StoreBroken
) -> None:
    world = World()
    monkeypatch.setattr(world.store, "due", lambda limit: Due(keys=["lock/d/a"], next_ms=0))
    monkeypatch.setattr(world.decider, "upkeep", lambda commands: [error])
    with pytest.raises(type(error)):
        world.sweeper.sweep()


# Its thread


class Rounds(Sweeper):
    """Says what each round does."""

    def __init__(self, step: Callable[[], int]) -> None:
        world = World()
        super().__init__(world.decider, world.tally)
        self.step = step  # type: ignore[method-assign]


def test_rounds_survive_their_faults(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Semaphore(0)
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        done.release()
        if count in (2, 3):
            raise StoreUnavailable("gone for now")
        return 1

    made = Rounds(step)
    made.start()
    for _ in range(6):
        assert done.acquire(timeout=WAIT_S_MAX)
    assert made.stop(10_000)
    assert caplog.text.count("sweeping failed") == 1
    assert caplog.text.count("sweeping works again") == 1


def test_a_round_can_be_hurried_but_not_put_off() -> None:
    rounds = threading.Semaphore(0)

    def step() -> int:
        rounds.release()
        return 3_600_000

    made = Rounds(step)
    made.start()
    assert rounds.acquire(timeout=WAIT_S_MAX)
    deadline = time.monotonic() + WAIT_S_MAX
    while made._step_at_ms - steady_ms() > 4_000_000:  # the first round has not said yet when it wants the next
        assert time.monotonic() < deadline
        time.sleep(0.001)
    made.hurry(7_200_000)
    assert made._step_at_ms - steady_ms() <= 3_600_000
    made.hurry(1)
    assert rounds.acquire(timeout=WAIT_S_MAX)
    assert made.stop(10_000)


class Wake:
    """In place of the thread's event: notes how long it would sleep, and lets that time pass."""

    def __init__(self, made: Rounds, clock: ManualClock, sleeps: int) -> None:
        self._made, self._clock, self._left = made, clock, sleeps
        self.slept_ms: list[int] = []
        self.is_set = False

    def wait(self, seconds: float) -> None:
        self.slept_ms.append(0 if self.is_set else round(seconds * 1000))
        self._clock.advance(self.slept_ms[-1])
        self._left -= 1
        self._made._stopping = not self._left

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False


def test_the_thread_sleeps_until_its_next_round_is_wanted_and_no_longer_than_the_bound() -> None:
    rests = [30, 500, 0, 2 * SWEEP_LATE_MS_MAX, 1_000]
    clock = ManualClock()

    def step() -> int:
        if len(rests) == 4:
            made.hurry(7)  # meanwhile: not lost, though the round wants none so soon
        return rests.pop(0)

    made = Rounds(step)
    made._steady = clock.steady_ms
    made._step_at_ms = clock.steady_ms() + 5
    made._wake = wake = Wake(made, clock, 8)  # type: ignore[assignment]
    made.hurry(5)
    assert not wake.is_set, "it comes as soon anyway"
    made._work()
    assert wake.slept_ms == [5, 30, 0, 7, 0, SWEEP_LATE_MS_MAX, SWEEP_LATE_MS_MAX, SWEEP_LATE_MS_MAX]
    assert rests == []
