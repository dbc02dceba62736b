"""Who is served, dropped, refused or told of a circle: one rule of lines, trees and access lists at a time."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Inspect,
    InspectSession,
    KeepSession,
    KeepTickets,
    Leave,
    OpenSession,
    Release,
    Renew,
    SetAcl,
    SetPool,
    Sweep,
    Transfer,
)
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.events import ACCESS_SET, LEFT
from dibs.core.lease_outcomes import PoolSet, Renewed
from dibs.core.limits import LEAVE_AT_ONCE_MAX, TICKET_MS, WANTED_MAX
from dibs.core.records import EXCLUSIVE, SHARED, LockRecord, Ticket, lock_key, session_key, ticket_key
from dibs.core.session_outcomes import SessionState
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.core.make import holder

NS = "default"
HOUR_MS = 3_600_000


class Room:
    """One store, and those who claim in it. A lease has the name of its owner and job, that of several jobs of all."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms)
        self.rules = Coordinator(self.store)

    def open(self, *names: str, parent: str | None = None) -> None:
        for name in names:
            self.rules.one(
                OpenSession(ns=NS, fresh_id=name, principal="team", owner=name, ttl_ms=HOUR_MS, parent=parent)
            )

    def terms(self, who: str, **more: Any) -> dict[str, Any]:
        asked = {"ns": NS, "principal": "team", "owner": who, "ttl_ms": HOUR_MS, **more}
        session = session_key(who)
        if self.store.read((session,)).records[session].record is not None:
            asked["session"] = who
        return asked

    def claim(self, who: str, job: str, **more: Any) -> str:
        """The name of the outcome of a claim that does not wait."""
        return type(self.outcome(who, job, **more)).__name__

    def outcome(self, who: str, job: str, **more: Any) -> Any:
        return self.rules.one(Acquire(name=job, fresh_lease_id=f"{who} {job}", **self.terms(who, **more)))

    def wait(self, who: str, job: str, **more: Any) -> str:
        return self.claim(who, job, wait=True, **more)

    def all_of(self, who: str, *jobs: str, **more: Any) -> Any:
        lease = " ".join((who, *jobs))
        return self.rules.one(AcquireAll(names=jobs, fresh_lease_id=lease, **self.terms(who, **more)))

    def release(self, who: str, job: str) -> None:
        self.rules.one(Release(ns=NS, name=job, principal="team", lease_id=f"{who} {job}"))

    def lock(self, job: str) -> LockRecord:
        found = self.rules.one(Inspect(ns=NS, name=job))
        assert isinstance(found, outcomes.Status)
        return found.lock

    def owners(self, job: str) -> list[str]:
        return [holder.owner for holder in self.lock(job).holders]

    def told(self, kind: str) -> list[tuple[str, str, str | None]]:
        return [
            (each.job or "", each.owner or "", each.reason) for each in self.store.events(0, 1_000) if each.kind == kind
        ]

    def keep(self, *places: tuple[str, int]) -> None:
        self.rules.one(KeepTickets(tickets=tuple([(NS, job, number) for job, number in places])))


@pytest.fixture
def room() -> Room:
    return Room()


# What stands in the way.


@pytest.mark.promise("tree", "excl")
@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
@pytest.mark.parametrize(
    ("held", "asked", "answer"),
    [
        (EXCLUSIVE, EXCLUSIVE, "Held"),
        (EXCLUSIVE, SHARED, "Held"),
        (SHARED, EXCLUSIVE, "Held"),
        (SHARED, SHARED, "Granted"),
    ],
)
def test_two_claims_in_a_tree_are_held_together_only_if_both_are_shared(
    room: Room, held: str, asked: str, answer: str, above: bool
) -> None:
    first, second = ("path:src", "path:src/a") if above else ("path:src/a", "path:src")
    assert room.claim("a", first, mode=held) == "Granted"
    assert room.claim("b", second, mode=asked) == answer


@pytest.mark.promise("tree", "excl:related")
def test_only_the_owners_that_exclude_a_claim_are_named_as_in_its_way(room: Room) -> None:
    room.open("parent")
    room.open("child", parent="parent")
    room.claim("parent", "path:src")
    room.claim("child", "path:src", mode=SHARED)
    refused = room.outcome("b", "path:src/a", mode=SHARED)
    assert [blocker.holder.owner for blocker in refused.blockers] == ["parent"]


@pytest.mark.promise("queue:fifo")
def test_what_a_session_shares_does_not_let_it_overtake_for_itself_alone(room: Room) -> None:
    room.open("s")
    room.claim("s", "path:src", mode=SHARED)
    assert room.wait("w", "path:src") == "Queued"
    assert room.claim("s", "path:src/a") == "Deadlock"  # it would wait for w, and w for it
    assert room.claim("s", "path:src/a", mode=SHARED) == "Granted"


@pytest.mark.promise("queue:fifo", "excl:related")
def test_what_a_parent_shares_its_child_may_share_at_once_and_not_have_for_itself_alone(room: Room) -> None:
    room.open("parent")
    room.open("child", parent="parent")
    room.claim("parent", "job", mode=SHARED)
    assert room.wait("w", "job") == "Queued"
    assert room.claim("child", "job") == "Held"
    assert room.claim("child", "job", mode=SHARED) == "Granted"


@pytest.mark.parametrize(("job", "asked"), [("job", "job"), ("path:src", "path:src"), ("path:src", "path:src/a")])
def test_who_is_refused_for_those_who_wait_is_told_who_is_first(room: Room, job: str, asked: str) -> None:
    room.claim("a", "busy")
    for each in ("first", "second"):
        assert isinstance(room.all_of(each, "busy", job, wait=True), outcomes.Queued)
    refused = room.outcome("b", asked)
    assert (refused.blockers, refused.waiting, refused.first.owner) == ((), 2, "first")


def test_a_session_that_waits_in_one_mode_is_told_so_if_it_asks_for_the_other(room: Room) -> None:
    room.open("s")
    room.claim("a", "job")
    assert room.wait("s", "job") == "Queued"
    differs = room.outcome("s", "job", mode=SHARED, request_key="k")
    assert isinstance(differs, outcomes.Differs)
    assert (differs.has, differs.asked) == (EXCLUSIVE, SHARED)


@pytest.mark.promise("all-or-nothing")
def test_a_claim_of_several_is_told_first_what_waiting_cannot_change(room: Room) -> None:
    room.open("s")
    for job in ("a", "b", "c"):
        room.claim("x", job)
    room.wait("s", "a")
    refused = room.all_of("s", "a", "b", mode=SHARED, wait=True)
    assert [(type(each), each.name) for each in refused.outcomes] == [(outcomes.Differs, "a")]
    room.rules.one(Release(ns=NS, name="c", principal="team", lease_id="x c", done_ms=HOUR_MS))
    refused = room.all_of("s", "a", "c", mode=SHARED, wait=True)
    assert [type(each) for each in refused.outcomes] == [outcomes.Held, outcomes.AlreadyDone]


@pytest.mark.promise("deadlock")
def test_a_final_answer_to_a_claim_of_several_ends_what_its_session_wanted(room: Room) -> None:
    room.open("s", "t")
    room.claim("s", "a")
    room.claim("t", "b")
    assert room.claim("s", "b") == "Held"  # it wants b
    room.rules.one(Release(ns=NS, name="b", principal="team", lease_id="none"))
    room.claim("x", "done")
    room.rules.one(Release(ns=NS, name="done", principal="team", lease_id="x done", done_ms=HOUR_MS))
    assert isinstance(room.all_of("s", "done", "other"), outcomes.Refused)
    assert room.claim("t", "a") == "Held"  # and no deadlock


# Access lists and those who wait.


@pytest.mark.promise("access")
def test_a_waiter_brings_its_list_and_those_behind_it_are_judged_by_it(room: Room) -> None:
    room.claim("a", "job")
    room.wait("b", "job", acl=("mine",), badges=("mine",))
    room.wait("c", "job", badges=("theirs",))
    room.wait("boss", "job", admin=True)
    room.release("a", "job")
    assert room.lock("job").acl == ("mine",)
    room.release("b", "job")
    assert room.told("left") == [("job", "c", "forbidden")]
    assert room.owners("job") == ["boss"]


@pytest.mark.promise("access")
def test_a_new_list_sends_those_away_whom_it_does_not_allow_wherever_they_stand(room: Room) -> None:
    room.claim("a", "job")
    room.wait("b", "job", badges=("mine",))
    room.wait("c", "job", badges=("theirs",))
    room.rules.one(SetAcl(ns=NS, name="job", principal="team", acl=("mine",)))
    assert room.told("left") == [("job", "c", "forbidden")]
    assert len(room.lock("job").line) == 1


def test_a_waiter_does_not_replace_a_list_that_was_set_meanwhile(room: Room) -> None:
    room.claim("a", "job")
    room.wait("b", "job", acl=("mine",), badges=("mine",))
    room.rules.one(SetAcl(ns=NS, name="job", principal="team", acl=("mine", "ours")))
    room.release("a", "job")
    assert room.owners("job") == ["b"]
    assert room.lock("job").acl == ("mine", "ours")


def test_a_list_that_is_claimed_with_again_is_no_event(room: Room) -> None:
    for who in ("a", "b"):
        assert room.claim(who, "job", acl=("mine",), badges=("mine",)) == "Granted"
        room.release(who, "job")
    assert len(room.told(ACCESS_SET)) == 1


# Who is served.


@pytest.mark.promise("queue:fifo")
def test_a_mark_that_is_over_does_not_send_a_waiter_away(room: Room) -> None:
    room.claim("a", "job", mode=SHARED)
    room.claim("b", "job", mode=SHARED)
    room.rules.one(Release(ns=NS, name="job", principal="team", lease_id="a job", done_ms=5_000))
    room.now_ms += 5_000
    assert room.wait("c", "job") == "Queued"
    room.release("b", "job")
    assert room.owners("job") == ["c"]


@pytest.mark.promise("queue:fifo", "tree")
def test_in_a_tree_nobody_is_served_before_who_came_first_however_it_asks(room: Room) -> None:
    room.claim("a", "path:src/a")
    assert room.wait("first", "path:src") == "Queued"
    for _ in range(2):  # it asks again
        assert room.wait("second", "path:src/b", mode=SHARED) == "Queued"
    room.claim("x", "job")
    assert isinstance(room.all_of("third", "job", "path:src/c", wait=True), outcomes.Queued)
    room.release("x", "job")
    assert room.owners("job") == []
    room.release("a", "path:src/a")
    assert room.owners("path:src") == ["first"]


@pytest.mark.promise("queue:no-dead-grant", "tree")
def test_an_end_that_a_newcomer_notices_serves_those_who_waited_for_other_names(room: Room) -> None:
    room.claim("a", "path:src", ttl_ms=5_000)
    room.wait("w", "path:src/w")
    room.now_ms += 5_000
    assert room.claim("b", "path:src/b") == "Granted"
    assert room.owners("path:src/w") == ["w"]


def test_a_line_that_is_too_long_to_be_cleared_at_once_is_due_at_once(room: Room) -> None:
    room.claim("a", "job")
    for number in range(LEAVE_AT_ONCE_MAX + 1):
        room.wait(f"w{number}", "job")
    room.now_ms += TICKET_MS - 1
    room.keep(("job", room.lock("job").line[-1]))
    room.now_ms += 1
    room.release("a", "job")
    assert room.owners("job") == []
    assert room.store.due(1).keys == [lock_key(NS, "job")]
    room.rules.one(Sweep(key=lock_key(NS, "job")))
    assert room.owners("job") == [f"w{LEAVE_AT_ONCE_MAX}"]


def test_a_place_without_a_ticket_is_passed_over(room: Room) -> None:
    room.claim("a", "job")
    room.wait("b", "job")
    room.wait("c", "job")
    lost = ticket_key(NS, "job", room.lock("job").line[0])
    version = room.store.read((lost,)).records[lost].version
    room.store.commit({lost: version}, {lost: None}, ())
    room.release("a", "job")
    assert room.owners("job") == ["c"]


def test_who_shares_a_path_is_told_how_many_still_wait_also_if_nobody_marked_it(room: Room) -> None:
    paths = [f"path:x/{number:02}" for number in range(WANTED_MAX + 1)]
    for path in paths:
        room.claim("a", path)
    room.wait("b", "path:x")
    renews = [Renew(ns=NS, name=path, principal="team", lease_id=f"a {path}") for path in paths]
    told = [room.rules.one(each) for each in (*renews, renews[-1].replace(mode=SHARED))]
    assert [each.waiting for each in told if isinstance(each, Renewed)] == [*[1] * WANTED_MAX, 0, 1]


@pytest.mark.parametrize("how", ["one", "any", "all"])
def test_a_session_that_is_granted_a_path_beside_its_place_for_it_has_no_place_any_more(room: Room, how: str) -> None:
    room.open("b")
    room.claim("a", "path:x", ttl_ms=5_000, delay_ms=3_000)
    assert room.wait("b", "path:x", mode=SHARED) == "Queued"
    room.now_ms += 5_000
    room.rules.one(Sweep(key=lock_key(NS, "path:x")))
    room.now_ms += 3_000
    terms: dict[str, Any] = {"fresh_lease_id": "another", **room.terms("b", mode=SHARED)}
    asks = {"one": Acquire(name="path:x", **terms), "any": AcquireAny(names=("path:x", "y"), **terms)}
    granted = room.rules.one(asks.get(how, AcquireAll(names=("path:x", "y"), **terms)))
    assert isinstance(granted, outcomes.Granted | outcomes.GrantedAll)
    assert room.told(LEFT) == [("path:x", "b", "granted otherwise")]
    assert room.lock("path:x").line == ()


def test_who_is_served_while_it_asks_for_any_of_several_with_the_same_key_gets_no_second_job(room: Room) -> None:
    room.claim("a", "job", ttl_ms=5_000)
    assert room.wait("b", "job", request_key="k") == "Queued"
    room.now_ms += 5_000
    terms: dict[str, Any] = {"fresh_lease_id": "another", **room.terms("b", request_key="k")}
    given = room.rules.one(AcquireAny(names=("job", "other"), **terms))
    assert isinstance(given, outcomes.Granted)
    assert (given.name, given.lease.lease_id) == ("job", "b job")
    assert (room.owners("job"), room.owners("other")) == (["b"], [])


def test_of_a_place_for_several_jobs_the_parts_that_are_left_are_kept(room: Room) -> None:
    room.claim("a", "x")
    room.all_of("b", "x", "y", wait=True)
    number, lost = room.lock("y").line[0], ticket_key(NS, "x", room.lock("x").line[0])
    version = room.store.read((lost,)).records[lost].version
    room.store.commit({lost: version}, {lost: None}, ())  # a git remote had half of a push
    room.now_ms += TICKET_MS - 1
    room.keep(("y", number))
    kept = room.store.read((key := ticket_key(NS, "y", number),)).records[key].record
    assert isinstance(kept, Ticket)
    assert kept.expires_ms == room.now_ms + TICKET_MS


def test_a_place_that_is_given_up_in_one_namespace_is_kept_in_another(room: Room) -> None:
    room.open("s")
    for ns in ("one", "two"):
        room.outcome("a", "job", ns=ns)
        assert room.wait("s", "job", ns=ns) == "Queued"
    room.rules.one(Leave(ns="one", name="job", principal="team", ticket=1, ticket_id="s job"))
    found = room.rules.one(InspectSession(session="s", principal="team"))
    assert isinstance(found, SessionState)
    assert [wait.ns for wait in found.session.waits] == ["two"]


@pytest.mark.promise("attempts")
def test_a_job_that_changes_hands_keeps_its_count_of_failures(room: Room) -> None:
    room.claim("a", "job")
    room.rules.one(Release(ns=NS, name="job", principal="team", lease_id="a job", failed=True))
    room.claim("b", "job")
    room.rules.one(Transfer(ns=NS, name="job", principal="team", lease_id="b job", to_owner="c", fresh_lease_id="l"))
    assert (room.owners("job"), room.lock("job").failures) == (["c"], 1)


# Circles.


@pytest.mark.promise("deadlock")
def test_a_place_that_ran_out_is_in_no_circle(room: Room) -> None:
    room.open("s", "t")
    room.claim("s", "a")
    room.claim("t", "b")
    assert room.wait("s", "b") == "Queued"
    assert room.wait("t", "a") == "Deadlock"
    room.now_ms += TICKET_MS
    assert room.wait("t", "a") == "Queued"


@pytest.mark.promise("deadlock")
def test_a_place_that_ran_out_behind_a_live_one_is_in_no_circle(room: Room) -> None:
    room.open("s", "t")
    room.claim("x", "a")
    room.claim("t", "b")
    room.wait("first", "a")
    room.wait("s", "a")
    room.now_ms += TICKET_MS - 1
    room.keep(("a", 1))
    assert room.wait("s", "b") == "Queued"
    assert room.wait("t", "a") == "Deadlock"
    room.now_ms += 1
    assert room.wait("t", "a") == "Queued"


@pytest.mark.promise("deadlock", "excl:related")
@pytest.mark.parametrize("line", [("parent", "child"), ("child", "parent")])
@pytest.mark.parametrize("job", ["job", "path:src"])
def test_who_waits_behind_a_family_waits_for_all_of_it(room: Room, line: tuple[str, str], job: str) -> None:
    """The first in the line will keep the job until it gets what the newcomer holds. Its kin beside it would not."""
    room.open("parent", "newcomer")
    room.open("child", parent="parent")
    room.claim("x", job)
    for each in line:
        assert room.wait(each, job) == "Queued"
    room.claim("newcomer", "other")
    assert room.wait(line[0], "other") == "Queued"
    assert room.wait("newcomer", job) == "Deadlock"


@pytest.mark.promise("deadlock")
@pytest.mark.parametrize(("stuck", "answer"), [(True, "Deadlock"), (False, "Queued")])
def test_a_slot_is_never_free_if_owners_and_those_ahead_will_have_all_of_them(
    room: Room, stuck: bool, answer: str
) -> None:
    room.open("owner", "ahead", "newcomer")
    room.claim("newcomer", "other")
    room.claim("owner", "gpu", slots=2)
    room.claim("x", "gpu", slots=2)
    room.wait("ahead", "gpu", slots=2)
    for each in ("owner", "ahead") if stuck else ("ahead",):
        assert room.wait(each, "other") == "Queued"
    assert room.wait("newcomer", "gpu", slots=2) == answer


@pytest.mark.promise("deadlock")
def test_a_slot_will_be_free_if_one_of_its_owners_waits_for_somebody_who_waits_for_nobody(room: Room) -> None:
    room.open("owner", "another", "free", "newcomer")
    room.claim("newcomer", "other")
    room.claim("free", "third")
    room.claim("owner", "gpu", slots=2)
    room.claim("another", "gpu", slots=2)
    assert room.wait("owner", "other") == "Queued"
    assert room.wait("another", "third") == "Queued"
    assert room.wait("newcomer", "gpu", slots=2) == "Queued"


@pytest.mark.promise("deadlock")
@pytest.mark.parametrize("between", [(), ("between",)])
@pytest.mark.parametrize(
    ("ahead", "asked", "answer"),
    [
        (EXCLUSIVE, EXCLUSIVE, "Deadlock"),
        (EXCLUSIVE, SHARED, "Deadlock"),
        (SHARED, EXCLUSIVE, "Deadlock"),
        (SHARED, SHARED, "Queued"),
    ],
)
def test_who_waits_behind_others_waits_for_what_they_will_hold_unless_both_share_it(
    room: Room, ahead: str, asked: str, answer: str, between: tuple[str, ...]
) -> None:
    room.open("ahead", "newcomer", *between)
    room.claim("x", "job")
    room.claim("newcomer", "other")
    for each in ("ahead", *between):
        assert room.wait(each, "job", mode=ahead) == "Queued"
    assert room.wait("ahead", "other") == "Queued"
    assert room.wait("newcomer", "job", mode=asked) == answer


@pytest.mark.promise("deadlock", "tree")
def test_who_waits_for_a_folder_waits_for_everybody_who_came_before_for_a_part_of_it(room: Room) -> None:
    room.open("ahead", "between", "newcomer")
    room.claim("x", "path:src")
    room.claim("newcomer", "other")
    room.wait("ahead", "path:src/a")
    room.wait("between", "path:src/b")
    assert room.wait("ahead", "other") == "Queued"
    assert room.wait("newcomer", "path:src") == "Deadlock"


@pytest.mark.promise("deadlock")
def test_a_place_of_who_holds_the_job_already_does_not_hide_who_is_ahead_of_it(room: Room) -> None:
    room.open("owner", "ahead", "newcomer")
    room.claim("owner", "job")
    room.claim("x", "rest")
    room.claim("newcomer", "other")
    room.wait("ahead", "job")
    assert isinstance(room.all_of("owner", "job", "rest", wait=True), outcomes.Queued)
    assert room.wait("ahead", "other") == "Queued"
    assert room.wait("newcomer", "job") == "Deadlock"


@pytest.mark.promise("deadlock")
def test_a_place_for_a_job_of_the_same_name_elsewhere_leads_out_of_no_circle(room: Room) -> None:
    room.open("s", "t")
    room.claim("x", "job", ns="elsewhere")
    assert room.wait("s", "job", ns="elsewhere") == "Queued"
    room.claim("t", "job")
    room.claim("s", "other")
    assert room.wait("t", "other") == "Queued"
    assert room.wait("s", "job") == "Deadlock"


@pytest.mark.promise("deadlock")
def test_a_loss_that_makes_a_place_wait_for_itself_gives_the_place_up(room: Room) -> None:
    """The place of s waits for u, u for t, t for its own place, and that is behind the place of s, which it shares."""
    room.open("s", "t", "u")
    room.claim("x", "b")
    room.claim("s", "a", mode=SHARED)
    room.claim("t", "a", mode=SHARED)
    assert room.wait("u", "a") == "Queued"
    assert isinstance(room.all_of("s", "a", "b", mode=SHARED, wait=True), outcomes.Queued)
    assert room.wait("t", "b", mode=SHARED) == "Queued"
    room.release("s", "a")
    assert room.told("left") == [("a", "s", "deadlock"), ("b", "s", "deadlock")]


@pytest.mark.promise("deadlock", "tree")
def test_a_place_to_share_a_folder_leads_nobody_to_a_part_of_it_alone(room: Room) -> None:
    room.open("s", "t")
    room.claim("x", "path:src/x")
    room.claim("t", "path:src/a", mode=SHARED)
    room.claim("s", "other")
    assert room.wait("s", "path:src", mode=SHARED) == "Queued"
    assert room.wait("t", "other") == "Queued"
    assert room.claim("s", "path:src/a") == "Deadlock"


def test_what_a_session_holds_is_not_shown_from_its_deadline_on(room: Room) -> None:
    room.open("s")
    room.claim("s", "job", ttl_ms=10_000)
    for later_ms, holds in ((9_999, 1), (1, 0)):
        room.now_ms += later_ms
        found = room.rules.one(InspectSession(session="s", principal="team"))
        assert isinstance(found, SessionState)
        assert len(found.holds) == holds


def test_a_session_is_shown_who_waits_for_a_job_that_nothing_marked(room: Room) -> None:
    """Of very many that stand in the way of one claim only some are marked."""
    room.open("s")
    jobs = [f"path:src/{number}" for number in range(20)]
    for job in jobs:
        room.claim("s", job)
    room.wait("w", "path:src")
    found = room.rules.one(InspectSession(session="s", principal="team"))
    assert isinstance(found, SessionState)
    assert [hold.waiting for hold in found.holds] == [1] * 20


# Pools and circles.


@pytest.mark.promise("deadlock")
def test_a_refused_claim_that_a_pool_refuses_for_good_waits_for_nobody(room: Room) -> None:
    room.open("s", "t")
    room.claim("s", "a")
    room.claim("t", "gpu")
    assert room.claim("s", "gpu", mode=SHARED) == "Held"
    room.rules.one(SetPool(ns=NS, name="gpu", principal="op", slots=2))
    assert room.wait("t", "a") == "Queued", "a pool is not shared, so s is refused when it asks again"


@pytest.mark.promise("deadlock")
def test_who_will_share_a_job_of_slots_and_waits_for_the_caller_closes_a_circle(room: Room) -> None:
    room.open("s", "t")
    room.claim("x", "gpu", slots=2)
    room.claim("s", "a")
    assert room.wait("t", "a") == "Queued"
    assert room.wait("t", "gpu", mode=SHARED) == "Queued"
    assert room.wait("s", "gpu", slots=2) == "Deadlock"


def test_a_smaller_pool_asks_nothing_of_owners_whose_session_is_forgotten_and_of_places_that_are_gone() -> None:
    gone, plain = holder(session="s", ephemeral=False, slot_numbers=(0,)), holder(lease_id="l2", slot_numbers=(1,))
    stored = LockRecord(ns=NS, name="gpu", token=2, holders=(gone, plain), pooled=True, slots=3, line=(1,))
    view = View(5, {lock_key(NS, "gpu"): stored})
    view.load = lambda keys: view.records.update(dict.fromkeys(keys))
    found = decide(view, SetPool(ns=NS, name="gpu", principal="op", slots=1))
    assert found.outcome == PoolSet(now_ms=5, name="gpu", slots=1, was=3, taken=2, waiting=0)


@pytest.mark.promise("all-or-nothing", "tree")
def test_a_ticket_for_several_is_served_with_what_its_session_got_otherwise(room: Room) -> None:
    room.open("s")
    room.claim("x", "path:z")
    assert isinstance(room.all_of("s", "path:a", "path:z", mode=SHARED, wait=True), outcomes.Queued)
    assert room.claim("s", "path:a", mode=SHARED) == "Granted"
    assert (room.lock("path:a").line, room.lock("path:z").line) == ((1,), (2,))
    room.release("x", "path:z")
    assert (room.lock("path:a").line, room.lock("path:z").line) == ((), ())
    assert [each.session for job in ("path:a", "path:z") for each in room.lock(job).holders] == ["s", "s"]


@pytest.mark.promise("deadlock")
def test_a_smaller_pool_closes_a_circle_of_those_who_hold_nothing_yet(room: Room) -> None:
    """s is before t in the line of the pool, and behind it in that of the job. With two slots both have room."""
    room.open("s", "t")
    room.rules.one(SetPool(ns=NS, name="gpu", principal="op", slots=2))
    room.claim("x", "gpu", units=2)
    room.claim("x", "job")
    assert [room.wait(*each) for each in (("s", "gpu"), ("t", "job"), ("t", "gpu"), ("s", "job"))] == ["Queued"] * 4
    room.rules.one(SetPool(ns=NS, name="gpu", principal="op", slots=1))
    assert [reason for _, _, reason in room.told("left")] == ["deadlock"]


@pytest.mark.parametrize(("bound", "told"), [(None, True), (NS, True), ("elsewhere", False), ("job", False)])
def test_a_session_is_told_who_waits_within_the_namespace_of_its_token(
    room: Room, bound: str | None, told: bool
) -> None:
    room.open("s")
    room.claim("s", "job")
    room.wait("w", "job")
    found = room.rules.one(KeepSession(session="s", principal="team", bound=bound, active=True))
    waited = [(each.ns, each.name, each.waiting, each.new) for each in getattr(found, "wanted", ())]
    assert waited == ([(NS, "job", 1, 1)] if told else [])


@pytest.mark.parametrize(("lost", "state"), [({"delay_ms": 30_000}, "delayed"), ({"max_attempts": 1}, "parked")])
def test_who_waits_for_two_jobs_does_not_get_one_that_its_owner_lost_unnoticed_and_that_rests_now(
    room: Room, lost: dict[str, Any], state: str
) -> None:
    room.claim("x", "a")
    room.claim("y", "b", ttl_ms=5_000, **lost)
    assert isinstance(room.all_of("w", "a", "b", wait=True), outcomes.Queued)
    room.now_ms += 6_000
    room.release("x", "a")
    assert (room.owners("a"), room.owners("b")) == ([], [])
    assert (room.lock("b").delay_until_ms > room.now_ms, room.lock("b").parked) == (
        state == "delayed",
        state == "parked",
    )
