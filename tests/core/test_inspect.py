"""The state of a job: one word, whoever asks, and the same that a claim would be told."""

from __future__ import annotations

from itertools import product

import pytest

from dibs.base.errors import InvalidInput
from dibs.core import lease_outcomes, outcomes
from dibs.core.claims.inspect import state_of, states_named
from dibs.core.records import (
    CLOSED,
    DELAYED,
    DONE,
    FREE,
    FROZEN,
    HELD,
    PARKED,
    PAUSED,
    STATES,
    Closure,
    Done,
    FreezeMark,
    LockRecord,
    Meta,
)
from dibs.wire.documents import reply_to
from dibs.wire.lease_documents import list_document
from tests.core.make import INSPECT, JOB, NS, acquire, decided, holder, lock

NOW_MS = 100_000
WORDS = {
    outcomes.Parked: PARKED,
    outcomes.AlreadyDone: DONE,
    lease_outcomes.Frozen: FROZEN,
    outcomes.Closed: CLOSED,
    outcomes.Delayed: DELAYED,
    outcomes.Granted: FREE,
}
# Held, parked, done, frozen, closed, a pool of so many slots, delayed.
CASES = list(product(*[(False, True)] * 5, (None, 0, 2), (False, True)))


def case(
    *, held: bool, parked: bool, done: bool, frozen: bool, closed: bool, slots: int | None, delayed: bool
) -> tuple[LockRecord, Meta]:
    numbers = () if slots is None else (0,)
    made = lock(*([holder(renewed_ms=NOW_MS, slot_numbers=numbers)] if held else []))
    made = made.replace(
        parked=parked,
        done=Done(owner="a1", token=1, at_ms=0, until_ms=NOW_MS + 1) if done else None,
        pooled=slots is not None,
        slots=1 if slots is None else slots,
        delay_until_ms=NOW_MS + 1 if delayed else 0,
    )
    closure = Closure(ns=NS, name=JOB, reason="r", by="op", at_ms=0, until_ms=NOW_MS + 1)
    mark = FreezeMark(at_ms=0, id="f") if frozen else None
    return made, Meta(closures=(closure,) if closed else (), frozen=mark)


def told(outcome: outcomes.Outcome) -> str:
    """The word for why a newcomer does not get the job; free if it does."""
    if isinstance(outcome, outcomes.Held):
        return PAUSED if outcome.paused else HELD
    return WORDS[type(outcome)]


@pytest.mark.fault("F-688")
def test_the_word_for_a_job_that_nobody_holds_is_what_a_claim_is_told() -> None:
    seen = set()
    for held, parked, done, frozen, closed, slots, delayed in CASES:
        stored, meta = case(
            held=held, parked=parked, done=done, frozen=frozen, closed=closed, slots=slots, delayed=delayed
        )
        word = state_of(stored, NOW_MS, *meta.closures, frozen=frozen)
        seen.add(word)
        if held:
            assert word == HELD
        elif not (frozen and word in (PARKED, DONE)):  # a frozen store refuses those, too
            assert word == told(decided(NOW_MS, stored, acquire(), meta=meta).outcome), (stored, meta)
    assert seen == set(STATES)


@pytest.mark.fault("F-688")
def test_inspect_and_a_list_say_the_same_word() -> None:
    for held, parked, done, frozen, closed, slots, delayed in CASES:
        stored, meta = case(
            held=held, parked=parked, done=done, frozen=frozen, closed=closed, slots=slots, delayed=delayed
        )
        word = state_of(stored, NOW_MS, *meta.closures, frozen=frozen)
        shown = reply_to("inspect", decided(NOW_MS, stored, INSPECT, meta=meta).outcome).body
        assert shown is not None
        (listed,) = list_document([stored], NOW_MS, "", None, meta.closures, frozen=frozen)["locks"]
        assert shown["status"] == listed["status"] == word
        assert ("closed" in shown) == closed
        assert ("available_at" in shown) == (delayed and word not in (HELD, PARKED, DONE))


def test_states_are_named_one_by_one_or_all_at_once() -> None:
    assert states_named(None) == (HELD,)
    assert states_named("all") == STATES
    assert states_named("paused,free") == (PAUSED, FREE)
    for wrong in ("resting", "all,free", "free,"):
        with pytest.raises(InvalidInput):
            states_named(wrong)
