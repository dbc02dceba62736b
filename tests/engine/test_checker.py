"""What the checker of the simulation holds against a server: no more than its clients were told."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import Acquire, AcquireAny, Renew
from dibs.core.events import ACCESS_SET, ACQUIRED, CLOSED, LEFT, OPENED, OUTAGE, POOL_SET, QUEUED, RELEASED, Event
from dibs.core.limits import REMEMBERED_MAX, REMEMBERED_MS
from dibs.core.outcomes import Blocker, Granted, Held, KeySpent, NotCurrent, Queued, Refused
from dibs.core.records import (
    EXPIRED,
    Ending,
    Holder,
    LockRecord,
    SessionRecord,
    Stored,
    Ticket,
    lock_key,
    session_key,
    ticket_key,
)
from dibs.stores.port import Versioned
from dibs.testing.checker import Checker
from dibs.testing.queue_checker import ANSWER_LATE_MS_MAX, IDLE_MS_MAX, KEPT_MS, NS, TICKETS_MAX

NOW_MS = 1_000_000
JOB = "job-0"


class Court:
    """A checker, and what it said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.records: dict[str, Versioned] = {}
        self.checker = Checker(self.say, self.records, lambda begin, end: "")

    def say(self, promise: str, says: str) -> None:
        self.said.append((promise, says))

    def write(self, hold: Holder, *events: Event) -> None:
        lock = LockRecord(ns=NS, name=JOB, token=hold.token, holders=(hold,))
        self.checker.committed({lock_key(NS, JOB): lock}, events, NOW_MS)


def lease(ttl_ms: int, expires_ms: int) -> Holder:
    times: dict[str, Any] = {"since_ms": NOW_MS, "renewed_ms": NOW_MS, "ttl_ms": ttl_ms, "expires_ms": expires_ms}
    return Holder(lease_id="L1", owner="c1", principal="team", token=1, session="s", **times)


def tell(court: Court, hold: Holder) -> None:
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "owner": "c1", "session": "s", "fresh_lease_id": "L1"}
    ask = Acquire(name=JOB, ttl_ms=20_000, **terms)
    court.write(hold, Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1))
    court.checker.heard("c1", ask, Granted(now_ms=NOW_MS, name=JOB, lease=hold), NOW_MS, NOW_MS)


@pytest.mark.fault("F-352")
def test_a_lease_that_was_answered_to_end_with_its_session_may_be_written_so() -> None:
    """A late repeat of the session's earlier claim makes it last as long as the session, which is what was told."""
    court = Court()
    tell(court, lease(20_000, NOW_MS + 9_490))
    court.write(lease(20_000, NOW_MS + 9_490))  # something else of the job is written
    court.write(lease(0, NOW_MS + 9_490))
    assert court.said == []


@pytest.mark.fault("F-440")
def test_after_an_outage_a_lease_of_a_session_may_be_written_to_last_as_long_as_that() -> None:
    """Its session has more time than its record says: what was told counts the outage, and the record does not."""
    court = Court()
    tell(court, lease(20_000, NOW_MS + 20_000))
    court.write(lease(0, NOW_MS + 9_490))
    assert court.said == []


def test_a_lease_that_ends_before_its_owner_was_told_is_one_that_was_cut() -> None:
    court = Court()
    tell(court, lease(20_000, NOW_MS + 9_490))
    court.write(lease(20_000, NOW_MS + 9_000))
    assert court.said == [("lease:never-early", f"c1's lease of {JOB} was cut by 490 ms.")]


@pytest.mark.fault("F-485")
@pytest.mark.parametrize("had_its_chance", [True, False])
def test_an_older_copy_of_the_store_knows_who_had_a_chance_after_an_outage(had_its_chance: bool) -> None:
    court = Court()
    times: dict[str, Any] = {"since_ms": NOW_MS, "renewed_ms": NOW_MS, "ttl_ms": 10_000, "expires_ms": NOW_MS + 30_000}
    session = SessionRecord(id="s", principal="team", owner="c1", ns=NS, **times)
    court.records[session_key("s")] = Versioned(record=session, version=1)
    earlier = Event(at_ms=NOW_MS + 5_000, kind=OUTAGE, began_ms=NOW_MS + 1_000)
    court.checker.alive(NOW_MS + 20_000)
    copy = Checker(court.say, court.records, lambda begin, end: "", court.checker)
    copy.learn([earlier] * had_its_chance, NOW_MS + 20_000)
    copy.alive(NOW_MS + 29_000)
    over = session.replace(ended_ms=NOW_MS + 30_000, how=EXPIRED)
    copy.committed({session_key("s"): over}, (), NOW_MS + 30_000)
    assert court.said == [("lease:outage-credit", "c1 lost its session in an outage.")] * (not had_its_chance)


def test_too_many_owners_of_a_pool_are_reported_in_units_and_slots() -> None:
    court = Court()
    pool = Event(at_ms=NOW_MS, kind=POOL_SET, ns=NS, job=JOB, reason="2 slots")
    one = Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1, slot_numbers=(0,))
    court.checker.committed({}, [pool, one], NOW_MS)
    two = one.replace(owner="c2", token=2, slot_numbers=(1, 2))
    court.checker.committed({}, [two], NOW_MS)
    assert ("excl", f"c2 was given 2 units of {JOB}: c1 had 1 of its 2 slots.") in court.said


@pytest.mark.parametrize("parent", ["s1", None])
def test_sessions_of_one_family_may_have_a_job_at_once_also_within_one_commit(parent: str | None) -> None:
    court = Court()
    times: dict[str, Any] = {"ttl_ms": 9_000, "since_ms": NOW_MS, "renewed_ms": NOW_MS, "expires_ms": NOW_MS + 9_000}
    for each, above in (("s1", None), ("s2", parent)):
        session = SessionRecord(id=each, principal="team", owner=each, ns=NS, parent=above, **times)
        court.records[session_key(each)] = Versioned(record=session, version=1)
    given = [Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner=f"s{n}", token=n) for n in (1, 2)]
    over = [each.replace(kind=RELEASED) for each in given]
    end: dict[str, Any] = {"principal": "team", "how": "released", "at_ms": NOW_MS}
    ends = tuple(Ending(lease_id=f"L{n}", owner=f"s{n}", token=n, session=f"s{n}", **end) for n in (2, 1))
    lock = LockRecord(ns=NS, name=JOB, token=2, endings=ends)
    court.checker.committed({lock_key(NS, JOB): lock}, [*given, *over], NOW_MS)
    assert court.said == ([] if parent else [("excl", f"s2 was given {JOB}, which s1 has.")])


class OneKey:
    """Leases of one job, one after the other. The last has the request key of the first."""

    def __init__(self) -> None:
        self.court = Court()
        self.lock = LockRecord(ns=NS, name=JOB)

    def writes(self, kind: str, number: int, now_ms: int, **lock: Any) -> None:
        self.lock = self.lock.replace(**lock)
        event = Event(at_ms=now_ms, kind=kind, ns=NS, job=JOB, owner="c1", token=number)
        self.court.checker.committed({lock_key(NS, JOB): self.lock}, [event], now_ms)

    def takes(self, token: int, now_ms: int, key: str) -> None:
        hold = lease(9_000, now_ms + 9_000).replace(session=None, lease_id=f"L{token}", token=token, request_key=key)
        self.writes(ACQUIRED, token, now_ms, token=token, holders=(hold,))

    def lets_go(self, token: int, now_ms: int, ended_ms: int) -> None:
        end: dict[str, Any] = {"owner": "c1", "principal": "team", "how": "released", "at_ms": ended_ms}
        self.writes(RELEASED, token, now_ms, holders=(), endings=(Ending(lease_id=f"L{token}", token=token, **end),))


@pytest.mark.fault("F-662")
@pytest.mark.parametrize(
    ("others", "past_ms", "is_known"),
    [
        (0, REMEMBERED_MS - 1, True),
        (0, REMEMBERED_MS, False),
        (REMEMBERED_MAX - 1, 1, True),
        (REMEMBERED_MAX, 1, False),
    ],
)
def test_a_request_key_has_one_lease_for_as_long_as_the_rules_remember_it(
    others: int, past_ms: int, is_known: bool
) -> None:
    one = OneKey()
    one.takes(1, NOW_MS, "k")
    one.lets_go(1, NOW_MS + 500, NOW_MS)  # it was over before anybody noticed
    for token in range(2, 2 + others):
        one.takes(token, NOW_MS, f"k{token}")
        one.lets_go(token, NOW_MS, NOW_MS)
    one.takes(99, NOW_MS + past_ms, "k")
    assert one.court.said == [("idem:acquire", f"Request key k has two leases of {JOB}.")] * is_known


# Lines


def place(job: str, number: int, owner: str, **more: Any) -> Ticket:
    times = {"since_ms": NOW_MS, "renewed_ms": NOW_MS, "expires_ms": NOW_MS + 15_000, "ttl_ms": 9_000}
    return Ticket(
        ns=NS, name=job, number=number, owner=owner, principal="team", lease_id=f"{job} {number}", **times | more
    )


def came(job: str, number: int, owner: str) -> Event:
    return Event(at_ms=NOW_MS, kind=QUEUED, ns=NS, job=job, owner=owner, ticket=number)


def put(court: Court, *records: LockRecord | Ticket) -> dict[str, Stored | None]:
    puts: dict[str, Stored | None] = {}
    for each in records:
        key = lock_key(NS, each.name) if isinstance(each, LockRecord) else ticket_key(NS, each.name, each.number)
        puts[key] = each
        court.records[key] = Versioned(record=each, version=1)
    return puts


def wait(court: Court, *places: Ticket, **lock: Any) -> None:
    """These stand in line, in this order."""
    for each in places:
        line = [*court.checker.waits.queue(each.name), each.number]
        record = LockRecord(ns=NS, name=each.name, line=tuple(line), marks="12345678" * len(line), **lock)
        event = came(each.name, each.number, each.owner)
        court.checker.committed(put(court, record, each), [event], NOW_MS)


def test_who_is_overtaken_under_another_name_of_its_tree_is_noticed() -> None:
    court = Court()
    wait(court, place("path:a", 1, "first"))
    times: dict[str, Any] = {"since_ms": NOW_MS, "renewed_ms": NOW_MS, "ttl_ms": 9_000, "expires_ms": NOW_MS + 9_000}
    hold = Holder(lease_id="L", owner="late", principal="team", token=1, **times)
    lock = LockRecord(ns=NS, name="path:a/b", token=1, holders=(hold,))
    given = Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job="path:a/b", owner="late", token=1)
    court.checker.committed({lock_key(NS, "path:a/b"): lock}, [given], NOW_MS)
    said = "late was given path:a/b before first, who waits for path:a at place 1 and came first."
    assert ("queue:fifo", said) in court.said


@pytest.mark.parametrize(("job", "lock"), [("path:a", {}), ("gpu", {"pooled": True, "slots": 2})])
def test_a_free_job_that_somebody_waits_for_is_a_lost_wake_up(job: str, lock: dict[str, Any]) -> None:
    court = Court()
    wait(court, place(job, 1, "first"), place(job, 2, "second"), **lock)
    court.said.clear()
    court.checker.look(NOW_MS, NOW_MS)
    assert court.said == []
    court.checker.look(NOW_MS + IDLE_MS_MAX + 1, None)
    assert court.said == [], "no server could serve"
    court.checker.look(NOW_MS + IDLE_MS_MAX + 1, NOW_MS)
    idle = f"{job} could be given to first, who is first in line, for {IDLE_MS_MAX + 1} ms, and nobody did"
    assert court.said == [("queue:one-wake", f"{idle}: a lost wake-up.")]


@pytest.mark.parametrize(
    "lock", [{"parked": True}, {"delay_until_ms": NOW_MS + 10**6}, {"pooled": True, "slots": 0}, {"acl": ("user:x",)}]
)
def test_who_cannot_be_served_may_wait(lock: dict[str, Any]) -> None:
    court = Court()
    wait(court, place("gpu", 1, "first"), **lock)
    court.said.clear()
    court.checker.look(NOW_MS, NOW_MS)
    court.checker.look(NOW_MS + IDLE_MS_MAX + 1, NOW_MS)
    assert court.said == []


@pytest.mark.fault("F-722")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_list_that_is_taken_away_in_the_commit_of_a_grant_counts_until_then(is_first: bool) -> None:
    court = Court()
    hold = lease(9_000, NOW_MS + 9_000)
    put(court, LockRecord(ns=NS, name=JOB, acl=("user:few",)))
    taken = Event(at_ms=NOW_MS, kind=ACCESS_SET, ns=NS, job=JOB, reason="no list")
    given = Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1)

    court.write(hold, *((taken, given) if is_first else (given, taken)))

    assert [promise for promise, _ in court.said if promise == "access"] == ["access"] * (not is_first)


@pytest.mark.fault("F-718")
def test_a_job_that_was_opened_and_not_given_yet_may_get_a_number() -> None:
    court = Court()
    closed, opened = [
        Event(at_ms=NOW_MS, kind=kind, ns=NS, job="lab/", until_ms=NOW_MS + 1) for kind in (CLOSED, OPENED)
    ]
    lock = LockRecord(ns=NS, name="lab/0", line=(1,), marks="12345678")
    court.checker.committed({}, [closed], NOW_MS)
    wait(court, place("lab/0", 1, "first"))
    put(court, lock)

    court.checker.committed({}, [opened], NOW_MS)
    court.checker.committed({lock_key(NS, "lab/0"): lock.replace(last_number=1)}, [], NOW_MS)

    assert court.said == []


def ask(number: int, **more: Any) -> Acquire:
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "owner": "c1", "ttl_ms": 9_000, "fresh_lease_id": "L9"}
    return Acquire(name=JOB, ticket=number, ticket_id=f"{JOB} {number}" if number else None, **terms | more)


def queued(number: int, at_ms: int) -> Queued:
    return Queued(now_ms=at_ms, ns=NS, name=JOB, ticket=number, ticket_id=f"{JOB} {number}", position=1)


@pytest.mark.parametrize(
    ("reason", "away_ms", "is_lost"),
    [
        *[("left", KEPT_MS, True), ("answered", 10, True), ("left", KEPT_MS + 1, False), ("done", 10, False)],
        pytest.param("session ended", 50, False, marks=pytest.mark.fault("F-733")),
    ],
)
def test_a_place_that_changed_although_its_caller_asked(reason: str, away_ms: int, is_lost: bool) -> None:
    court = Court()
    wait(court, place(JOB, 1, "c1"))
    court.checker.heard("c1", ask(0), queued(1, NOW_MS), NOW_MS, NOW_MS)
    gone = Event(at_ms=NOW_MS, kind=LEFT, ns=NS, job=JOB, owner="c1", ticket=1, reason=reason)
    court.checker.committed({}, [gone], NOW_MS)
    court.said.clear()
    court.checker.heard("c1", ask(1), queued(2, NOW_MS + away_ms), NOW_MS, NOW_MS)
    told = f"c1 stood in line for {JOB} at place 1, asked again with its ticket after {away_ms} ms"
    said = [("queue:fifo", f"{told}, and was told of place 2: others are ahead of it now who came after it.")]
    assert court.said == (said if is_lost else [])


@pytest.mark.parametrize(("left_ms", "is_early"), [(0, False), (1, True)])
def test_a_place_that_went_with_a_session_that_lasts_longer_is_reported(left_ms: int, is_early: bool) -> None:
    court = Court()
    times: dict[str, Any] = {"since_ms": NOW_MS, "renewed_ms": NOW_MS, "ttl_ms": 9_000}
    times["expires_ms"] = NOW_MS + left_ms
    session = SessionRecord(id="s", ns=NS, owner="c1", principal="team", **times)
    court.records[session_key("s")] = Versioned(record=session, version=1)
    wait(court, place(JOB, 1, "c1").replace(session="s"))
    court.said.clear()
    gone = Event(at_ms=NOW_MS, kind=LEFT, ns=NS, job=JOB, owner="c1", ticket=1, reason="session ended")
    court.checker.committed({}, [gone], NOW_MS)
    said = f"c1's place for {JOB} went with its session, which lasts for {left_ms} ms more."
    assert court.said == ([("lease:never-early", said)] if is_early else [])


def test_a_waiter_that_was_given_its_job_and_is_not_answered_is_reported_as_late() -> None:
    court = Court()
    waits = court.checker.waits
    waits.follow(came(JOB, 1, "c1"), NOW_MS)
    waits.follow(Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1, ticket=1), NOW_MS)
    waits.answered_late(JOB, 1, "c1", NOW_MS, NOW_MS + ANSWER_LATE_MS_MAX)
    assert court.said == []
    waits.answered_late(JOB, 1, "c1", NOW_MS, NOW_MS + ANSWER_LATE_MS_MAX + 1)
    assert [promise for promise, _ in court.said] == ["queue:one-wake"]


def test_a_server_that_asks_without_end_is_noticed() -> None:
    court = Court()
    for number in range(TICKETS_MAX):
        court.checker.waits.takes(came(JOB, number, "c1"))
    assert court.said == []
    court.checker.waits.takes(came(JOB, TICKETS_MAX, "c1"))
    assert "a server asks without end" in court.said[0][1]


# Answers


def test_an_owner_that_had_let_go_before_is_no_answer() -> None:
    court = Court()
    hold = lease(20_000, NOW_MS + 9_000).replace(session=None)
    court.write(hold, Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1))
    let_go = Event(at_ms=NOW_MS, kind=RELEASED, ns=NS, job=JOB, owner="c1", token=1)
    court.checker.committed({}, [let_go], NOW_MS)
    held = Held(now_ms=NOW_MS, name=JOB, blockers=(Blocker(name=JOB, holder=hold),))
    court.checker.answered(ask(0), held)
    assert court.said == [], "it may have read the store just before"
    court.checker.answered(ask(0), held.replace(now_ms=NOW_MS + 5))
    assert court.said == [("excl", f"c1 was told that c1 has {JOB}, whose lease had ended 5 ms before.")]


def test_an_owner_of_a_slot_is_told_of_its_loss_only_after_one() -> None:
    court = Court()
    hold = lease(20_000, NOW_MS + 20_000).replace(session=None)
    tell(court, hold)
    renew = Renew(ns=NS, name=JOB, principal="team", lease_id="L1")
    court.checker.heard("c1", renew, NotCurrent(now_ms=NOW_MS, name=JOB), NOW_MS, NOW_MS + 500)
    said = f"c1 was told that its lease of {JOB} is lost, 19500 ms before its end, and nobody had ended it."
    assert court.said == [("lease:never-early", said)]


@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize(
    ("names", "is_wrong"),
    [(("lost", JOB), True), pytest.param(("lost", "free"), False, marks=pytest.mark.fault("F-798"))],
)
def test_who_is_told_that_a_claim_is_lost_has_none_of_its_jobs(names: tuple[str, ...], is_wrong: bool) -> None:
    court = Court()
    hold = lease(9_000, NOW_MS + 9_000).replace(request_key="k", session=None)
    court.write(hold, Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1))
    put(court, LockRecord(ns=NS, name=JOB, token=1, holders=(hold,)))
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "owner": "c1", "ttl_ms": 9_000, "fresh_lease_id": "L2"}
    how: dict[str, Any] = {"lease_id": "L0", "owner": "c1", "principal": "team", "token": 1, "at_ms": NOW_MS}
    spent = KeySpent(now_ms=NOW_MS, name="lost", ending=Ending(how=EXPIRED, request_key="k", **how))
    court.said.clear()

    told = Refused(now_ms=NOW_MS, outcomes=(spent,), all_of=1)
    court.checker.heard("c1", AcquireAny(names=names, request_key="k", count=1, **terms), told, NOW_MS, NOW_MS)

    assert [promise for promise, _ in court.said] == ["all-or-nothing"] * is_wrong
