"""Replies: their fields, and that a lease id is shown to its owner and to nobody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dibs.core import lease_outcomes, outcomes, session_outcomes
from dibs.core import lease_outcomes as upkeep_outcomes
from dibs.core.events import Event
from dibs.core.records import Closure, Done, Ending, FreezeMark, Holder, LockRecord, SessionRecord, Wait
from dibs.wire import parts
from dibs.wire.codes import OUTCOMES
from dibs.wire.documents import reply_to
from dibs.wire.lease_documents import event_document, history_document, list_document
from dibs.wire.parts import timestamp
from dibs.wire.values import parse_ticket

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome

SECRET = "5ec7e700-0000-4000-8000-000000000001"
OTHER = "5ec7e700-0000-4000-8000-000000000002"
KEY = "5ec7e7-request-key"
NOW = 1_763_172_845_123

HOLDER = Holder(
    lease_id=SECRET,
    owner="agent-7",
    principal="team",
    token=7,
    since_ms=NOW - 30_000,
    renewed_ms=NOW,
    ttl_ms=60_000,
    expires_ms=NOW + 60_000,
    metadata="m",
    checkpoint="half",
    request_key=KEY,
)
ENDING = Ending(
    lease_id=OTHER,
    owner="agent-6",
    principal="team",
    token=6,
    how="broken",
    at_ms=NOW - 90_000,
    checkpoint="start",
    request_key=KEY,
    by="op",
    reason="stuck",
)
DONE = Done(owner="agent-6", token=6, at_ms=NOW - 240_000, until_ms=NOW + 60_000, result="PR 12")
LOCK = LockRecord(ns="d", name="job", token=7, holders=(HOLDER,), endings=(ENDING,), acl=("user:a", "token:sha256:abc"))

SESSION = SessionRecord(
    ns="default",
    id=SECRET,
    principal="team",
    owner="agent-7",
    ttl_ms=60_000,
    since_ms=NOW,
    renewed_ms=NOW,
    expires_ms=NOW + 60_000,
    waits=(Wait(ns="d", name="other", number=3),),
)
CLOSURE = Closure(ns="d", name="job/", at_ms=NOW - 1_000, until_ms=NOW + 7_200_000, by="op", reason="migration")
BLOCKER = outcomes.Blocker(name="job", holder=HOLDER)
SESSION_LEASE = session_outcomes.SessionLease(ns="default", name="job", holder=HOLDER)
GRANTED = outcomes.Granted(now_ms=NOW, name="job", lease=HOLDER, previous=ENDING)
HELD = outcomes.Held(now_ms=NOW, name="job", blockers=(BLOCKER,), waiting=2)

EXAMPLES: list[Outcome] = [
    GRANTED,
    HELD,
    outcomes.GrantedAll(now_ms=NOW, grants=(GRANTED, GRANTED.replace(name="job-2"))),
    outcomes.Queued(now_ms=NOW, ns="d", name="job", ticket=5, ticket_id=SECRET, position=3, blockers=(BLOCKER,)),
    outcomes.Refused(now_ms=NOW, outcomes=(HELD, outcomes.QuotaExceeded(now_ms=NOW, name="job-2"))),
    outcomes.Deadlock(now_ms=NOW, name="job", cycle=("me", "job", "agent-7", "mine")),
    outcomes.Differs(now_ms=NOW, name="job", what="slots", has="2", asked="3"),
    outcomes.Parked(now_ms=NOW, name="job", failures=3, ending=ENDING),
    outcomes.Superseded(now_ms=NOW, name="job", group="main", by="b"),
    lease_outcomes.Freed(now_ms=NOW, name="job", was_parked=True),
    outcomes.Left(now_ms=NOW, name="job", was_in=True),
    outcomes.Withdrawn(now_ms=NOW, left=True, released=("job",)),
    lease_outcomes.Transferred(now_ms=NOW, name="job", lease=HOLDER),
    session_outcomes.SessionState(now_ms=NOW, session=SESSION, holds=(SESSION_LEASE,)),
    outcomes.SessionUnknown(now_ms=NOW, session=SECRET),
    outcomes.SessionOver(now_ms=NOW, session=SESSION.replace(ended_ms=NOW - 1_000)),
    outcomes.AlreadyDone(now_ms=NOW, name="job", done=DONE),
    outcomes.Delayed(now_ms=NOW, name="job", until_ms=NOW + 5_000, delay_ms=30_000),
    lease_outcomes.Renewed(now_ms=NOW, name="job", lease=HOLDER),
    lease_outcomes.Released(now_ms=NOW, name="job", ending=ENDING),
    lease_outcomes.Failed(now_ms=NOW, name="job", ending=ENDING, failures=2, until_ms=NOW + 5_000),
    outcomes.NotCurrent(now_ms=NOW, name="job", holders=(HOLDER,), ending=ENDING),
    outcomes.KeySpent(now_ms=NOW, name="job", ending=ENDING),
    outcomes.Forbidden(now_ms=NOW, name="job"),
    outcomes.AclDiffers(now_ms=NOW, name="job"),
    lease_outcomes.NotAJob(now_ms=NOW, name="path:src/a", what="done"),
    lease_outcomes.EffectRefused(now_ms=NOW, name="job", key="k", why="full"),
    lease_outcomes.NoteTooLong(now_ms=NOW, name="job", what="checkpoints", owners=2_000, most=524_288, room=80),
    lease_outcomes.AclSet(now_ms=NOW, name="job", acl=LOCK.acl),
    lease_outcomes.PoolSet(now_ms=NOW, name="job", slots=4, was=None),
    lease_outcomes.Numbered(now_ms=NOW, name="job", number=436, owner="a"),
    lease_outcomes.NumberTaken(now_ms=NOW, name="job", number=436, following=437),
    lease_outcomes.NumberReturned(now_ms=NOW, name="job", number=436, was_taken=True),
    lease_outcomes.NotFound(now_ms=NOW, name="job"),
    outcomes.QuotaExceeded(now_ms=NOW, name="job"),
    outcomes.TooMany(now_ms=NOW, name="job", what="places in line", most=3),
    lease_outcomes.Broken(now_ms=NOW, name="job", holders=(HOLDER,)),
    outcomes.Status(now_ms=NOW, name="job", lock=LOCK, seen=True, closure=CLOSURE),
    outcomes.Closed(now_ms=NOW, name="job/1", closure=CLOSURE),
    lease_outcomes.ClosureSet(now_ms=NOW, name="job/", closure=CLOSURE),
    lease_outcomes.NotClosed(now_ms=NOW, name="job/", why="That time is over already."),
    lease_outcomes.Opened(now_ms=NOW, name="job/1", was_closed=False, closure=CLOSURE),
    upkeep_outcomes.Frozen(now_ms=NOW, mark=FreezeMark(at_ms=NOW, id="secret")),
]
INTERNAL = {
    upkeep_outcomes.Swept,
    upkeep_outcomes.BeatRecorded,
    outcomes.TicketsKept,
    upkeep_outcomes.Raised,
    upkeep_outcomes.Counted,
    upkeep_outcomes.Identified,
    upkeep_outcomes.FreezeNoted,
    upkeep_outcomes.Thawed,
}  # never asked for by a client


def test_the_examples_are_all_that_a_client_can_meet() -> None:
    assert {type(example).__name__ for example in EXAMPLES} == set(OUTCOMES) - {kind.__name__ for kind in INTERNAL}


@pytest.mark.promise("proof")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_lease_id_or_request_key_is_shown_to_its_owner_alone(example: Outcome) -> None:
    text = json.dumps(reply_to("", example).body)
    # A ticket becomes the lease, a session proves its leases; both are told to their owners only.
    owners = {
        *(outcomes.Granted, outcomes.GrantedAll, lease_outcomes.Renewed, lease_outcomes.Transferred),
        *(outcomes.Queued, session_outcomes.SessionState),
    }
    assert (SECRET in text) is (type(example) in owners)
    assert OTHER not in text
    assert KEY not in text
    assert "sha256" not in text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: type(each).__name__)
def test_every_reply_is_json_and_a_refusal_says_what_to_do(example: Outcome) -> None:
    reply = reply_to("", example)
    assert json.loads(json.dumps(reply.body)) == reply.body
    told = outcomes.Delayed | outcomes.Parked | outcomes.Superseded | outcomes.Closed
    if reply.status >= 400 and not isinstance(example, told):
        assert reply.body is not None
        more = {"cycle", "ended", "retry_after_ms", "number", "next", "owner"}
        assert set(reply.body) - more == {"error", "code", "details"}
        if isinstance(example, outcomes.NotCurrent):
            assert reply.body["ended"] == "broken"
        assert len(reply.body["details"]) > 20


def test_a_list_and_a_history_show_no_lease_id() -> None:
    listed = list_document([LOCK], NOW, "j", None)
    assert SECRET not in json.dumps(listed)
    assert "acl" not in listed["locks"][0]
    event = Event(at_ms=NOW, kind="acquired", ns="d", job="job", owner="a", token=7, seq=3, ttl_ms=60_000)
    assert event_document(event) == {
        "seq": 3,
        "at": timestamp(NOW),
        "event": "acquired",
        "owner": "a",
        "fencing_token": 7,
        "attempt": 1,
        "ttl_seconds": 60,
    }
    assert history_document("job", [event])["name"] == "job"


def test_an_occupied_job_is_400_and_a_vacant_one_404() -> None:
    occupied = outcomes.NotCurrent(now_ms=NOW, name="job", holders=(HOLDER,))
    assert reply_to("", occupied).status == 400
    assert reply_to("", occupied.replace(holders=())).status == 404


@pytest.mark.parametrize(
    ("how", "words"),
    [("expired", "no heartbeat came in time"), ("broken", "by op: stuck"), ("released", "was released")],
)
def test_a_lost_lease_is_reported_with_how_it_ended(how: str, words: str) -> None:
    body = reply_to("", outcomes.NotCurrent(now_ms=NOW, name="job", ending=ENDING.replace(how=how))).body
    assert body is not None
    assert words in body["details"]
    assert "1m 30s ago" in body["details"]


def test_of_several_holders_the_one_that_ends_first_is_shown() -> None:
    sooner = HOLDER.replace(owner="sooner", expires_ms=NOW + 1_000)
    blockers = (BLOCKER, BLOCKER.replace(holder=sooner))
    body = reply_to("", HELD.replace(blockers=blockers)).body
    assert body is not None
    assert (body["owner"], body["retry_after_ms"], len(body["holders"])) == ("sooner", 1_000, 2)


def test_who_is_in_line_is_told_what_held_says_and_how_to_go_on() -> None:
    queued = outcomes.Queued(now_ms=NOW, ns="d", name="job", ticket=5, ticket_id=OTHER, position=3, blockers=(BLOCKER,))
    body, held = reply_to("", queued).body, reply_to("", HELD).body
    assert body is not None
    assert held is not None
    assert held.keys() - {"waiting"} <= body.keys()
    assert (body["status"], body["position"], body["owner"]) == ("queued", 3, "agent-7")
    assert 0 < body["retry_after_ms"] <= 5_000, "asking again is what keeps the place"
    assert parse_ticket("d", "job", body["ticket"]) == (5, OTHER)
    assert parse_ticket("d", "job", f"{body['ticket']}.more") == (5, OTHER), "another version gave it out"


def test_of_several_each_is_reported_with_why_it_could_not_be_had() -> None:
    body = reply_to("", EXAMPLES[4]).body
    assert body is not None
    assert [(each["name"], each["status"]) for each in body["refused"]] == [
        ("job", "held"),
        ("job-2", "lock_limit_exceeded"),
    ]
    assert (body["status"], body["retry_after_ms"]) == ("held", 60_000)


@pytest.mark.promise("deadlock")
def test_a_deadlock_is_reported_as_a_path_from_the_asker_back_to_it() -> None:
    reply = reply_to("", outcomes.Deadlock(now_ms=NOW, name="job", cycle=("me", "job", "agent-7", "mine")))
    assert reply.body is not None
    assert (reply.status, reply.body["code"]) == (409, "deadlock")
    assert reply.body["cycle"] == ["me", "job", "agent-7", "mine"]
    assert "me → job → agent-7 → mine → me" in reply.body["details"]


@pytest.mark.parametrize(
    ("verb", "status", "count"),
    [("session-open", 201, 1), ("session-keep", 200, None), ("session-show", 200, 1)],
)
def test_a_session_is_described_by_what_was_asked(verb: str, status: int, count: int | None) -> None:
    reply = reply_to(verb, session_outcomes.SessionState(now_ms=NOW, session=SESSION, holds=(SESSION_LEASE,)))
    assert reply.body is not None
    assert reply.status == status
    told = (reply.body["session_id"], reply.body.get("lock_count"), reply.body["waits"])
    assert told == (SECRET, count, ["other"])
    assert (reply.body["active"], reply.body["keepalive_interval_secs"]) == (True, 30)


def test_the_end_of_a_session_has_no_document() -> None:
    reply = reply_to("session-end", session_outcomes.SessionState(now_ms=NOW, session=SESSION, live=False))
    assert (reply.status, reply.body) == (204, None)


def test_a_holder_id_is_the_same_for_the_same_owner_and_reveals_nothing() -> None:
    again = HOLDER.replace(lease_id=OTHER, token=9)
    assert parts.holder_id(HOLDER) == parts.holder_id(again)
    assert parts.holder_id(HOLDER) != parts.holder_id(HOLDER.replace(owner="agent-8"))
    assert "agent" not in parts.holder_id(HOLDER)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (NOW, "2025-11-15T02:14:05.123Z"),
        (NOW + 1, "2025-11-15T02:14:05.124Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
    ],
)
def test_times_are_rfc_3339_to_the_millisecond(ms: int, text: str) -> None:
    assert timestamp(ms) == text
    for second in range(1_000):  # more than are remembered
        timestamp(second * 1_000)
    assert timestamp(ms) == text
