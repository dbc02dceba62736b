"""Reads, decides, writes if unchanged: what happens when others write in between, a rule breaks or a reply is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import (
    DibsError,
    InvalidInput,
    NotAllowed,
    StoreBroken,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from dibs.core import lease_outcomes, outcomes
from dibs.core import lease_outcomes as upkeep_outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    AcquireTerms,
    Beat,
    Break,
    EndSession,
    Inspect,
    OpenSession,
    Release,
    Renew,
    SetAcl,
    Sweep,
)
from dibs.core.limits import COMMIT_BATCH_MAX, CONFLICT_RETRIES_MAX, IDLE_RECORD_MS, UNKNOWN_RETRIES_MAX
from dibs.core.records import META_KEY, LockRecord, lock_key, session_key
from dibs.engine.coordinator import CallerGone, Contended, Coordinator, _CommitGroup
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Busy, CommitTooLarge, Conflict, RecordCorrupt
from dibs.testing.faulty import FaultyStore
from dibs.wire.documents import reply_to
from tests.build import COMPILED
from tests.rules import put_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.draft import Draft
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored, Ticket
    from dibs.stores.port import Snapshot, Store
    from tests.rules import Rule

NS = "default"
JOB = "issue-1"


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class WatchedStore(MemoryStore):
    """Counts its calls. Of `before_commit` and `after_commit` one is run at each commit, in turn; what runs there may
    use the store itself, undisturbed."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.reads: list[list[str]] = []
        self.commits = 0
        self._inside = False
        self.before_commit: list[Callable[[], None]] = []
        self.after_commit: list[Callable[[], None]] = []

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        self.reads.append(asked)
        return super().read(asked)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self.commits += 1
        assert set(puts) <= set(expect), "what is written was read first"
        self._let(self.before_commit)
        revision = super().commit(expect, puts, events)
        self._let(self.after_commit)
        return revision

    def _let(self, waiting: list[Callable[[], None]]) -> None:
        if waiting and not self._inside:
            self._inside = True
            try:
                waiting.pop(0)()
            finally:
                self._inside = False


class World:
    """A store, its coordinator, and a second coordinator for whoever comes in between."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = WatchedStore(self.clock)
        self.told: list[Sequence[Event]] = []
        self.coordinator = Coordinator(self.store, on_commit=lambda events, seq: self.told.append(list(events)))
        self.other = Coordinator(self.store)

    def one(self, command: Command) -> Any:
        return self.coordinator.one(command)

    def lock(self, name: str = JOB) -> LockRecord:
        record = self.store.read([lock_key(NS, name)]).records[lock_key(NS, name)].record
        assert isinstance(record, LockRecord)
        return record

    def history(self) -> list[tuple[str, str]]:
        return [(event.kind, event.owner) for event in self.store.events(0, 1_000)]

    def loses_reply(self) -> None:
        """The commit happened; its caller does not learn it."""
        self.store.after_commit.append(lost)


def lost() -> None:
    raise StoreUnavailable("The connection broke.", unknown=True)


@pytest.fixture
def world() -> World:
    return World()


def acquire(who: str, name: str = JOB, **more: Any) -> Acquire:
    made = Acquire(ns=NS, name=name, principal="team", owner=who, ttl_ms=10_000, fresh_lease_id=f"lease-{who}")
    return made.replace(**more)


def renew(who: str, **more: Any) -> Renew:
    return Renew(ns=NS, name=JOB, principal="team", lease_id=f"lease-{who}").replace(**more)


def release(who: str, **more: Any) -> Release:
    return Release(ns=NS, name=JOB, principal="team", lease_id=f"lease-{who}").replace(**more)


@pytest.mark.fault("F-008")
def test_a_claim_whose_caller_goes_between_two_tries_is_not_decided(world: World) -> None:
    gone: list[str] = []
    coordinator = Coordinator(world.store, is_gone=lambda command: getattr(command, "owner", "") in gone)

    def others_write_and_it_goes() -> None:
        world.one(acquire("z", name="other"))
        world.one(Release(ns=NS, name="other", principal="team", lease_id="lease-z"))
        gone.append("a")

    world.store.before_commit.append(others_write_and_it_goes)
    first, second = coordinator.run([acquire("a", name="other"), acquire("b")])
    assert isinstance(first, CallerGone)
    assert isinstance(second, outcomes.Granted)
    assert not world.lock("other").holders


@pytest.mark.fault("F-455")
@pytest.mark.promise("queue:no-dead-grant")
def test_a_claim_whose_caller_goes_before_all_is_read_again_is_not_decided(world: World) -> None:
    """Its caller may have been refused by another server meanwhile."""
    world.one(acquire("b", ttl_ms=2_000))
    assert isinstance(world.one(acquire("a", request_key="k", wait=True)), outcomes.Queued)
    world.clock.now_ms += 2_001
    events, reads = world.history(), world.store.reads
    reads.clear()
    coordinator = Coordinator(world.store, is_gone=lambda command: command == claim and len(reads) > 1)
    claim = acquire("a", request_key="k", wait=True)
    told, other = coordinator.run([claim, acquire("c", name="other")])
    assert len(reads) > 1, "its place is read when it is known"
    assert isinstance(told, CallerGone)
    assert isinstance(other, outcomes.Granted), "the others of the batch are answered"
    assert [each for each in world.history() if each not in events] == [("acquired", "c")]


@pytest.mark.fault("F-008")
@pytest.mark.parametrize("key", [None, "k"])
def test_a_claim_that_may_have_been_written_is_withdrawn_if_its_caller_has_gone(world: World, key: str | None) -> None:
    gone: list[str] = []
    coordinator = Coordinator(world.store, is_gone=lambda command: bool(gone))

    def goes() -> None:
        gone.append("a")
        lost()

    world.store.after_commit.append(goes)
    (told,) = coordinator.run([acquire("a", request_key=key)])
    assert isinstance(told, StoreUnavailable)
    assert told.unknown
    assert bool(world.lock().holders) == bool(key), "with a key it can be asked for"


@pytest.mark.fault("F-381")
@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("kind", ["one", "any", "all", "in line"])
def test_a_claim_that_was_not_written_is_not_decided_anew_for_a_caller_that_has_gone(
    world: World, key: str | None, kind: str
) -> None:
    """Its caller may have been refused by another server meanwhile."""
    gone: list[str] = []
    coordinator = Coordinator(world.store, is_gone=lambda command: bool(gone))
    if kind == "in line":
        world.one(acquire("b", ttl_ms=60_000))
    one = acquire("a", request_key=key, wait=True)
    terms: dict[str, Any] = {field: getattr(one, field) for field in AcquireTerms._fields}
    claims = {"any": AcquireAny(names=(JOB, "x"), **terms), "all": AcquireAll(names=(JOB, "x"), **terms)}

    def goes() -> None:
        gone.append("a")
        lost()

    events = world.history()
    world.store.before_commit.append(goes)
    (told,) = coordinator.run([claims.get(kind, one)])
    assert isinstance(told, StoreUnavailable)
    assert told.unknown
    assert world.history() == events, "nothing was granted, and nobody waits"


@pytest.mark.fault("F-130")
def test_a_claim_that_may_have_been_written_is_reported_as_unknown_though_others_then_wrote_and_its_caller_has_gone(
    world: World,
) -> None:
    gone: list[str] = []
    coordinator = Coordinator(world.store, is_gone=lambda command: getattr(command, "owner", "") in gone)

    def later_without_a_reply() -> None:
        world.clock.now_ms += 1_000
        lost()

    def others_write_and_it_goes() -> None:
        world.other.one(renew("a", checkpoint="half"))
        gone.append("a")

    world.store.before_commit += [lambda: None, others_write_and_it_goes]
    world.store.after_commit.append(later_without_a_reply)
    first, second = coordinator.run([acquire("a"), acquire("b", name="other")])
    assert isinstance(second, outcomes.Granted)
    assert world.lock().holders, "it was renewed: somebody has its lease id"
    assert isinstance(first, StoreUnavailable)
    assert first.unknown


BREAK = Break(ns=NS, name=JOB, principal="op", reason="stuck")


# Others write in between


@pytest.mark.promise("excl")
def test_a_claim_that_was_overtaken_is_decided_again_on_what_is_there_now(world: World) -> None:
    world.store.before_commit.append(lambda: granted(world.other.one(acquire("a2"))))
    outcome = world.one(acquire("a1"))
    assert isinstance(outcome, outcomes.Held)
    assert [blocker.holder.owner for blocker in outcome.blockers] == ["a2"]
    assert world.history() == [("acquired", "a2")]


@pytest.mark.promise("excl", "token:rises")
def test_two_that_see_the_same_expired_lease_do_not_both_get_it(world: World) -> None:
    world.one(acquire("a0"))
    world.clock.now_ms = 10_000
    world.store.before_commit.append(lambda: granted(world.other.one(acquire("a2"))))
    assert isinstance(world.one(acquire("a1")), outcomes.Held)
    assert world.history() == [("acquired", "a0"), ("expired", "a0"), ("acquired", "a2")]
    assert world.lock().token == 2


@pytest.mark.promise("proof")
def test_a_heartbeat_that_was_overtaken_by_a_break_is_told_so(world: World) -> None:
    world.one(acquire("a1"))
    world.store.before_commit.append(lambda: broken(world.other.one(BREAK)))
    outcome = world.one(renew("a1"))
    assert isinstance(outcome, outcomes.NotCurrent)
    assert outcome.ending is not None
    assert outcome.ending.how == "broken"


@pytest.mark.promise("lease:outage-credit")
def test_a_takeover_that_was_overtaken_by_news_of_an_outage_gives_way_to_the_credit(world: World) -> None:
    """What a decision only read is compared too, not only what it writes."""
    world.one(Beat(server="s", alive_since_ms=0))
    world.one(acquire("a1"))
    world.clock.now_ms = 60_000
    world.store.before_commit.append(lambda: noted(world.other.one(Beat(server="s", alive_since_ms=60_000))))
    assert isinstance(world.one(acquire("a2")), outcomes.Held)


@pytest.mark.promise("token:rises")
def test_a_claim_that_was_overtaken_by_the_forgetting_of_the_job_takes_the_floor_into_account(
    world: World,
) -> None:
    for who in ("a1", "a2"):
        world.one(acquire(who))
        world.one(release(who))
    world.clock.now_ms = IDLE_RECORD_MS
    world.store.before_commit.append(lambda: forgotten(world.other.one(Sweep(key=lock_key(NS, JOB)))))
    outcome = world.one(acquire("a3"))
    assert isinstance(outcome, outcomes.Granted)
    assert outcome.lease.token == 3


@pytest.mark.promise("excl")
def test_it_goes_on_deciding_as_often_as_it_is_overtaken(world: World) -> None:
    def pass_by() -> None:
        who = f"b{len(world.store.before_commit)}"
        first, second = world.other.run([acquire(who), release(who)])
        assert isinstance(first, outcomes.Granted)
        assert isinstance(second, lease_outcomes.Released)

    world.store.before_commit += [pass_by] * 20
    outcome = world.one(acquire("a1"))
    assert isinstance(outcome, outcomes.Granted)
    assert outcome.lease.token == 21
    assert [kind for kind, _ in world.history()] == ["acquired", "released"] * 20 + ["acquired"]


def test_being_overtaken_without_end_is_an_unavailable_store_and_nothing_is_written(world: World) -> None:
    world.one(acquire("a0"))

    def overtake() -> None:
        renewed(world.other.one(renew("a0")))
        world.store.before_commit.append(overtake)

    world.store.before_commit.append(overtake)
    before = world.store.commits
    with pytest.raises(StoreUnavailable) as caught:
        world.one(release("a0"))
    assert not caught.value.unknown
    assert world.store.commits - before == 2 * CONFLICT_RETRIES_MAX
    assert world.history() == [("acquired", "a0")]


# Sessions and lines


def opened(world: World, *sessions: str) -> None:
    for session in sessions:
        world.one(OpenSession(ns="default", fresh_id=session, principal="team", owner=session, ttl_ms=60_000))


def waits(session: str, name: str) -> Acquire:
    return acquire(session, name, session=session, wait=True, fresh_lease_id=f"wait-{session}")


@pytest.mark.promise("deadlock")
@pytest.mark.parametrize("wait", [True, False], ids=["waiting", "polling"])
def test_of_two_that_would_close_a_cycle_at_the_same_moment_exactly_one_is_refused(world: World, wait: bool) -> None:
    opened(world, "s1", "s2")
    world.one(acquire("s1", "x", session="s1"))
    world.one(acquire("s2", "y", session="s2"))
    between: list[Outcome] = []
    world.store.before_commit.append(lambda: between.append(world.other.one(waits("s2", "x").replace(wait=wait))))
    outcome = world.one(waits("s1", "y").replace(wait=wait))
    assert isinstance(outcome, outcomes.Deadlock)
    assert outcome.cycle == ("s1", "y", "s2", "x")
    assert isinstance(between[0], outcomes.Queued if wait else outcomes.Held)


@pytest.mark.promise("tree")
def test_of_two_overlapping_claims_at_the_same_moment_exactly_one_is_granted(world: World) -> None:
    world.store.before_commit.append(lambda: granted(world.other.one(acquire("a2", "path:src/auth.rs"))))
    outcome = world.one(acquire("a1", "path:src"))
    assert isinstance(outcome, outcomes.Held)
    assert [blocker.name for blocker in outcome.blockers] == ["path:src/auth.rs"]


@pytest.mark.promise("queue:fifo", "queue:one-wake")
def test_a_release_that_a_newcomer_overtakes_wakes_one_waiter_and_that_is_the_head_of_the_line(
    world: World,
) -> None:
    handed: list[tuple[str, int]] = []
    coordinator = Coordinator(
        world.store, on_handed=lambda told: handed.extend((each.name, each.number) for each in told)
    )
    world.one(acquire("a1"))
    for who in ("w1", "w2", "w3"):
        world.one(acquire(who, wait=True))
    world.store.before_commit.append(lambda: queued(world.other.one(acquire("late", wait=True, request_key="k"))))
    coordinator.one(release("a1"))
    assert handed == [(JOB, 1)]
    assert [holder.owner for holder in world.lock().holders] == ["w1"]


@pytest.mark.promise("idem:acquire")
def test_a_place_whose_commit_went_through_unheard_is_one_place(world: World) -> None:
    world.one(acquire("a1"))
    world.loses_reply()
    outcome = world.one(acquire("a2", wait=True))
    assert isinstance(outcome, outcomes.Queued)
    assert (outcome.ticket, outcome.position) == (1, 1)
    assert world.lock().line == (1,)


@pytest.mark.promise("idem:acquire")
def test_a_claim_of_any_whose_commit_went_through_unheard_is_the_same_job(world: World) -> None:
    """A name further up the list became free meanwhile."""
    world.one(acquire("a1"))
    any_of = AcquireAny(
        ns=NS, names=(JOB, "issue-2"), principal="team", owner="a2", ttl_ms=10_000, fresh_lease_id="lease-a2"
    )

    def freed_and_lost() -> None:
        assert isinstance(world.other.one(release("a1")), lease_outcomes.Released)
        lost()

    world.store.after_commit.append(freed_and_lost)
    outcome = world.one(any_of)
    assert isinstance(outcome, outcomes.Granted)
    assert outcome.name == "issue-2"
    assert not world.lock().holders


@pytest.mark.promise("session")
def test_a_session_that_holds_more_than_one_commit_frees_is_over_at_once_for_everybody(world: World) -> None:
    world.clock.now_ms = 1
    opened(world, "s1", "s2")
    names = [f"job-{number:03}" for number in range(150)]
    for name in names:
        granted(world.one(acquire("s1", name, session="s1", fresh_lease_id=f"lease-{name}", ttl_ms=0)))
    granted(world.one(acquire("s2", "other", session="s2")))
    world.one(EndSession(session="s1", principal="team"))
    granted(world.one(acquire("a9", names[-1])))
    for _ in range(10):
        for key in world.store.due(100).keys:
            world.one(Sweep(key=key))
    held = [name for name in [*names, "other"] if world.lock(name).holders]
    assert held == [names[-1], "other"]
    assert [kind for kind, _ in world.history()].count("released") == len(names)


@pytest.mark.promise("all-or-nothing")
def test_hundreds_of_dead_places_for_several_are_cleared_in_one_decision(world: World) -> None:
    world.one(acquire("a1"))
    for number in range(400):
        both = AcquireAll(
            ns=NS,
            names=(JOB, "issue-2"),
            principal="team",
            owner="w",
            ttl_ms=1_000,
            fresh_lease_id=f"w{number}",
        )
        world.one(both.replace(wait=True))
    world.clock.now_ms = 15_000
    world.one(release("a1"))
    granted(world.one(acquire("a2", "issue-2")))
    assert not world.lock().line


def queued(outcome: Outcome) -> None:
    assert isinstance(outcome, outcomes.Queued)


# Many at once


@pytest.mark.promise("excl")
def test_of_a_hundred_claims_of_one_job_in_one_write_one_is_granted(world: World) -> None:
    results = world.coordinator.run([acquire(f"w{number}") for number in range(100)])
    assert [type(result) for result in results] == [outcomes.Granted] + [outcomes.Held] * 99
    assert all(result.blockers[0].holder.owner == "w0" for result in results if isinstance(result, outcomes.Held))
    assert world.store.commits == 1
    assert world.history() == [("acquired", "w0")]


def test_many_commands_are_one_read_and_one_write(world: World) -> None:
    results = world.coordinator.run([acquire("a1", f"issue-{number}") for number in range(50)])
    assert all(isinstance(result, outcomes.Granted) for result in results)
    assert (len(world.store.reads), world.store.commits) == (1, 1)
    assert world.store.reads[0].count(META_KEY) == 1


def test_a_command_sees_what_the_ones_before_it_did(world: World) -> None:
    results = world.coordinator.run(
        [acquire("a1"), acquire("a2"), release("a1"), acquire("a2"), renew("a1"), BREAK, acquire("a3")]
    )
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["Granted", "Held", "Released", "Granted", "NotCurrent", "Broken", "Granted"]
    assert [holder.token for holder in world.lock().holders] == [3]


def test_nothing_to_do_is_nothing_done(world: World) -> None:
    assert world.coordinator.run([]) == []
    assert world.store.commits == 0


@pytest.mark.parametrize(
    "command",
    [
        Inspect(ns=NS, name=JOB),
        Inspect(ns=NS, name="never-seen"),
        acquire("a2"),
        renew("a2"),
        release("a2"),
        release("a0"),
    ],
    ids=["look", "look at nothing", "held", "stranger renews", "stranger releases", "released again"],
)
def test_an_answer_that_changes_nothing_writes_nothing(world: World, command: Command) -> None:
    for each in (acquire("a0"), release("a0"), acquire("a1")):
        world.one(each)
    commits, told = world.store.commits, len(world.told)
    world.one(command)
    assert (world.store.commits, len(world.told)) == (commits, told)


@pytest.mark.fault("F-012")
def test_looking_does_not_write_the_expiry_it_sees_so_it_does_not_report_it_either(world: World) -> None:
    world.one(acquire("a1"))
    world.clock.now_ms = 10_000
    status = world.one(Inspect(ns=NS, name=JOB))
    assert isinstance(status, outcomes.Status)
    assert [holder.owner for holder in status.lock.holders] == ["a1"]
    assert world.store.commits == 1
    assert world.lock().holders
    world.one(Sweep(key=lock_key(NS, JOB)))
    assert not world.one(Inspect(ns=NS, name=JOB)).lock.holders


@pytest.mark.fault("F-012")
def test_nobody_is_told_that_a_job_is_free_in_the_middle_of_a_lease_that_goes_on(world: World) -> None:
    """A heartbeat is decided in time and written a moment after the time is over; somebody looks in between."""
    world.one(acquire("a1"))
    world.clock.now_ms = 9_999
    seen: list[Any] = []

    def looks_meanwhile() -> None:
        world.clock.now_ms = 10_001
        seen.append(Coordinator(world.store).one(Inspect(ns=NS, name=JOB)))

    world.store.before_commit.append(looks_meanwhile)
    assert isinstance(world.one(renew("a1")), lease_outcomes.Renewed)
    seen.append(world.one(Inspect(ns=NS, name=JOB)))
    assert [[holder.owner for holder in each.lock.holders] for each in seen] == [["a1"], ["a1"]]
    body = reply_to("inspect", seen[0]).body
    assert body is not None
    assert (body["status"], body["remaining_ms"]) == ("held", 0)


# A rule breaks


def failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision about the job named bad raises."""

    def breaks(rule: Rule) -> Rule:
        def broken(draft: Draft, command: Any) -> Outcome | Ticket:
            if command.name == "bad":
                raise error
            return rule(draft, command)

        return broken

    put_rule(monkeypatch, Acquire, breaks)


def test_a_rule_that_raises_takes_only_its_own_command_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = ZeroDivisionError("a fault")
    failing(fault, monkeypatch)
    first, second, third = world.coordinator.run([acquire("a1"), acquire("a1", "bad"), acquire("a1", "issue-2")])
    assert isinstance(first, outcomes.Granted)
    assert second is fault
    assert isinstance(third, outcomes.Granted)
    assert world.history() == [("acquired", "a1"), ("acquired", "a1")]
    with pytest.raises(ZeroDivisionError):
        world.one(acquire("a1", "bad"))


def test_an_error_of_the_store_concerns_everyone(world: World) -> None:
    def full() -> None:
        raise StoreFull("The disk is full.")

    world.store.before_commit.append(full)
    results = world.coordinator.run([acquire("a1"), acquire("a1", "issue-2")])
    assert [type(each) for each in results] == [StoreFull] * 2
    assert world.history() == []
    assert not world.told


# A fault of one record


class Poisoned(WatchedStore):
    """Fails in a way that no store should when it reads or writes a job, or when it reads another record."""

    def __init__(self, fault: Exception, when: str, unread: str = lock_key(NS, "bad")) -> None:
        super().__init__(lambda: 1_000_000)
        self.fault = fault
        self.when = when
        self.unread = unread

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        if self.when == "read" and self.unread in asked:
            self.reads.append(asked)
            raise self.fault
        return super().read(asked)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        is_bad = lock_key(NS, "bad") in puts
        if is_bad and self.when == "before it writes":
            raise self.fault
        last_seq = super().commit(expect, puts, events)
        if is_bad and self.when == "after it has written":
            raise self.fault
        return last_seq


@pytest.mark.fault("F-269")
@pytest.mark.parametrize("when", ["read", "before it writes"])
@pytest.mark.parametrize("fault", [KeyError("a field"), RecordCorrupt("damaged"), InvalidInput("no UTF-8")])
def test_a_record_that_the_store_cannot_take_fails_only_who_needs_it_however_often_it_is_asked_for(
    fault: Exception, when: str
) -> None:
    store = Poisoned(fault, when)
    rules = Coordinator(store, pause=lambda seconds: None)
    for at in (0, 2, 4):
        names = [f"job-{at}-{number}" for number in range(COMMIT_BATCH_MAX - 1)]
        names.insert(100 * at, "bad")
        before = len(store.reads) + store.commits
        results = dict(zip(names, rules.run([acquire(f"a-{name}", name) for name in names]), strict=True))
        bad = results.pop("bad")
        assert all(isinstance(each, outcomes.Granted) for each in results.values())
        assert len(store.reads) + store.commits - before < 80, "the bad one is found in a few steps"
        if isinstance(fault, KeyError) and when != "read":
            assert isinstance(bad, StoreUnavailable)
            assert bad.unknown, "the store may have written before it failed"
        else:
            assert bad is fault


@pytest.mark.fault("F-269")
@pytest.mark.parametrize("fault", [KeyError("a field"), RecordCorrupt("damaged")])
def test_a_record_that_cannot_be_read_during_a_decision_fails_only_that_one(fault: Exception) -> None:
    store = Poisoned(fault, "never", session_key("s1"))
    rules = Coordinator(store, pause=lambda seconds: None)
    rules.one(OpenSession(ns=NS, principal="team", owner="a1", ttl_ms=60_000, fresh_id="s1"))
    rules.one(acquire("a1", session="s1"))
    store.when = "read"
    results = rules.run([acquire("a2", "issue-2"), acquire("a2"), acquire("a2", "issue-3")])
    assert results[1] is fault
    assert [type(results[at]) for at in (0, 2)] == [outcomes.Granted] * 2
    assert store.commits == 3, "the others were written together"


@pytest.mark.fault("F-269")
def test_a_store_that_fails_in_a_way_it_should_not_after_it_has_written_is_found_to_have_written() -> None:
    store = Poisoned(KeyError("a field"), "after it has written")
    rules = Coordinator(store, pause=lambda seconds: None)
    broken = Break(ns=NS, name="bad", principal="op", reason="stuck")
    results = rules.run([acquire("a1"), acquire("a1", "bad"), acquire("a2", "issue-2")])
    assert [type(each) for each in results] == [outcomes.Granted] * 3
    assert [event.kind for event in store.events(0, 10)] == ["acquired"] * 3, "each of them once"
    told = rules.run([acquire("a2"), broken])[1]
    assert isinstance(told, StoreUnavailable)
    assert told.unknown, "a break cannot recognise its own effect"
    lock = store.read([lock_key(NS, "bad")]).records[lock_key(NS, "bad")].record
    assert isinstance(lock, LockRecord)
    assert not lock.holders


@pytest.mark.fault("F-269")
def test_an_error_after_a_lost_reply_never_says_that_nothing_was_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for a fault of a rule, which is found when the command is decided again."""

    def breaks_and_loses() -> None:
        failing(ZeroDivisionError("a fault"), monkeypatch)
        lost()

    world.store.after_commit.append(breaks_and_loses)
    told = world.coordinator.run([acquire("a1", "bad")])[0]
    assert world.history() == [("acquired", "a1")]
    assert isinstance(told, StoreUnavailable)
    assert told.unknown


@pytest.mark.fault("F-269")
def test_what_was_committed_is_reported_though_whoever_follows_commits_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fails(events: Sequence[Event], last_seq: int) -> None:
        raise ZeroDivisionError("a fault")

    store = WatchedStore(lambda: 1_000_000)
    results = Coordinator(store, on_commit=fails).run([acquire("a1"), acquire("a1", "issue-2")])
    assert [type(each) for each in results] == [outcomes.Granted] * 2
    assert "a fault" in caplog.text


# The reply to a write is lost


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("times", range(1, UNKNOWN_RETRIES_MAX + 1))
def test_a_claim_whose_commit_went_through_unheard_is_the_same_lease(world: World, times: int) -> None:
    for _ in range(times):
        world.loses_reply()
    outcome = world.one(acquire("a1"))
    assert isinstance(outcome, outcomes.Granted)
    assert (outcome.lease.lease_id, outcome.lease.token) == ("lease-a1", 1)
    assert world.history() == [("acquired", "a1")]


def test_a_claim_whose_commit_never_arrived_is_made_again(world: World) -> None:
    world.store.before_commit.append(lost)
    outcome = world.one(acquire("a1"))
    assert isinstance(outcome, outcomes.Granted)
    assert not outcome.again
    assert world.history() == [("acquired", "a1")]


@pytest.mark.promise("excl", "idem:acquire")
def test_a_claim_that_never_arrived_and_was_overtaken_meanwhile_is_held_by_another(world: World) -> None:
    def overtaken() -> None:
        granted(world.other.one(acquire("a2")))
        lost()

    world.store.before_commit.append(overtaken)
    assert isinstance(world.one(acquire("a1")), outcomes.Held)
    assert world.history() == [("acquired", "a2")]


@pytest.mark.promise("idem:release")
def test_a_release_whose_commit_went_through_unheard_is_released(world: World) -> None:
    world.one(acquire("a1"))
    world.loses_reply()
    outcome = world.one(release("a1", done_ms=5_000, result="merged"))
    assert isinstance(outcome, lease_outcomes.Released)
    assert world.history() == [("acquired", "a1"), ("released", "a1")]
    done = world.lock().done
    assert done is not None
    assert done.until_ms == 5_000


def test_a_heartbeat_whose_commit_went_through_unheard_is_renewed_and_reported_once(world: World) -> None:
    world.one(acquire("a1"))
    world.clock.now_ms = 9_000
    world.loses_reply()
    outcome = world.one(renew("a1", checkpoint="half"))
    assert isinstance(outcome, lease_outcomes.Renewed)
    assert outcome.lease.expires_ms == 19_000
    assert world.history() == [("acquired", "a1"), ("progress", "a1")]


@pytest.mark.promise("idem:release", "idem:acquire")
def test_a_hand_over_within_one_unheard_write_is_found_as_it_was_made(world: World) -> None:
    world.one(acquire("a1"))
    world.loses_reply()
    first, second = world.coordinator.run([release("a1"), acquire("a2")])
    assert isinstance(first, lease_outcomes.Released)
    assert isinstance(second, outcomes.Granted)
    assert second.lease.token == 2
    assert world.history() == [("acquired", "a1"), ("released", "a1"), ("acquired", "a2")]


@pytest.mark.promise("proof")
@pytest.mark.parametrize("went_through", [True, False])
def test_a_break_of_unknown_outcome_is_not_repeated_and_says_so(world: World, went_through: bool) -> None:
    """Repeated, it could take the job from whoever got it next."""
    world.one(acquire("a1"))
    (world.store.after_commit if went_through else world.store.before_commit).append(lost)
    other, result = world.coordinator.run([acquire("b1", "issue-2"), BREAK])
    assert isinstance(other, outcomes.Granted), "its neighbours are answered"
    assert isinstance(result, StoreUnavailable)
    assert result.unknown
    assert [kind for kind, _ in world.history()].count("broken") == went_through
    assert bool(world.lock().holders) != went_through


def test_a_break_that_was_postponed_is_not_in_doubt_with_those_before_it(world: World) -> None:
    def others_write() -> None:
        world.other.one(renew("a1", checkpoint="half"))

    world.one(acquire("a1"))
    world.store.before_commit.append(others_write)
    world.store.after_commit.append(lost)
    other, result = world.coordinator.run([acquire("b1", "issue-2"), BREAK])
    assert isinstance(other, outcomes.Granted)
    assert isinstance(result, lease_outcomes.Broken)


def test_a_break_in_doubt_is_not_repeated_when_its_batch_becomes_too_large(world: World) -> None:
    def too_large() -> None:
        raise CommitTooLarge("too long")

    world.one(acquire("a1"))
    world.store.before_commit += [lost, too_large]
    other, result = world.coordinator.run([acquire("b1", "issue-2"), BREAK])
    assert isinstance(other, outcomes.Granted)
    assert isinstance(result, StoreUnavailable)
    assert result.unknown
    assert [each.owner for each in world.lock().holders] == ["a1"]


def test_a_change_of_access_of_unknown_outcome_is_not_repeated_and_says_so(world: World) -> None:
    world.one(acquire("a1"))
    world.loses_reply()
    with pytest.raises(StoreUnavailable) as caught:
        world.one(SetAcl(ns=NS, name=JOB, principal="team", acl=("team",)))
    assert caught.value.unknown


class ThenFailing(FaultyStore):
    """The reply of the next commit is lost; then the store fails in the way that the test names."""

    def __init__(self, store: Store, failure: str) -> None:
        super().__init__(store, ["lost after"])
        self.failure = failure

    def read(self, keys: Iterable[str]) -> Snapshot:
        if self.commits_tried and self.failure == "the read fails":
            raise StoreUnavailable("No database answers.")
        if self.commits_tried and self.failure == "the records are damaged":
            raise StoreCorrupt("The record is damaged.")
        if self.commits_tried and self.failure == "the store is taken":
            raise Busy("taken")
        return super().read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self.commits_tried and self.failure == "the commit is refused":
            raise StoreUnavailable("The disk is full.")
        if self.commits_tried and self.failure == "others are always first":
            raise Conflict
        if self.commits_tried and self.failure == "the commit is too large":
            raise CommitTooLarge("Too large.")
        return super().commit(expect, puts, events)


@pytest.mark.fault("F-020")
@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    "failure",
    [
        "the read fails",
        "the records are damaged",
        "the store is taken",
        "the commit is refused",
        "others are always first",
        "the commit is too large",
    ],
)
def test_a_write_that_may_have_happened_is_never_reported_as_not_done(world: World, failure: str, other: bool) -> None:
    world.one(acquire("bad"))
    world.one(acquire("worse", "another"))
    failing = ThenFailing(world.store, failure)
    doubtful = Coordinator(failing, pause=lambda seconds: None)
    commands: list[Command] = [Break(ns=NS, name=JOB, principal="op", reason="stuck")]
    if other:
        commands.append(Renew(ns=NS, name="another", principal="team", lease_id="lease-worse", checkpoint="x"))
    results = doubtful.run(commands)
    assert world.lock().holders == (), "it was written"
    told = results[0]
    assert isinstance(told, StoreUnavailable)
    assert told.unknown
    assert not isinstance(told, Busy | Contended), "whoever reads this tries again"
    for result in results[1:]:
        assert not isinstance(result, StoreUnavailable) or result.unknown


def test_a_store_that_stays_silent_is_unavailable_with_an_unknown_outcome(world: World) -> None:
    world.store.before_commit += [lost] * (UNKNOWN_RETRIES_MAX + 1)
    with pytest.raises(StoreUnavailable) as caught:
        world.one(acquire("a1"))
    assert caught.value.unknown
    assert world.store.commits == UNKNOWN_RETRIES_MAX + 1


def test_what_the_store_says_did_not_happen_is_not_tried_again(world: World) -> None:
    def refuse() -> None:
        raise StoreUnavailable("Not now.")

    world.store.before_commit.append(refuse)
    with pytest.raises(DibsError, match="Not now"):
        world.one(acquire("a1"))
    assert world.store.commits == 1


# Telling


@pytest.mark.promise("audit")
def test_what_was_committed_is_reported_in_order_one_commit_at_a_time(world: World) -> None:
    world.coordinator.run([acquire("a1"), release("a1"), acquire("a2")])
    world.one(renew("a2"))
    world.one(BREAK)
    told = [[(event.kind, event.owner) for event in events] for events in world.told if events]
    assert told == [[("acquired", "a1"), ("released", "a1"), ("acquired", "a2")], [("broken", "a2")]]


def test_what_was_not_committed_is_not_reported(world: World) -> None:
    world.store.before_commit.append(lambda: granted(world.other.one(acquire("a2"))))
    world.one(acquire("a1"))
    assert not world.told


@pytest.mark.promise("audit")
def test_what_was_committed_unheard_is_not_reported_and_is_in_history_all_the_same(world: World) -> None:
    """Whoever must not miss one follows the store's events."""
    world.loses_reply()
    world.one(acquire("a1"))
    assert not world.told
    assert world.history() == [("acquired", "a1")]


# What the one in between got


def granted(outcome: Outcome) -> None:
    assert isinstance(outcome, outcomes.Granted)


def renewed(outcome: Outcome) -> None:
    assert isinstance(outcome, lease_outcomes.Renewed)


def broken(outcome: Outcome) -> None:
    assert isinstance(outcome, lease_outcomes.Broken)
    assert outcome.holders


def noted(outcome: Outcome) -> None:
    assert isinstance(outcome, upkeep_outcomes.BeatRecorded)
    assert outcome.outage_ms


def forgotten(outcome: Outcome) -> None:
    assert isinstance(outcome, upkeep_outcomes.Swept)
    assert outcome.forgotten


class NoPlaces(MemoryStore):
    """Its places in lines cannot be read, once the test says so."""

    fails = False

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        if self.fails and any(key.startswith("ticket/") for key in asked):
            raise StoreUnavailable("The read was lost, as the test asked.")
        return super().read(asked)


def test_a_read_that_fails_in_the_midst_of_a_batch_fails_the_batch_and_nothing_of_it_is_written() -> None:
    store = NoPlaces(lambda: 1_000_000)
    rules = Coordinator(store)

    def claim(name: str, who: str) -> Acquire:
        return Acquire(ns=NS, name=name, principal=who, owner=who, ttl_ms=60_000, fresh_lease_id=who, wait=True)

    rules.run([claim("a", "one"), claim("a", "two")])
    store.fails = True
    last = store.newest_seq()
    results = rules.run([claim("b", "one"), claim("a", "two").replace(ticket=1, ticket_id="two")])
    assert [type(each) for each in results] == [StoreUnavailable] * 2
    assert store.newest_seq() == last


@pytest.mark.fault("F-269")
@pytest.mark.parametrize("call", ["read", "commit"])
@pytest.mark.parametrize("fault", [StoreBroken("the schema was dropped"), NotAllowed("may not write")])
def test_a_store_that_is_broken_is_not_asked_thousands_of_times_by_one_batch(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, call: str
) -> None:
    """Each ask is a round trip to a network store, and nobody is answered before the last of them."""
    store = MemoryStore(lambda: 1_000_000)
    asked: list[object] = []

    def breaks(*args: object) -> None:
        asked.append(args)
        raise fault

    monkeypatch.setattr(store, call, breaks)
    results = Coordinator(store).run([acquire(f"a-{number}", f"job-{number}") for number in range(256)])
    assert results == [fault] * 256
    assert len(asked) < 64


class Overtaken:
    """Stands for a batch: which of its commands, in the order they were decided, read what others have changed."""

    def __init__(self, *late: int) -> None:
        self.late = late

    def overtaken(self) -> list[int]:
        return [*self.late]


@pytest.mark.skipif(COMPILED, reason="compiled code takes no other batch")
@pytest.mark.parametrize(
    ("todo", "failed", "late", "left"),
    [
        ([0, 1, 2], [], (1,), [1]),
        ([2, 4], [], (1,), [4]),
        ([0, 1, 2], [0], (0,), [1]),  # the first was not decided
        ([0, 1, 2], [2], (0, 1), []),  # all that were decided
        ([0, 1], [], (0, 1), []),
        ([0, 1, 2], [], (), []),
        ([0], [], (0,), []),
    ],
)
def test_those_in_conflict_are_put_off_unless_they_are_none_or_all(
    todo: list[int], failed: list[int], late: tuple[int, ...], left: list[int]
) -> None:
    group = _CommitGroup([Inspect(ns="d", name="a")] * 5, list(todo), {})
    group.failed = {index: CallerGone("gone") for index in failed}
    assert group.put_off_overtaken(Overtaken(*late)) is bool(left)  # type: ignore[arg-type]
    assert (group.left, group.todo) == (left, [index for index in todo if index not in left])
