"""Replies: their fields, and that a lease id is shown to its owner and to nobody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

import pytest

from dibs.core import outcomes
from dibs.core.events import Event
from dibs.core.records import Done, Ending, Holder, Lock
from dibs.wire import documents
from dibs.wire.documents import event_document, history_document, list_document, reply_for, timestamp

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
LOCK = Lock(
    ns="d", name="job", token=7, holders=(HOLDER,), endings=(ENDING,), acl=("user:a", "token:sha256:abc")
)

EXAMPLES: list[Outcome] = [
    outcomes.Granted(now_ms=NOW, name="job", lease=HOLDER, previous=ENDING),
    outcomes.Held(now_ms=NOW, name="job", holders=(HOLDER,)),
    outcomes.AlreadyDone(now_ms=NOW, name="job", done=DONE),
    outcomes.Delayed(now_ms=NOW, name="job", until_ms=NOW + 5_000, delay_ms=30_000),
    outcomes.Renewed(now_ms=NOW, name="job", lease=HOLDER),
    outcomes.Released(now_ms=NOW, name="job", ending=ENDING),
    outcomes.NotCurrent(now_ms=NOW, name="job", holders=(HOLDER,), ending=ENDING),
    outcomes.KeySpent(now_ms=NOW, name="job", ending=ENDING),
    outcomes.Forbidden(now_ms=NOW, name="job"),
    outcomes.AclDiffers(now_ms=NOW, name="job"),
    outcomes.AclSet(now_ms=NOW, name="job", acl=LOCK.acl),
    outcomes.NotFound(now_ms=NOW, name="job"),
    outcomes.QuotaExceeded(now_ms=NOW, name="job"),
    outcomes.Broken(now_ms=NOW, name="job", holders=(HOLDER,)),
    outcomes.Status(now_ms=NOW, name="job", lock=LOCK, seen=True),
]
INTERNAL = {outcomes.Swept, outcomes.Beaten}  # never asked for by a client


def test_the_examples_are_all_that_a_client_can_meet() -> None:
    assert {type(example) for example in EXAMPLES} == set(get_args(outcomes.Outcome)) - INTERNAL


@pytest.mark.promise("proof")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_lease_id_or_request_key_is_shown_to_its_owner_alone(example: Outcome) -> None:
    text = json.dumps(reply_for(example).body)
    owners = {outcomes.Granted, outcomes.Renewed}
    assert (SECRET in text) is (type(example) in owners)
    assert OTHER not in text
    assert KEY not in text
    assert "sha256" not in text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: type(each).__name__)
def test_every_reply_is_json_and_a_refusal_says_what_to_do(example: Outcome) -> None:
    reply = reply_for(example)
    assert json.loads(json.dumps(reply.body)) == reply.body
    if reply.status >= 400 and not isinstance(example, outcomes.Delayed):
        assert reply.body is not None
        assert set(reply.body) == {"error", "code", "details"}
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
    assert reply_for(occupied).status == 400
    assert reply_for(occupied.replace(holders=())).status == 404


@pytest.mark.parametrize(
    ("how", "words"),
    [("expired", "no heartbeat came in time"), ("broken", "by op: stuck"), ("released", "was released")],
)
def test_a_lost_lease_is_told_how_it_ended(how: str, words: str) -> None:
    body = reply_for(outcomes.NotCurrent(now_ms=NOW, name="job", ending=ENDING.replace(how=how))).body
    assert body is not None
    assert words in body["details"]
    assert "1m 30s ago" in body["details"]


def test_of_several_holders_the_one_that_ends_first_is_shown() -> None:
    sooner = HOLDER.replace(owner="sooner", expires_ms=NOW + 1_000)
    body = reply_for(outcomes.Held(now_ms=NOW, name="job", holders=(HOLDER, sooner))).body
    assert body is not None
    assert (body["owner"], body["retry_after_ms"]) == ("sooner", 1_000)


def test_a_holder_id_is_the_same_for_the_same_owner_and_tells_nothing() -> None:
    again = HOLDER.replace(lease_id=OTHER, token=9)
    assert documents.holder_id(HOLDER) == documents.holder_id(again)
    assert documents.holder_id(HOLDER) != documents.holder_id(HOLDER.replace(owner="agent-8"))
    assert "agent" not in documents.holder_id(HOLDER)


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
