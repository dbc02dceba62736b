"""Counts that follow the store, each event once, whoever wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Break, EndSession, Free, Leave, OpenSession, Release, SetPool
from dibs.core.outcomes import Granted, Queued
from dibs.engine.coordinator import Coordinator
from dibs.engine.decider import Decider
from dibs.engine.tally import Tally
from dibs.stores.memory import MemoryStore
from dibs.stores.port import StoreProxy
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from dibs.core.events import Event


class World:
    """A server with a tally, and another process on the same store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.tally = Tally()
        self.decider = Decider(self.store, self.tally.committed, self.clock.steady_ms)
        self.elsewhere = Coordinator(self.store)

    def acquire(self, name: str, principal: str = "a") -> str:
        (result,) = self.decider.run([_acquire(name, principal)])
        assert isinstance(result, Granted)
        return result.lease.lease_id

    def release(self, name: str, lease: str, principal: str = "a") -> None:
        self.decider.run([Release(ns="d", name=name, principal=principal, lease_id=lease)])

    def acquire_elsewhere(self, name: str, principal: str = "b") -> str:
        result = self.elsewhere.one(_acquire(name, principal))
        assert isinstance(result, Granted)
        return result.lease.lease_id

    def counts(self) -> tuple[int, int, int]:
        return self.tally.live, self.tally.live_of("a"), self.tally.live_of("b")


def count_all(tally: Tally, store: MemoryStore) -> None:
    tally.begin(store)
    count_on(tally, store)


def count_on(tally: Tally, store: MemoryStore) -> None:
    while tally.is_counting:
        tally.count_page(store)


def _acquire(name: str, principal: str) -> Acquire:
    return Acquire(ns="d", name=name, principal=principal, owner="o", ttl_ms=60_000, fresh_lease_id=new_id())


def test_our_own_commits_count_at_once() -> None:
    world = World()
    lease = world.acquire("x")
    world.acquire("y")
    assert world.counts() == (2, 2, 0)
    world.release("x", lease)
    assert world.counts() == (1, 1, 0)
    world.decider.run([Break(ns="d", name="y", principal="op", reason="r")])
    assert world.counts() == (0, 0, 0)
    assert dict(world.tally.kinds) == {"acquired": 2, "released": 1, "broken": 1}


def test_what_others_wrote_counts_when_it_is_read_and_nothing_counts_twice() -> None:
    world = World()
    world.acquire("x")
    theirs = world.acquire_elsewhere("y")
    world.acquire("z")  # behind theirs: both wait for the reading, in order
    world.tally.catch_up(world.store)
    assert world.counts() == (3, 2, 1)
    world.elsewhere.one(Release(ns="d", name="y", principal="b", lease_id=theirs))
    world.acquire("y")
    world.tally.catch_up(world.store)
    world.tally.catch_up(world.store)
    assert world.counts() == (3, 3, 0)
    assert world.tally.kinds["acquired"] == 4


@pytest.mark.fault("F-256")
def test_after_an_older_copy_took_over_all_is_counted_anew() -> None:
    world = World()
    world.acquire("kept")
    copy = world.store.moment()
    world.acquire("lost")
    for key in world.store._records.keys() - copy._records.keys():
        world.store._put(key, None)
    for key, found in copy._records.items():
        world.store._put(key, found)
    world.store._events = copy._events
    world.store.number_from(1_000)
    world.acquire_elsewhere("new")
    world.tally.catch_up(world.store)
    count_on(world.tally, world.store)
    assert world.counts() == (2, 1, 1)
    world.acquire("lost")
    assert world.counts() == (3, 2, 1)


def fail(world: World, name: str, retry_ms: int = 0, **terms: Any) -> None:
    (result,) = world.decider.run([_acquire(name, "a").replace(**terms)])
    assert isinstance(result, Granted)
    world.decider.run(
        [Release(ns="d", name=name, principal="a", lease_id=result.lease.lease_id, failed=True, retry_ms=retry_ms)]
    )


@pytest.mark.fault("F-274")
@pytest.mark.promise("events:told")
def test_after_a_copy_with_as_many_events_took_over_all_is_counted_anew_and_reported() -> None:
    """Two histories with one beginning, whose numbers are the same."""
    before, after = World(), World()
    told: list[Event] = []
    before.tally = Tally(told.extend)
    before.decider = Decider(before.store, before.tally.committed, before.clock.steady_ms)
    count_all(before.tally, before.store)
    for world, principal in ((before, "a"), (after, "b")):
        world.acquire_elsewhere("kept", "b")
        if world is before:
            before.tally.catch_up(before.store)
        world.acquire("job", principal)
    after.acquire_elsewhere("later")
    assert before.counts() == (2, 1, 1)
    told.clear()
    before.tally.catch_up(after.store)
    count_on(before.tally, after.store)
    assert before.counts() == (3, 0, 3)
    assert [event.job for event in told] == ["job", "later"]
    before.tally.catch_up(after.store)
    assert before.counts() == (3, 0, 3)


def test_parked_failed_and_resting_jobs_are_counted_and_a_server_that_starts_counts_the_same() -> None:
    world = World()

    def states() -> list[int]:
        started = Tally()
        count_all(started, world.store)
        now_ms = world.store.read(()).now_ms
        assert started.states(now_ms) == world.tally.states(now_ms)
        return list(world.tally.states(now_ms).values())

    fail(world, "parked", max_attempts=1)
    fail(world, "failed")
    fail(world, "resting", retry_ms=5_000)
    world.acquire("lost")
    world.decider.run([Break(ns="d", name="lost", principal="op", reason="r")])
    assert states() == [1, 3, 1]
    world.clock.advance(5_000)
    assert states() == [1, 3, 0]
    world.decider.run([Free(ns="d", name="parked", principal="op")])
    assert states() == [0, 4, 0]
    for name in ("parked", "failed", "lost"):
        world.release(name, world.acquire(name))
    assert states() == [0, 1, 0]


def test_a_job_that_somebody_still_shares_has_not_failed() -> None:
    world = World()
    world.decider.run([_acquire("shared", "b").replace(mode="shared")])
    fail(world, "shared", mode="shared")
    assert world.tally.states(0)["failed"] == 0
    started = Tally()
    count_all(started, world.store)
    world.decider.run([Break(ns="d", name="shared", principal="op", reason="r")])
    started.catch_up(world.store)
    assert world.tally.states(0)["failed"] == started.states(0)["failed"] == 1


def test_an_owner_from_before_its_job_was_a_pool_leaves_the_count_of_the_next_ones_right() -> None:
    world = World()
    lease = world.acquire("gpu")
    world.decider.run([SetPool(ns="d", name="gpu", principal="op", slots=2)])
    world.release("gpu", lease)
    world.acquire("gpu", "b")
    fail(world, "gpu")
    assert world.tally.states(0)["failed"] == 0, "somebody has it still"


def test_a_loss_after_which_nobody_is_granted_the_job_is_a_rest() -> None:
    world = World()
    world.decider.run([_acquire("lost", "a").replace(delay_ms=9_000)])
    world.decider.run([Break(ns="d", name="lost", principal="op", reason="r")])
    now_ms = world.store.read(()).now_ms
    assert world.tally.states(now_ms) == {"parked": 0, "failed": 1, "resting": 1}
    assert world.tally.states(now_ms + 9_000)["resting"] == 0


def test_our_own_events_are_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(10):
        world.acquire(f"job-{number}")
    assert world.store.events(10, 10) == []
    read: list[int] = []
    original = world.store.events

    def events(after: int, limit: int) -> list[object]:
        read.append(after)
        return list(original(after, limit))

    monkeypatch.setattr(world.store, "events", events)
    world.tally.catch_up(world.store)
    assert read == [9]  # the last one, by which it knows where it is


def test_a_start_counts_what_is_held_already() -> None:
    world = World()
    for number in range(2_500):  # more than one page
        world.acquire_elsewhere(f"job-{number}")
    gone = world.acquire_elsewhere("gone")
    world.elsewhere.one(Release(ns="d", name="gone", principal="b", lease_id=gone))
    count_all(world.tally, world.store)
    assert world.counts() == (2_500, 0, 2_500)
    assert not world.tally.kinds, "what happened before the start is not counted"
    world.acquire("x")
    assert world.counts() == (2_501, 1, 2_500)


def test_what_happens_during_the_first_count_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    lease = world.acquire_elsewhere("early")
    original = world.store.scan

    def scan(*args: Any, live: bool = False) -> list[Any]:
        first = live and args[:2] == ("lock/", "")
        if first:
            world.acquire_elsewhere("during")  # in the scan and in the events after it
        page = original(*args, live=live)
        if first:
            world.elsewhere.one(Release(ns="d", name="early", principal="b", lease_id=lease))
            passing = world.acquire_elsewhere("passing")
            world.elsewhere.one(Release(ns="d", name="passing", principal="b", lease_id=passing))
        return page

    monkeypatch.setattr(world.store, "scan", scan)
    count_all(world.tally, world.store)
    assert world.counts() == (1, 0, 1)


def test_principals_that_hold_nothing_are_forgotten() -> None:
    world = World()
    for number in range(50):
        lease = world.acquire("job", f"p-{number}")
        world.release("job", lease, f"p-{number}")
    assert len(world.tally._by_principal) == 0
    assert len(world.tally._claims) == 0


def test_places_in_lines_and_open_sessions_are_counted_whoever_made_them() -> None:
    world = World()
    lease = world.acquire("x")
    session = new_id()
    world.elsewhere.one(OpenSession(ns="default", fresh_id=session, principal="b", owner="o", ttl_ms=60_000))
    queued = [world.decider.run([_acquire("x", "a").replace(wait=True)])[0] for _ in range(2)]
    world.elsewhere.one(_acquire("x", "b").replace(wait=True, session=session))
    world.tally.catch_up(world.store)
    assert (world.tally.waiting, world.tally.sessions) == (3, 1)
    fresh = Tally()
    count_all(fresh, world.store)
    assert (fresh.waiting, fresh.sessions) == (3, 1)
    world.release("x", lease)
    assert world.tally.waiting == 2, "the first has the job now"
    last = queued[1]
    assert isinstance(last, Queued)
    world.decider.run([Leave(ns="d", name="x", principal="a", ticket=last.ticket, ticket_id=last.ticket_id)])
    assert world.tally.waiting == 1
    world.elsewhere.one(EndSession(session=session, principal="b"))
    world.tally.look(world.store)
    assert (world.tally.waiting, world.tally.sessions) == (0, 0)


def test_what_others_wrote_is_passed_on_and_our_own_is_not() -> None:
    world = World()
    told: list[str] = []
    world.tally._on_read = lambda events: told.extend(event.job for event in events)
    world.acquire("ours")
    world.tally.look(world.store)
    assert told == []
    world.acquire_elsewhere("theirs")
    world.tally.look(world.store)
    assert told == ["theirs"]


def test_where_numbers_have_gaps_own_events_are_counted_when_they_are_read_back() -> None:
    """A number that follows ours may still have another's before it, so nothing is taken for known."""
    world = World()
    world.tally = Tally(gapless=False)
    world.decider = Decider(world.store, world.tally.committed, world.clock.steady_ms)
    lease = world.acquire("x")
    world.acquire_elsewhere("y")
    assert world.counts() == (0, 0, 0)
    world.tally.catch_up(world.store)
    assert world.counts() == (2, 1, 1)
    world.release("x", lease)
    world.tally.catch_up(world.store)
    world.tally.catch_up(world.store)
    assert world.counts() == (1, 0, 1)
    assert dict(world.tally.kinds) == {"acquired": 2, "released": 1}


def test_what_is_there_at_the_start_is_counted_a_page_at_a_time_while_others_go_on() -> None:
    world = World()
    leases = {name: world.acquire_elsewhere(name) for name in map(str, range(10))}
    world.elsewhere.one(OpenSession(ns="default", fresh_id="s-1", principal="p", owner="o", ttl_ms=60_000))
    told: list[str] = []
    world.tally = Tally(lambda events: told.extend(event.job for event in events if event.job))
    world.tally.page = 4
    world.decider = Decider(world.store, world.tally.committed, world.clock.steady_ms)
    world.tally.begin(world.store)
    assert world.tally.is_counting
    world.tally.count_page(world.store)
    world.clock.advance(1)
    world.acquire("own")
    world.elsewhere.one(Release(ns="d", name="0", principal="b", lease_id=leases["0"]))
    world.elsewhere.one(Release(ns="d", name="9", principal="b", lease_id=leases["9"]))
    world.elsewhere.one(OpenSession(ns="default", fresh_id="s-2", principal="p", owner="o", ttl_ms=60_000))
    world.tally.catch_up(world.store)
    assert told == ["own", "0", "9"], "who waits is told at once, counted or not"
    count_on(world.tally, world.store)
    assert dict(world.tally.kinds) == {"acquired": 1, "released": 2, "session-opened": 1}
    assert world.counts() == (9, 1, 8)
    assert world.tally.sessions == 2
    assert told == ["own", "0", "9"], "and not again"
    world.acquire("another")
    assert world.counts() == (10, 2, 8)


@pytest.mark.fault("F-028")
def test_a_session_that_ends_while_a_starting_server_counts_does_not_make_the_count_wrong() -> None:
    world = World()
    for number in range(6):
        world.elsewhere.one(OpenSession(ns="default", fresh_id=f"s-{number}", principal="p", owner="o", ttl_ms=60_000))
        world.clock.advance(1)
    world.tally.page = 2
    world.tally.begin(world.store)
    world.tally.count_page(world.store)
    for number in (0, 3, 5):  # the first is counted, the others are not yet
        world.elsewhere.one(EndSession(session=f"s-{number}", principal="p"))
    while world.tally.is_counting:
        world.tally.count_page(world.store)
    assert world.tally.sessions == 3
    for number in (1, 2, 4):
        world.elsewhere.one(EndSession(session=f"s-{number}", principal="p"))
    world.tally.catch_up(world.store)
    assert world.tally.sessions == 0


@pytest.mark.fault("F-459")
@pytest.mark.parametrize("later", ["s-0", "s-3"], ids=["behind the pages", "before them"])
def test_a_session_that_opens_between_two_pages_in_the_millisecond_of_another_is_counted(later: str) -> None:
    world = World()
    opening = OpenSession(ns="default", fresh_id="s-1", principal="p", owner="o", ttl_ms=60_000)
    world.elsewhere.run([opening, opening.replace(fresh_id="s-2")])
    world.tally.page = 1
    world.tally.begin(world.store)
    world.tally.count_page(world.store)
    world.elsewhere.one(opening.replace(fresh_id=later))
    while world.tally.is_counting:
        world.tally.count_page(world.store)
    assert world.tally.sessions == 3
    for each in (later, "s-1", "s-2"):
        world.elsewhere.one(EndSession(session=each, principal="p"))
    world.tally.catch_up(world.store)
    assert world.tally.sessions == 0


def test_what_others_did_is_read_with_one_question_unless_it_fills_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two servers, every question is a part of how long a hand-off takes."""
    world = World()
    asked: list[int] = []
    events = world.store.events

    def counted(after: int, limit: int, *rest: Any, **options: Any) -> Any:
        asked.append(after)
        return events(after, limit, *rest, **options)

    monkeypatch.setattr(world.store, "events", counted)
    world.tally.events_page = 3
    for number in range(2):
        world.acquire_elsewhere(f"x{number}")
    world.tally.catch_up(world.store)
    assert asked == [0]
    for number in range(2, 8):
        world.acquire_elsewhere(f"x{number}")
    world.tally.catch_up(world.store)
    assert asked == [0, 1, 4, 7]  # each page with the last event of the one before
    assert world.tally.live == 8


@pytest.mark.fault("F-192")
@pytest.mark.fault("F-250")
@pytest.mark.parametrize("count", [1, 2])
def test_sessions_that_open_while_a_server_begins_to_count_are_counted_once(count: int) -> None:
    store = MemoryStore(ManualClock())

    class Between(StoreProxy):
        is_opened = False

        def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Any:
            if not self.is_opened:
                self.is_opened = True
                opening = OpenSession(ns="default", fresh_id="s", principal="team", owner="w", ttl_ms=10_000)
                Coordinator(store).run([opening.replace(fresh_id=f"s{number}") for number in range(count)])
            return self.inner.scan(prefix, after, limit, live=live)

    tally, slow = Tally(), Between(store)
    tally.begin(slow)
    tally.count_page(slow)
    assert tally.sessions == count
    Coordinator(store).one(EndSession(session="s0", principal="team"))
    tally.catch_up(store)
    assert tally.sessions == count - 1


@pytest.mark.fault("F-193")
def test_a_store_that_fails_in_the_middle_of_the_first_count_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(5):
        world.elsewhere.one(_acquire(f"job-{number}", "a"))
    tally = Tally()
    tally.page = 2
    tally.begin(world.store)
    tally.count_page(world.store)

    def fail(*args: object, **more: object) -> Any:
        raise StoreUnavailable("It does not answer.")

    with monkeypatch.context() as broken:
        broken.setattr(world.store, "scan", fail)
        with pytest.raises(StoreUnavailable):
            tally.count_page(world.store)
    count_on(tally, world.store)
    assert tally.live == 5
