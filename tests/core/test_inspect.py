"""The state of a job: one word, whoever asks, and the same that a claim would be told."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

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
FLAG = (False, True)


class Case(NamedTuple):
    """Everything that the word depends on. `slots` is that of a pool; None: the job is none."""

    held: bool
    parked: bool
    done: bool
    frozen: bool
    closed: bool
    delayed: bool
    slots: int | None

    def records(self) -> tuple[LockRecord, Meta]:
        numbers = () if self.slots is None else (0,)
        made = lock(*([holder(renewed_ms=NOW_MS, slot_numbers=numbers)] if self.held else []))
        made = made.replace(
            parked=self.parked,
            done=Done(owner="a1", token=1, at_ms=0, until_ms=NOW_MS + 1) if self.done else None,
            pooled=self.slots is not None,
            slots=1 if self.slots is None else self.slots,
            delay_until_ms=NOW_MS + 1 if self.delayed else 0,
        )
        closure = Closure(ns=NS, name=JOB, reason="r", by="op", at_ms=0, until_ms=NOW_MS + 1)
        mark = FreezeMark(at_ms=0, id="f") if self.frozen else None
        return made, Meta(closures=(closure,) if self.closed else (), frozen=mark)


CASES = [Case(*flags, slots) for flags in product(FLAG, FLAG, FLAG, FLAG, FLAG, FLAG) for slots in (None, 0, 2)]


def told(outcome: outcomes.Outcome) -> str:
    """The word for why a newcomer does not get the job; free if it does."""
    if isinstance(outcome, outcomes.Held):
        return PAUSED if outcome.paused else HELD
    return WORDS[type(outcome)]


@pytest.mark.fault("F-688")
def test_the_word_for_a_job_that_nobody_holds_is_what_a_claim_is_told() -> None:
    seen = set()
    for case in CASES:
        stored, meta = case.records()
        word = state_of(stored, NOW_MS, *meta.closures, frozen=case.frozen)
        seen.add(word)
        if case.held:
            assert word == HELD
        elif not (case.frozen and word in (PARKED, DONE)):  # a frozen store refuses those, too
            assert word == told(decided(NOW_MS, stored, acquire(), meta=meta).outcome), (stored, meta)
    assert seen == set(STATES)


@pytest.mark.fault("F-688")
def test_inspect_and_a_list_say_the_same_word() -> None:
    for case in CASES:
        stored, meta = case.records()
        word = state_of(stored, NOW_MS, *meta.closures, frozen=case.frozen)
        shown = reply_to("inspect", decided(NOW_MS, stored, INSPECT, meta=meta).outcome).body
        assert shown is not None
        (listed,) = list_document([stored], NOW_MS, "", None, meta.closures, frozen=case.frozen)["locks"]
        assert shown["status"] == listed["status"] == word
        assert ("closed" in shown) == case.closed
        assert ("available_at" in shown) == (case.delayed and word not in (HELD, PARKED, DONE))


def test_states_are_named_one_by_one_or_all_at_once() -> None:
    assert states_named(None) == (HELD,)
    assert states_named("all") == STATES
    assert states_named("paused,free") == (PAUSED, FREE)
    for wrong in ("resting", "all,free", "free,"):
        with pytest.raises(InvalidInput):
            states_named(wrong)
