"""Who owns a job, one rule at a time. What many rules do together is in scenarios/ and test_model.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import ClaimPolicy
from dibs.core.decide import decide, keys_of
from dibs.core.draft import Missing, View
from dibs.core.events import REFUSED
from dibs.core.limits import REMEMBERED_MAX
from dibs.core.records import META_KEY, Done, Meta, SessionRecord, session_key
from tests.core.make import (
    INSPECT,
    JOB,
    KEY,
    NS,
    SWEEP,
    acquire,
    break_,
    decided,
    ending,
    holder,
    lock,
    outage,
    release,
    renew,
    set_acl,
    view,
    written,
)

if TYPE_CHECKING:
    from dibs.core.commands import Acquire, Command
    from dibs.core.draft import Decision
    from dibs.core.records import LockRecord

DONE = Done(owner="a1", token=1, at_ms=0, until_ms=50_000, result="merged")
TEAM = {"principal": "team"}


# Acquire


def test_a_free_job_is_granted_with_everything_that_was_asked_for() -> None:
    asked = acquire(metadata="m", request_key="k", delay_ms=3, acl=("solo", "team"))
    decision = decided(5_000, None, asked)
    lease = holder(
        lease_id="lease-9",
        owner="b1",
        principal="solo",
        since_ms=5_000,
        renewed_ms=5_000,
        ttl_ms=60_000,
        metadata="m",
        request_key="k",
        delay_ms=3,
    )
    assert decision.outcome == outcomes.Granted(now_ms=5_000, name=JOB, lease=lease)
    assert written(decision) == lock(lease, acl=("solo", "team"))
    event, listed = decision.events
    assert (listed.kind, listed.by, listed.reason) == ("access-set", "solo", "a list of 2")
    assert (event.kind, event.at_ms, event.owner, event.token, event.ttl_ms) == (
        "acquired",
        5_000,
        "b1",
        1,
        60_000,
    )


# Each row is stopped by what its name says and by everything in the rows below it as well: the first stop counts.
STOPS: list[tuple[str, dict[str, Any], dict[str, Any], type]] = [
    ("access list", {"acl": ("team",)}, {"badges": ()}, outcomes.Forbidden),
    (
        "spent key",
        {"endings": (ending(principal="solo", request_key="k"),)},
        {"request_key": "k"},
        outcomes.KeySpent,
    ),
    ("another list", {"acl": ("solo",)}, {"acl": ("x",), "badges": ("solo",)}, outcomes.AclDiffers),
    ("done mark", {"done": DONE}, {}, outcomes.AlreadyDone),
    ("owner", {"holders": (holder(renewed_ms=19_000),)}, {}, outcomes.Held),
    ("rest", {"delay_until_ms": 30_000}, {}, outcomes.Delayed),
    ("quota", {}, {"over_quota": True}, outcomes.QuotaExceeded),
]


@pytest.mark.parametrize("first", range(len(STOPS)), ids=[row[0] for row in STOPS])
def test_the_first_thing_that_stops_a_claim_is_the_answer_and_nothing_is_written(first: int) -> None:
    stored, asked = lock(), acquire()
    for _, on_record, in_command, _ in reversed(STOPS[first:]):
        stored, asked = stored.replace(**on_record), asked.replace(**in_command)
    decision = decided(20_000, stored, asked)
    assert type(decision.outcome) is STOPS[first][3]
    assert not decision.writes
    assert not decision.events


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (lock(acl=("team",)), acquire(badges=("x", "team"))),
        (lock(acl=("team",)), acquire(admin=True)),
        (lock(acl=("a", "b")), acquire(badges=("a",), acl=("b", "a"))),
        (lock(done=DONE), acquire(again=True)),
        (lock(done=DONE.replace(until_ms=20_000)), acquire()),
        (lock(delay_until_ms=20_000), acquire()),
        (lock(holder(renewed_ms=10_000)), acquire()),
        (lock(endings=(ending(request_key="k"),)), acquire(request_key="k")),  # another credential's key
        (lock(endings=(ending(principal="solo", request_key="k1"),)), acquire(request_key="k2")),
        (lock(endings=(ending(principal="solo"),)), acquire()),
    ],
)
def test_what_no_longer_stops_a_claim_lets_it_through(stored: LockRecord, asked: Acquire) -> None:
    decision = decided(20_000, stored, asked)
    assert isinstance(decision.outcome, outcomes.Granted)
    after = written(decision)
    assert (after.done, after.delay_until_ms, len(after.holders)) == (None, 0, 1)


@pytest.mark.promise("excl:same-token")
@pytest.mark.parametrize(
    "asked",
    [
        acquire(**TEAM),
        acquire(**TEAM, owner="a1"),
        acquire(**TEAM, request_key="other"),
        acquire(**TEAM, admin=True),
        acquire(request_key="k"),  # the right key, another credential
    ],
)
def test_the_same_credential_or_name_does_not_prove_ownership(asked: Acquire) -> None:
    decision = decided(1_000, lock(holder(request_key="k")), asked)
    in_way = (outcomes.Blocker(name=JOB, holder=holder(request_key="k")),)
    assert decision.outcome == outcomes.Held(now_ms=1_000, name=JOB, blockers=in_way)
    assert not decision.writes


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize(
    "proof",
    [{"lease_id": "lease-1"}, {"request_key": "k"}, {"fresh_lease_id": "lease-1"}],
    ids=lambda proof: next(iter(proof)),
)
def test_whoever_proves_that_the_job_is_its_own_gets_the_same_lease_again(proof: dict[str, str]) -> None:
    mine = holder(request_key="k", metadata="m")
    decision = decided(1_000, lock(mine), acquire(**TEAM, ttl_ms=10_000, metadata="ignored", **proof))
    kept = mine.replace(renewed_ms=1_000, expires_ms=11_000, used="lease_id" in proof)
    again = "fresh_lease_id" not in proof  # the very command whose reply was lost is told for the first time
    before = "lease_id" in proof  # got by another request, of which this is no repeat
    told = outcomes.Granted(now_ms=1_000, name=JOB, lease=kept, again=again, held_before=before)
    assert decision.outcome == told
    assert written(decision) == lock(kept)
    assert not decision.events, "no ownership changed"


def test_asking_again_for_a_shorter_time_does_not_shorten_the_lease() -> None:
    mine = holder(request_key="k")
    decision = decided(1_000, lock(mine), acquire(**TEAM, ttl_ms=9_000, request_key="k"))
    assert decision.outcome == outcomes.Granted(now_ms=1_000, name=JOB, lease=mine, again=True)
    assert not decision.writes


@pytest.mark.fault("F-006")
@pytest.mark.promise("idem:acquire")
def test_a_late_repeat_of_a_claim_leaves_a_renewed_lease_its_longer_ttl() -> None:
    mine = holder(request_key="k", ttl_ms=12_000, renewed_ms=1_000, expires_ms=13_000)
    kept = written(decided(9_000, lock(mine), acquire(**TEAM, ttl_ms=5_000, request_key="k"))).holders[0]
    assert (kept.ttl_ms, kept.expires_ms) == (12_000, 21_000)
    longer = written(decided(9_000, lock(mine), acquire(**TEAM, ttl_ms=15_000, request_key="k"))).holders[0]
    assert (longer.ttl_ms, longer.expires_ms) == (15_000, 24_000)


@pytest.mark.promise("idem:acquire")
def test_a_lost_reply_is_not_lost_ownership_also_when_the_access_list_leaves_its_owner_out() -> None:
    first = acquire(request_key="k", acl=("team",))
    granted = decided(0, None, first)
    repeated = decided(1_000, written(granted), first.replace(fresh_lease_id="lease-10"))
    assert isinstance(repeated.outcome, outcomes.Granted)
    assert repeated.outcome.lease.lease_id == "lease-9"


@pytest.mark.promise("proof")
@pytest.mark.parametrize("how", ["released", "expired", "broken"])
def test_a_late_repeat_of_a_claim_whose_lease_has_ended_is_not_granted(how: str) -> None:
    over = ending(how=how, request_key="k")
    for stored in (
        lock(endings=(over,)),
        lock(holder(token=2, lease_id="lease-2", owner="b1"), endings=(over,)),
    ):
        spent = decided(1_000, stored, acquire(**TEAM, request_key="k"))
        assert spent.outcome == outcomes.KeySpent(now_ms=1_000, name=JOB, ending=over)
        shown = decided(1_000, stored, acquire(**TEAM, lease_id="lease-1"))
        assert shown.outcome == outcomes.NotCurrent(now_ms=1_000, name=JOB, holders=stored.holders, ending=over)
        assert not spent.writes
        assert not shown.writes


def test_a_lease_that_nobody_knows_is_not_current_even_if_the_job_is_free() -> None:
    decision = decided(0, None, acquire(lease_id="never"))
    assert decision.outcome == outcomes.NotCurrent(now_ms=0, name=JOB)


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize(
    ("own", "floor", "token"), [(0, 0, 1), (5, 0, 6), (5, 3, 6), (5, 5, 6), (5, 9, 10), (0, 9, 10)]
)
def test_the_next_token_is_above_the_job_s_own_and_above_the_floor(own: int, floor: int, token: int) -> None:
    decision = decided(0, lock(token=own), acquire(), meta=Meta(token_floor=floor))
    assert isinstance(decision.outcome, outcomes.Granted)
    assert decision.outcome.lease.token == token
    assert written(decision).token == token


def test_the_next_owner_is_told_who_was_before_how_that_ended_and_how_often_it_was_lost() -> None:
    stored = lock(holder(checkpoint="half"), endings=(ending(token=0, how="broken"),), failures=1)
    decision = decided(10_000, stored, acquire())
    assert isinstance(decision.outcome, outcomes.Granted)
    assert decision.outcome.previous == ending(how="expired", at_ms=10_000, checkpoint="half")
    assert decision.outcome.lease.attempt == 3
    assert [event.kind for event in decision.events] == ["expired", "acquired"]


def test_an_expiry_that_a_refused_claim_notices_is_written() -> None:
    decision = decided(10_000, lock(holder(), acl=("team",)), acquire())
    assert isinstance(decision.outcome, outcomes.Forbidden)
    assert not written(decision).holders
    assert [event.kind for event in decision.events] == ["expired"]


def test_a_list_is_only_set_by_a_claim_where_there_is_none() -> None:
    assert written(decided(0, None, acquire(acl=("x",)))).acl == ("x",)
    assert written(decided(0, lock(acl=("y",)), acquire(badges=("y",)))).acl == ("y",)
    assert written(decided(0, None, acquire(acl=()))).acl == ()


# Renew


def test_a_heartbeat_starts_the_time_anew() -> None:
    decision = decided(9_999, lock(holder()), renew())
    kept = holder(renewed_ms=9_999, used=True)  # no withdrawal ends it any more
    assert decision.outcome == lease_outcomes.Renewed(now_ms=9_999, name=JOB, lease=kept)
    assert written(decision) == lock(kept)
    assert not decision.events


@pytest.mark.parametrize("ttl_ms", [1_000, 100_000])
def test_a_heartbeat_may_ask_for_another_length(ttl_ms: int) -> None:
    kept = written(decided(2_000, lock(holder()), renew(ttl_ms=ttl_ms))).holders[0]
    assert (kept.ttl_ms, kept.expires_ms) == (ttl_ms, 2_000 + ttl_ms)


@pytest.mark.parametrize(
    ("carried", "told"),
    [
        ({}, False),
        ({"checkpoint": "half"}, False),
        ({"metadata": "m"}, False),
        ({"checkpoint": "more"}, True),
        ({"metadata": "n"}, True),
        ({"checkpoint": ""}, True),
    ],
)
def test_a_heartbeat_is_an_event_only_if_it_brings_something_new(carried: dict[str, str], told: bool) -> None:
    mine = holder(checkpoint="half", checkpoint_ms=100, metadata="m")
    decision = decided(1_000, lock(mine), renew(**carried))
    assert [event.kind for event in decision.events] == (["progress"] if told else [])
    kept = written(decision).holders[0]
    assert (kept.metadata, kept.checkpoint) == (
        carried.get("metadata", "m"),
        carried.get("checkpoint", "half"),
    )
    assert kept.checkpoint_ms == (1_000 if "checkpoint" in carried else 100)


STRANGERS = [{"lease_id": "lease-2"}, {"lease_id": ""}, {"lease_id": "lease-1", "principal": "solo"}]


@pytest.mark.promise("proof")
@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("command", [renew(checkpoint="x"), release(done_ms=5)], ids=["renew", "release"])
def test_without_the_current_lease_and_its_credential_nothing_is_renewed_or_released(
    command: Any, stranger: dict[str, str]
) -> None:
    decision = decided(1_000, lock(holder()), command.replace(**stranger))
    assert decision.outcome == outcomes.NotCurrent(now_ms=1_000, name=JOB, holders=(holder(),))
    assert not decision.writes
    assert not decision.events


@pytest.mark.promise("proof")
@pytest.mark.parametrize("how", ["expired", "broken"])
@pytest.mark.parametrize("command", [renew(), release()], ids=["renew", "release"])
def test_a_message_of_a_former_owner_leaves_its_successor_alone_and_says_how_it_was_lost(
    command: Command, how: str
) -> None:
    successor, over = holder(token=2, lease_id="lease-2"), ending(how=how, reason="why", by="op")
    decision = decided(1_000, lock(successor, endings=(over,)), command)
    assert decision.outcome == outcomes.NotCurrent(now_ms=1_000, name=JOB, holders=(successor,), ending=over)
    assert not decision.writes


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize(("now_ms", "renewed"), [(9_999, True), (10_000, False), (10_001, False)])
def test_a_heartbeat_counts_until_one_millisecond_before_the_deadline(now_ms: int, renewed: bool) -> None:
    decision = decided(now_ms, lock(holder()), renew())
    assert isinstance(decision.outcome, lease_outcomes.Renewed) == renewed
    assert [event.kind for event in decision.events] == ([] if renewed else ["expired"])


@pytest.mark.promise("proof")
def test_for_an_admin_the_lease_id_is_proof_enough_and_nothing_less_is() -> None:
    assert isinstance(decided(0, lock(holder()), renew(principal=None)).outcome, lease_outcomes.Renewed)
    assert isinstance(decided(0, lock(holder()), release(principal=None)).outcome, lease_outcomes.Released)
    assert isinstance(
        decided(0, lock(holder()), renew(principal=None, lease_id="lease-2")).outcome, outcomes.NotCurrent
    )


@pytest.mark.fault("F-012")
def test_looking_at_a_hold_that_ran_out_unnoticed_shows_it_as_held_until_its_end_is_written() -> None:
    lost = holder(delay_ms=5_000, checkpoint="half")
    decision = decided(10_000, lock(lost), INSPECT)
    assert isinstance(decision.outcome, outcomes.Status)
    assert decision.outcome.lock == lock(lost)
    assert (decision.writes, decision.events) == ({}, ())


def test_whoever_holds_as_much_as_it_may_is_not_put_in_line_either() -> None:
    decision = decided(0, lock(holder()), acquire(over_quota=True, wait=True))
    assert decision.outcome == outcomes.QuotaExceeded(now_ms=0, name=JOB)
    assert decision.writes == {}


# Release


def test_a_release_frees_the_job_and_forgets_the_losses_before_it() -> None:
    decision = decided(1_000, lock(holder(checkpoint="half", delay_ms=5_000), failures=3), release())
    over = ending(at_ms=1_000, checkpoint="half")
    assert decision.outcome == lease_outcomes.Released(now_ms=1_000, name=JOB, ending=over)
    assert written(decision) == lock(endings=(over,))
    assert [(event.kind, event.checkpoint) for event in decision.events] == [("released", "half")]


def test_a_release_is_followed_by_the_delay_if_the_lease_says_so() -> None:
    kept = holder(delay_ms=5_000, delays_release=True)
    after = written(decided(1_000, lock(kept), release()))
    assert (after.delay_until_ms, after.holders) == (6_000, ())
    assert written(decided(1_000, lock(holder(delay_ms=5_000)), release())).delay_until_ms == 0
    fresh = written(decided(1_000, None, acquire(delay_ms=5_000, policy=ClaimPolicy(delays_release=True))))
    assert fresh.holders[0].delays_release


def test_a_claim_by_the_one_counter_is_above_all_tokens_of_the_store() -> None:
    decision = decided(0, lock(token=3), acquire(policy=ClaimPolicy(one_counter=True)), meta=Meta(token_floor=7))
    assert isinstance(decision.outcome, outcomes.Granted)
    assert decision.outcome.lease.token == 8
    floor = decision.writes["meta"]
    assert isinstance(floor, Meta)
    assert floor.token_floor == 8
    assert "meta" not in decided(0, lock(token=3), acquire()).writes


def test_a_release_may_mark_the_job_done() -> None:
    asked = release(done_ms=5_000, result="merged", checkpoint="all of it")
    decision = decided(1_000, lock(holder(checkpoint="half")), asked)
    after = written(decision)
    assert after.done == Done(owner="a1", token=1, at_ms=1_000, until_ms=6_000, result="merged")
    assert after.endings[0].checkpoint == "all of it"
    (event,) = decision.events
    assert (event.result, event.done_until_ms, event.checkpoint) == ("merged", 6_000, "all of it")


def test_only_the_newest_ending_keeps_the_texts_of_its_owner() -> None:
    after = written(decided(1_000, lock(holder(checkpoint="half", metadata="pr=1")), release()))
    again = holder(token=2, metadata="pr=2")
    newer = written(decided(2_000, after.replace(holders=(again,), token=2), release()))
    found = [(each.checkpoint, each.metadata) for each in newer.endings]
    assert found == [(None, "pr=2"), (None, None)]


@pytest.mark.promise("idem:release")
@pytest.mark.parametrize("held_by_another", [False, True])
def test_releasing_again_what_was_released_is_fine_and_changes_nothing(held_by_another: bool) -> None:
    successors = (holder(token=2, lease_id="lease-2"),) if held_by_another else ()
    decision = decided(1_000, lock(*successors, endings=(ending(),)), release(checkpoint="x"))
    assert decision.outcome == lease_outcomes.Released(now_ms=1_000, name=JOB, ending=ending(), again=True)
    assert not decision.writes
    assert not decision.events


@pytest.mark.promise("idem:release")
@pytest.mark.fault("F-330")
@pytest.mark.parametrize("how", ["released", "failed"])
def test_a_repeat_that_would_mark_it_as_done_says_how_it_was_released_before(how: str) -> None:
    before = ending(how=how)
    decision = decided(1_000, lock(endings=(before,)), release(done_ms=9))
    assert decision.outcome == outcomes.NotCurrent(now_ms=1_000, name=JOB, holders=(), ending=before)
    assert not decision.writes
    done = ending(done=True)
    decision = decided(1_000, lock(endings=(done,)), release(done_ms=9))
    assert decision.outcome == lease_outcomes.Released(now_ms=1_000, name=JOB, ending=done, again=True)


@pytest.mark.promise("idem:release")
def test_releasing_what_ran_out_a_moment_ago_says_so() -> None:
    decision = decided(10_000, lock(holder()), release(done_ms=5_000))
    assert decision.outcome == outcomes.NotCurrent(now_ms=10_000, name=JOB, ending=ending(how="expired", at_ms=10_000))
    assert written(decision).done is None


def test_a_job_remembers_its_last_endings_and_the_checkpoint_of_the_newest_only() -> None:
    stored = None
    for number in range(REMEMBERED_MAX + 2):
        claimed = written(decided(number, stored, acquire(fresh_lease_id=f"lease-{number}")))
        shown = {"principal": "solo", "lease_id": f"lease-{number}", "checkpoint": f"step {number}"}
        stored = written(decided(number, claimed, release(**shown)))
    assert stored is not None
    last = REMEMBERED_MAX + 1
    assert [each.lease_id for each in stored.endings] == [f"lease-{last - back}" for back in range(REMEMBERED_MAX)]
    assert [each.checkpoint for each in stored.endings] == [f"step {last}"] + [None] * (REMEMBERED_MAX - 1)


# Break, access lists, looking


def test_a_break_takes_the_job_away_and_keeps_who_did_it_and_why() -> None:
    decision = decided(1_000, lock(holder(delay_ms=3_000, checkpoint="half")), break_())
    mine = holder(delay_ms=3_000, checkpoint="half")
    assert decision.outcome == lease_outcomes.Broken(now_ms=1_000, name=JOB, holders=(mine,))
    over = ending(how="broken", at_ms=1_000, checkpoint="half", by="op", reason="stuck")
    assert written(decision) == lock(endings=(over,), failures=1, delay_until_ms=4_000)
    assert [(event.kind, event.by, event.reason) for event in decision.events] == [("broken", "op", "stuck")]


@pytest.mark.parametrize("stored", [None, lock(), lock(endings=(ending(),), done=DONE)])
def test_breaking_what_nobody_holds_changes_nothing(stored: LockRecord | None) -> None:
    decision = decided(1_000, stored, break_())
    assert decision.outcome == lease_outcomes.Broken(now_ms=1_000, name=JOB)
    assert not decision.writes
    assert not decision.events


@pytest.mark.parametrize(
    ("stored", "asked", "answer"),
    [
        (None, set_acl(), lease_outcomes.NotFound(now_ms=0, name=JOB)),
        (None, set_acl(admin=True), lease_outcomes.NotFound(now_ms=0, name=JOB)),
        (lock(holder()), set_acl(principal="solo"), outcomes.Forbidden(now_ms=0, name=JOB)),
        (lock(endings=(ending(),)), set_acl(), outcomes.Forbidden(now_ms=0, name=JOB)),
        (lock(holder()), set_acl(), lease_outcomes.AclSet(now_ms=0, name=JOB, acl=("a",))),
        (lock(), set_acl(admin=True), lease_outcomes.AclSet(now_ms=0, name=JOB, acl=("a",))),
        (lock(acl=("b",)), set_acl(admin=True, acl=()), lease_outcomes.AclSet(now_ms=0, name=JOB, acl=())),
    ],
)
def test_an_access_list_is_for_the_owner_or_an_admin_to_change(stored: Any, asked: Any, answer: Any) -> None:
    decision = decided(0, stored, asked)
    assert decision.outcome == answer
    if isinstance(answer, lease_outcomes.AclSet):
        assert written(decision) == stored.replace(acl=asked.acl)
        (event,) = decision.events
        assert (event.kind, event.job, event.by) == ("access-set", JOB, asked.principal)
        assert event.reason == ("a list of 1" if asked.acl else "no list")
    else:
        assert not decision.writes
        assert not decision.events


def test_setting_the_access_list_that_is_there_already_writes_nothing() -> None:
    assert not decided(0, lock(holder(), acl=("a",)), set_acl()).writes


@pytest.mark.parametrize(
    ("now_ms", "stored", "meta", "seen"),
    [
        (0, None, None, False),
        (0, lock(holder()), None, True),
        (10_000, lock(holder()), None, True),
        (10_000, lock(holder()), Meta(outages=(outage(5_000, 9_000),)), True),
        (10**12, lock(endings=(ending(),)), None, True),
    ],
)
def test_looking_shows_how_the_job_stands_now_and_writes_nothing(
    now_ms: int, stored: LockRecord | None, meta: Meta | None, seen: bool
) -> None:
    decision = decided(now_ms, stored, INSPECT, meta=meta)
    assert isinstance(decision.outcome, outcomes.Status)
    assert decision.outcome.seen == seen
    held = stored.holders if stored is not None else ()
    assert [each.owner for each in decision.outcome.lock.holders] == [each.owner for each in held]
    assert not decision.writes
    assert not decision.events


# What every decision keeps to

COMMANDS = [acquire(), acquire(lease_id="lease-1"), renew(), release(), break_(), set_acl(), INSPECT, SWEEP]


def kind(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("command", COMMANDS, ids=kind)
def test_a_decision_asks_for_what_it_needs_and_the_hint_names_all_of_it(command: Command) -> None:
    with pytest.raises(Missing) as caught:
        decide(View(0), command)
    assert set(caught.value.keys) <= set(keys_of(command))
    decide(View(0, dict.fromkeys(keys_of(command))), command)
    decide(View(0, {**dict.fromkeys(keys_of(command)), KEY: lock(holder())}), command)


@pytest.mark.parametrize("command", COMMANDS, ids=kind)
def test_events_carry_no_lease_id(command: Command) -> None:
    for now_ms in (1_000, 10_000):
        decision: Decision = decided(now_ms, lock(holder()), command)
        assert "lease-" not in repr(decision.events)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("stored", "asked", "reasons"),
    [
        (lock(holder()), acquire(audited=True), ["held by a1"]),
        (lock(parked=True), acquire(audited=True), ["parked"]),
        (lock(holder()), acquire(), []),
        (None, acquire(audited=True), []),
    ],
)
def test_a_refusal_is_an_event_if_the_claim_is_audited(
    stored: LockRecord | None, asked: Acquire, reasons: list[str]
) -> None:
    told = [event for event in decided(1, stored, asked).events if event.kind == REFUSED]
    assert [event.reason for event in told] == reasons
    assert all((event.owner, event.principal, event.job) == ("b1", "solo", JOB) for event in told)


def test_a_late_message_is_told_how_its_own_lease_ended() -> None:
    stored = lock(
        endings=(ending(lease_id="lease-2", how="broken", by="op"), ending(lease_id="lease-1", how="expired"))
    )
    told = decided(1, stored, release()).outcome
    assert isinstance(told, outcomes.NotCurrent)
    assert told.ending == stored.endings[1]


@pytest.mark.parametrize(("principal", "told"), [("team", True), (None, True), ("other", False)])
def test_how_a_lease_ended_is_reported_to_its_principal_and_to_an_admin(principal: str | None, told: bool) -> None:
    answer = decided(1, lock(endings=(ending(how="expired"),)), release(principal=principal)).outcome
    assert isinstance(answer, outcomes.NotCurrent)
    assert (answer.ending is not None) == told


@pytest.mark.promise("proof")
def test_whoever_shares_a_job_is_known_again_beside_owners_of_other_principals() -> None:
    stored = lock(holder(lease_id="lease-0", principal="other", mode="shared"), holder(mode="shared"))
    again = decided(1, stored, acquire(principal="team", lease_id="lease-1", mode="shared")).outcome
    assert isinstance(again, outcomes.Granted)
    assert again.lease.lease_id == "lease-1"


def test_an_event_says_until_when_a_job_is_held_if_its_ttl_does_not() -> None:
    session = SessionRecord(
        id="s", principal="solo", owner="b1", ttl_ms=9_000, since_ms=0, renewed_ms=0, expires_ms=9_000, ns=NS
    )
    for ttl_ms, until_ms in ((0, 9_000), (5_000, None)):
        here = View(1, {KEY: None, META_KEY: None, session_key("s"): session})
        (event,) = decide(here, acquire(session="s", ttl_ms=ttl_ms)).events
        assert (event.ttl_ms, event.until_ms) == (ttl_ms, until_ms)


def test_jobs_of_different_namespaces_are_different_jobs() -> None:
    here = view(0, lock(holder()))
    with pytest.raises(Missing, match="lock/elsewhere/"):
        decide(here, acquire(ns="elsewhere"))
    assert NS != "elsewhere"
