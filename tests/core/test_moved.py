"""Where webhooks continue in a store that gave their events other numbers."""

from __future__ import annotations

import random

import pytest

from dibs.core.limits import TICKET_MS
from dibs.core.records import Holder, LockRecord, Meta, Outage, Pulse, SessionRecord, Ticket
from dibs.core.service.credentials import CredentialRegister
from dibs.core.service.webhooks import (
    DeadLetter,
    DeadLetters,
    Lane,
    Webhook,
    WebhookEntry,
    WebhookProgress,
    WebhookRegister,
)
from dibs.core.upkeep.moved import Renumbering, merged, moved, without_history
from tests.core.make import holder

HOOK = Webhook(id="hook", ns="default", principal="ops", url="https://hook.test/", since_ms=0)


def progress_of(there: Renumbering, progress: WebhookProgress) -> WebhookProgress:
    found = there.of(progress)
    assert isinstance(found, WebhookProgress)
    return found


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.fault("F-073")
@pytest.mark.parametrize("seed", range(20))
def test_what_follows_a_position_follows_it_there_or_a_gap_is_seen(seed: int) -> None:
    chance = random.Random(seed)
    numbers = sorted(chance.sample(range(1, 60), 20))
    pruned = chance.randrange(20)
    old, last = numbers[pruned:], numbers[-1]
    base = last + 1 if chance.random() < 0.7 else 0
    new = [base + seq for seq in old]
    there = Renumbering(old, new, last + 1, base + last + 1)
    for at in range(last + 1):
        position = progress_of(there, WebhookProgress(at=at)).at
        follows = [seq for seq in new if seq > position]
        missed = any(seq > at for seq in numbers[:pruned])
        if missed:
            assert (follows[0] if follows else base + last + 1) > position + 1, (at, position)
        else:
            assert len(follows) == sum(seq > at for seq in old)


def test_lanes_dead_letters_and_replays_are_of_the_same_events_there() -> None:
    there = Renumbering([11, 12, 15, 16], [101, 102, 103, 104], 17, 105)
    lanes = (
        Lane(job="a", after=11, last=15, tries=3, until_ms=9, error="answered 500"),
        Lane(job="b", after=4, last=12, until_ms=9),
        Lane(job="c", after=4, last=7),
        Lane(job="", after=2, last=9, until_ms=9),
    )
    found = progress_of(there, WebhookProgress(at=15, lanes=lanes, until_ms=9, delivered=4))
    assert found == WebhookProgress(
        at=103,
        delivered=4,
        lanes=(
            Lane(job="a", after=101, last=103, tries=3, error="answered 500"),
            Lane(job="b", after=4, last=102),  # a part of it is gone, which is seen by its beginning
            Lane(job="c", after=4, last=7),
            Lane(job="", after=2, last=9),
        ),
    )
    letters = [DeadLetter(seq=seq, job="a", kind="acquired", at_ms=1, tries=25) for seq in (7, 12, 16)]
    assert there.of(DeadLetters(letters=tuple(letters))) == DeadLetters(
        letters=tuple([each.replace(seq=seq) for each, seq in zip(letters, (7, 102, 104), strict=True)])
    )
    assert there.of(HOOK.replace(replay_after=12)) == HOOK.replace(replay_after=102)
    assert there.of(HOOK) == HOOK


@pytest.mark.promise("webhook:gap")
def test_without_the_history_a_webhook_begins_at_the_end_and_says_what_is_missing() -> None:
    lane = Lane(job="a", after=11, last=15)
    begun = without_history(WebhookProgress(at=20, lanes=(lane,)), 70)
    assert begun == WebhookProgress(at=70, lanes=(Lane(job="", after=11, last=70),), gaps=1)
    told = WebhookProgress(at=70, lanes=(Lane(job="", after=30, last=70),), gaps=1)
    assert without_history(WebhookProgress(at=30), 70) == told  # the other store may have gone on
    assert without_history(HOOK.replace(replay_after=12), 70) == HOOK.replace(replay_after=70)


@pytest.mark.promise("webhook:gap")
@pytest.mark.fault("F-415")
def test_a_target_is_told_of_numbers_that_no_event_has_besides_what_it_had_to_be_told() -> None:
    there = Renumbering([11, 12], [101, 102], 13, 103, (12, 100))
    waits = Lane(job="a", after=11, last=12)
    found = progress_of(there, WebhookProgress(at=12, lanes=(Lane(job="", after=2, last=9), waits), gaps=1))
    gap = Lane(job="", after=2, last=100)
    assert found == WebhookProgress(at=102, lanes=(gap, Lane(job="a", after=101, last=102)), gaps=2)


def test_of_two_records_a_store_keeps_its_own_and_registers_name_what_both_have() -> None:
    one, two, three = [WebhookEntry(id=each, ns="d", principal="p") for each in ("1", "2", "3")]
    own, brought = WebhookRegister(changes=4, entries=(one, two)), WebhookRegister(changes=9, entries=(two, three))
    assert merged(None, brought, adds=False) == brought
    assert merged(own, brought, adds=False) == WebhookRegister(changes=5, entries=(one, two, three))
    tokens = CredentialRegister(changes=4, recent=("a",))
    other = CredentialRegister(changes=9, recent=("b",))
    assert merged(tokens, other, adds=False) == CredentialRegister(changes=5)
    assert merged(Meta(token_floor=4), Meta(token_floor=9), adds=False) == Meta(token_floor=4)
    assert merged(HOOK, HOOK.replace(stopped="why"), adds=True) == HOOK
    assert merged(HOOK, HOOK.replace(stopped="why"), adds=False) == HOOK.replace(stopped="why")


LATER_MS = 100_000
OUTAGES = (Outage(began_ms=1_000, ended_ms=4_000),)
SESSION = SessionRecord(
    id="s", principal="p", owner="o", ttl_ms=2_000, since_ms=0, renewed_ms=500, expires_ms=2_500, ns="d"
)
PLACE = Ticket(
    ns="d",
    name="job",
    number=1,
    lease_id="l",
    principal="p",
    owner="o",
    ttl_ms=2_000,
    since_ms=0,
    renewed_ms=500,
    expires_ms=15_500,
)


@pytest.mark.parametrize(
    ("record", "expires_ms"),
    [
        (SESSION, 6_000),  # a whole TTL after the outage
        (PLACE, 4_000 + TICKET_MS),
        (holder(renewed_ms=500, ttl_ms=2_000), 6_000),
        (holder(renewed_ms=500, ttl_ms=2_000, ends_ms=5_000), 5_000),
        (holder(renewed_ms=4_000, ttl_ms=2_000), 6_000),  # it was renewed after the outage
        (holder(renewed_ms=500, ttl_ms=0, expires_ms=2_500, session="s"), 2_500),  # that is its session's
    ],
)
def test_what_has_credit_for_an_outage_has_as_much_time_left_in_another_store(
    record: SessionRecord | Ticket | Holder, expires_ms: int
) -> None:
    kept = LockRecord(ns="d", name="job", holders=(record,)) if isinstance(record, Holder) else record
    there = moved(kept, OUTAGES, LATER_MS)
    found = there.holders[0] if isinstance(there, LockRecord) else there
    assert isinstance(found, type(record))
    assert (found.expires_ms, found.renewed_ms) == (expires_ms + LATER_MS, record.renewed_ms + LATER_MS)


def test_what_has_no_deadline_of_its_own_keeps_its_dates() -> None:
    for record in (Meta(token_floor=3), Pulse(server="one", at_ms=7), CredentialRegister(changes=2)):
        assert moved(record, OUTAGES, LATER_MS) == record


@pytest.mark.parametrize(("at", "first", "position"), [(0, 20, 1), (0, 2, 0), (0, 3, 1), (1, 20, 1), (5, 20, 5)])
def test_who_missed_pruned_events_stays_at_its_place_and_is_never_at_the_beginning(
    at: int, first: int, position: int
) -> None:
    """The beginning would ask for all that there is, and miss nothing."""
    there = Renumbering([10], [first], 11, first + 1)
    assert progress_of(there, WebhookProgress(at=at)).at == position
