"""One module says what a reply says; the transports add their next step."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.cli.text.claim import sentence as on_screen
from dibs.compat.action_llama.protocol import acquired
from dibs.compat.grite.documents import refused as refused_by_grite
from dibs.sdk.answers import refusal_of
from dibs.wire.documents import Reply
from dibs.wire.sentences import ended, in_full, sentence, several

_FAILED = {"owner": "w1", "how": "failed", "at": "2025-11-15T02:10:05.000Z", "reason": "disk full"}
_DELAYED = {"available_at": "2025-11-15T02:16:05.000Z", "retry_after_ms": 60_000, "previous": _FAILED}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"status": "held", "owner": "w1", "remaining_ms": 30_000}, "w1 has job for another 30s."),
        (
            {"status": "queued", "owner": "w1", "remaining_ms": 400},
            "w1 has job for less than another second.",
        ),
        ({"status": "held", "owner": None}, "Nobody has job now, but others in line come first."),
        (
            {"status": "held", "owner": None, "reserved_for": {"owner": "both"}},
            "Nobody has job now, but both is first in line for it.",
        ),
        (
            {"status": "held", "owner": "w1", "remaining_ms": 30_000, "holders": [{}, {}, {}]},
            "w1 and 2 others have job for another 30s.",
        ),
        (
            {"status": "held", "owner": "w1", "remaining_ms": 30_000, "holders": [{}, {}, {}], "holder_count": 5_000},
            "w1 and 4999 others have job for another 30s.",
        ),
        pytest.param(  # a claim of several jobs
            {"status": "queued", "owner": "w1", "remaining_ms": 30_000, "holders": [{"name": "job"}, {"name": "c"}]},
            "w1 has job for another 30s.",
            marks=pytest.mark.fault("F-392"),
        ),
        pytest.param(
            {"status": "held", "owner": "w1", "remaining_ms": 30_000, "conflict": "c"}
            | {"holders": [{"name": "c"}, {"name": "c"}, {"name": "d"}]},
            "w1 and 1 other have c for another 30s.",
            marks=pytest.mark.fault("F-392"),
        ),
        (
            {"name": "path:src/a", "status": "held", "owner": "w1", "remaining_ms": 30_000, "conflict": "path:src"},
            "w1 has path:src, which overlaps path:src/a, for another 30s.",
        ),
        (
            {"status": "done", "owner": "w1", "done_ms_ago": 240_000, "retry_after_ms": 60_000},
            "job was done by w1, 4 minutes ago. It counts as done for another 1m.",
        ),
        ({"status": "done", "done": {"owner": "w1"}}, "job was done by w1."),
        ({"status": "delayed", **_DELAYED}, "job rests after a failure. It can be claimed in 1m."),
        (
            {"status": "delayed", "retry_after_ms": 5_000},
            "job rests after a failure or a loss. It can be claimed in 5s.",
        ),
        ({"status": "parked", "failures": 1}, "job is parked: its owner failed at it or was lost."),
        ({"status": "parked", "failures": 3}, "job is parked: 3 owners in a row failed at it or were lost."),
        ({"status": "free"}, "Nobody has job."),
        ({"code": "conflict", "details": "Another list."}, "Another list."),
    ],
)
def test_each_status_has_one_sentence(document: dict[str, Any], says: str) -> None:
    assert sentence({"name": "job", **document}) == says


def test_what_rests_or_is_parked_says_how_the_last_hold_ended() -> None:
    assert in_full({"name": "job", "status": "delayed", **_DELAYED}) == (
        "job rests after a failure. It can be claimed in 1m. w1 failed at it 5 minutes ago: disk full."
    )
    parked = in_full({"name": "job", "status": "parked", "failures": 2, "previous": _FAILED})
    assert parked.endswith(" w1 failed at it on 2025-11-15T02:10:05Z: disk full.")


def test_of_many_jobs_a_few_are_named_with_what_is_in_the_way() -> None:
    entries = [{"name": f"j{index}", "status": "held", "owner": "w1"} for index in range(7)]
    said = several([{"name": "a", "status": "done", "owner": "w2"}, *entries])
    assert said.startswith("a (done), j0 (held by w1), ")
    assert said.endswith(" and 3 more")


def test_an_end_that_this_version_does_not_know_is_still_reported() -> None:
    assert ended({"owner": "w1", "how": "absorbed", "at": _FAILED["at"]}, None).startswith("w1, absorbed on 2025")


def test_every_transport_says_the_same_of_a_job_that_rests() -> None:
    document = {"name": "job", "status": "delayed", **_DELAYED}
    reply = Reply(status=409, body=document)
    fact = sentence(document)
    assert on_screen(document) == fact
    assert str(refusal_of(reply)).startswith(fact)
    assert str(acquired("job", reply)[1]["reason"]).startswith(fact)
    assert fact in refused_by_grite("job", document)[2]


def test_what_is_printed_cannot_act_on_the_terminal() -> None:
    document = {"name": "job", "status": "held", "owner": "a\x1b[2Jb", "remaining_ms": 1_000}
    assert on_screen(document) == "a\\u001b[2Jb has job for another 1s."


def test_of_many_refused_jobs_the_parked_one_is_named_first() -> None:
    done = [{"name": f"ok-{number}", "status": "done"} for number in range(6)]
    refused = [*done, {"name": "broken", "status": "parked"}]
    said = sentence({"refused": refused})
    assert said == "Not available: broken (parked), ok-0 (done), ok-1 (done), ok-2 (done), ok-3 (done) and 2 more."
