"""Every decision is looked at while tests run (`testing/decisions.py`). These break one, and see that it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import lease_outcomes, outcomes, session_outcomes
from dibs.core.commands import Acquire, AcquireAll, OpenSession, Release, Sweep, Transfer
from dibs.core.decide import CHECKS, _present, decide
from dibs.core.draft import Decision, Draft, HandedOver, Missing, View
from dibs.core.holds.endings import end_hold
from dibs.core.holds.grants import grant
from dibs.core.limits import LEAVE_AT_ONCE_MAX, OWNERS_NAMED_MAX
from dibs.core.outcomes import Deadlock, Granted, Held, Outcome, Queued
from dibs.core.records import META_KEY, Holder, Ticket, lock_key
from dibs.core.waiting.tickets import drop
from dibs.testing.decisions import REFUSALS, check, wrong
from dibs.wire.documents import reply_to
from tests.core.make import holder
from tests.rules import put_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dibs.core.commands import Command
    from dibs.core.records import Stored

NS = "d"


class Store:
    """Records, and what the last decision was."""

    def __init__(self) -> None:
        self.records: dict[str, Stored | None] = {}
        self.now_ms = 1_000_000
        self.asked = 0
        self.handed: tuple[HandedOver, ...] = ()

    def run(self, command: Command) -> Any:
        view = View(self.now_ms, dict(self.records))
        decision: Decision | None = None
        while decision is None:
            try:
                decision = decide(view, command)
            except Missing as missing:
                view.records.update(dict.fromkeys(missing.keys))
        self.records.update(decision.writes)
        self.handed = decision.handed
        return decision.outcome

    def open(self, *sessions: str) -> None:
        for session in sessions:
            self.run(OpenSession(ns=NS, fresh_id=session, principal="p", owner=session, ttl_ms=600_000))

    def terms(self, session: str, more: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        fresh = {"fresh_lease_id": f"L{self.asked}", "owner": session, "session": session, "ttl_ms": 60_000}
        return {"ns": NS, "principal": "p", **fresh, **more}

    def claim(self, who: str, name: str, **more: Any) -> Any:
        return self.run(Acquire(name=name, **self.terms(who, more)))

    def claim_all(self, session: str, *names: str, **more: Any) -> Any:
        return self.run(AcquireAll(names=names, wait=True, **self.terms(session, more)))


@pytest.fixture
def store() -> Store:
    store = Store()
    store.open("S1", "S2", "S3")
    return store


def test_every_decision_of_a_test_is_looked_at() -> None:
    assert check in CHECKS


def test_every_outcome_is_a_refusal_or_says_what_was_done() -> None:
    """A new outcome is in `REFUSALS`, or here."""
    done = {
        *("Granted", "GrantedAll", "Queued", "Left", "Withdrawn", "TicketsKept", "Status", "Outcome", "JobOutcome"),
        *("Counted", "Swept", "BeatRecorded", "FreezeNoted", "Thawed", "Identified", "Raised", "Freed", "Transferred"),
        *("SessionState", "Renewed", "Released", "Failed", "AclSet", "PoolSet", "Broken", "ClosureSet", "Opened"),
        *("Numbered", "NumberReturned"),
    }
    found = {**vars(outcomes), **vars(lease_outcomes), **vars(session_outcomes)}
    kinds = {name for name, each in found.items() if isinstance(each, type) and issubclass(each, Outcome)}
    assert {each.__name__ for each in REFUSALS} == kinds - done


@pytest.mark.fault("F-390")
@pytest.mark.promise("answer")
def test_who_is_handed_a_job_is_told_the_lease_that_it_has_when_its_places_are_served_with_it(store: Store) -> None:
    store.claim("S1", "a")
    place = store.claim("S2", "a", wait=True, ttl_ms=0)
    assert isinstance(place, Queued)
    lease_id = "L1"
    told = store.run(
        Transfer(ns=NS, name="a", principal="p", lease_id=lease_id, fresh_lease_id="T", to_owner="S2", to_session="S2")
    )
    lock: Any = store.records[lock_key(NS, "a")]
    assert lock.holders[0].ttl_ms == told.lease.ttl_ms == 0
    assert lock.line == ()


@pytest.mark.fault("F-663")
@pytest.mark.promise("answer")
def test_an_answer_is_looked_at_by_the_time_of_its_decision_though_time_passes_while_more_is_read(store: Store) -> None:
    store.claim("S1", "a")
    view = View(store.now_ms, dict(store.records))

    def load(keys: Iterable[str]) -> None:
        """What is missing is read so late that the lease in the way has ended."""
        view.records.update(dict.fromkeys(keys))
        view.now_ms += 60_000

    view.load = load
    told = decide(view, Acquire(name="a", wait=True, **store.terms("S2", {}))).outcome
    assert view.now_ms > store.now_ms
    assert isinstance(told, Queued)
    assert (told.now_ms, [each.holder.owner for each in told.blockers]) == (store.now_ms, ["S1"])


# Rules that answer what they do not write.


def _forgets_the_lease(draft: Draft, command: Acquire) -> Outcome:
    lock = draft.lock(command.ns, command.name)
    return Granted(now_ms=draft.now_ms, name=lock.name, lease=lock.holders[0].replace(lease_id=command.fresh_lease_id))


def _refuses_after_a_grant(draft: Draft, command: Acquire) -> Outcome:
    grant(draft, command, draft.lock(command.ns, command.name), command.fresh_lease_id)
    return Held(now_ms=draft.now_ms, name=command.name)


def _refuses_and_drops_a_place(draft: Draft, command: Acquire) -> Outcome:
    for number in draft.lock(command.ns, command.name).line:
        ticket = draft.ticket(command.ns, command.name, number)
        assert isinstance(ticket, Ticket)
        drop(draft, ticket, "answered")
    return Deadlock(now_ms=draft.now_ms, name=command.name, cycle=("S3", "a"))


def _refuses_and_ends_a_hold(draft: Draft, command: Acquire) -> Outcome:
    lock = draft.lock(command.ns, command.name)
    end_hold(draft, lock, lock.holders[0], how="expired", at_ms=draft.now_ms)
    return Held(now_ms=draft.now_ms, name=command.name)


BROKEN: dict[str, tuple[Callable[[Draft, Any], Outcome], str]] = {
    "granted without a lease": (_forgets_the_lease, "does not have it"),
    "a refusal that grants": (_refuses_after_a_grant, "without a place"),
    "a refusal that takes a place": (_refuses_and_drops_a_place, "left the queue"),
    "a refusal that takes a job": (_refuses_and_ends_a_hold, "before its time"),
}


@pytest.mark.promise("answer")
@pytest.mark.parametrize("broken", BROKEN)
def test_an_answer_that_is_not_what_was_written_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    store.claim("S1", "a")
    store.claim("S2", "a", wait=True)
    rule, says = BROKEN[broken]
    put_rule(monkeypatch, Acquire, lambda real: rule, checked=True)
    command = Acquire(name="a", **store.terms("S3", {"principal": "q"}))
    with pytest.raises(AssertionError, match=says):
        store.run(command)


@pytest.mark.promise("answer")
def test_a_place_that_is_reported_and_not_there_is_found(store: Store) -> None:
    store.claim("S1", "a")
    told = store.claim("S2", "a", wait=True)
    view = View(store.now_ms, {key: None if "ticket" in key else found for key, found in store.records.items()})
    command = Release(ns=NS, name="a", principal="p", session="S1")
    assert "there is none" in str(wrong(view, command, Decision(outcome=told, writes={})))
    view.records = {META_KEY: None, **store.records}
    assert wrong(view, command, Decision(outcome=told, writes={})) is None
    assert "position" in str(wrong(view, command, Decision(outcome=told.replace(position=2), writes={})))


@pytest.mark.fault("F-393")
def test_an_answer_names_the_owners_that_end_first_and_says_how_many_there_are(store: Store) -> None:
    for number in range(150):
        store.claim("S1", f"path:src/{number}", ttl_ms=60_000 + 100 * (number % 7))
    for more in ({}, {"wait": True}):
        told = store.claim("S2", "repo:x", **more)
        assert (len(told.blockers), told.unnamed) == (OWNERS_NAMED_MAX, 50)
        named = [each.holder.expires_ms for each in told.blockers]
        assert max(named) <= store.now_ms + 60_500
        body = reply_to("acquire", told).body or {}
        assert (len(body["holders"]), body["holder_count"]) == (OWNERS_NAMED_MAX, 150)


@pytest.mark.promise("answer")
@pytest.mark.parametrize("ends", [{"done_ms": 60_000}, {"failed": True}])
def test_all_who_wait_for_a_job_are_told_when_it_is_done_or_parked(store: Store, ends: dict[str, Any]) -> None:
    """Of very many the rest is told by the sweep that comes at once."""
    store.claim("S1", "a", max_attempts=1)
    for number in range(LEAVE_AT_ONCE_MAX + 20):
        store.claim(f"W{number}", "a", wait=True, **{"session": None} if number else {"again": True, "session": None})
    store.run(Release(ns=NS, name="a", principal="p", session="S1", **ends))
    lock: Any = store.records[lock_key(NS, "a")]
    if "failed" in ends:
        assert len(lock.line) == 20
        assert lock.due_ms() <= store.now_ms
        store.run(Sweep(key=lock_key(NS, "a")))
        lock = store.records[lock_key(NS, "a")]
        assert lock.line == ()
    else:  # the first claims it again, and it is not done any more
        assert (lock.holders[0].owner, lock.done, len(lock.line)) == ("W0", None, LEAVE_AT_ONCE_MAX + 19)


@pytest.mark.fault("F-394")
@pytest.mark.promise("answer")
def test_who_is_served_by_its_own_release_is_not_told_that_it_has_the_job(store: Store) -> None:
    store.claim("S1", "a", ttl_ms=5_000, session=None)
    place = store.claim("S2", "a", wait=True, session=None)
    store.now_ms += 6_000
    gone = store.run(Release(ns=NS, name="a", principal="p", lease_id=place.ticket_id))
    assert isinstance(gone, lease_outcomes.Released)
    assert store.handed == ()


def of_each_kind(lease: Holder) -> list[Outcome]:
    """All kinds of answers in which a lease is told."""
    granted = Granted(now_ms=1_000_000, name="a", lease=lease)
    return [
        granted,
        outcomes.GrantedAll(now_ms=1_000_000, grants=(granted,)),
        outcomes.Refused(now_ms=1_000_000, outcomes=(), left=(granted,)),
    ]


def test_whatever_an_answer_is_its_leases_are_told_as_they_are_when_all_is_done() -> None:
    """One that was answered first may have been served to another place of its session since."""
    draft = Draft(View(1_000_000, {META_KEY: None}))
    was = holder(renewed_ms=1_000_000)
    now = was.replace(ttl_ms=90_000, expires_ms=1_090_000)
    held = {("a", was.lease_id): now, ("b", was.lease_id): was}
    for before, after in zip(of_each_kind(was), of_each_kind(now), strict=True):
        assert _present(draft, held, before) == after
        assert _present(draft, held, after) == after
        assert _present(draft, {}, before) == before
    nobody = outcomes.Refused(now_ms=1_000_000, outcomes=())
    assert _present(draft, held, nobody) is nobody
