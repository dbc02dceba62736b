"""The judge of steps and numbers (`dibs.testing.outside`): what it says of histories and answers that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import events as kinds
from dibs.core.events import Event
from dibs.core.records import EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED, EffectState, Holder, LockRecord, Number
from dibs.testing.outside import Outside

pytestmark = pytest.mark.promise("effect:once", "effect:doubt-told", "number")
DOUBT_TOLD = "effect:doubt-told"


class Seen:
    """What happened to one job, and what the judge says of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.outside = Outside(lambda promise, says: self.said.append(promise))

    def happens(self, kind: str, token: int = 1, **more: Any) -> None:
        key = "mail" if kind.startswith("effect") else None
        self.outside.follow(Event(at_ms=0, kind=kind, job="j", owner=f"o{token}", token=token, effect_key=key, **more))

    def begun(self) -> Seen:
        self.happens(kinds.ACQUIRED)
        self.happens(kinds.EFFECT_BEGUN)
        return self

    def taken_over(self) -> Seen:
        self.begun()
        self.happens(kinds.EXPIRED)
        self.happens(kinds.ACQUIRED, 2)
        return self

    def tells(self, status: str, token: int = 1, **more: Any) -> None:
        self.outside.check_answer("j", token, {"key": "mail", "status": status, **more})

    def written(self, *effects: EffectState, **more: Any) -> None:
        tokens = self.outside.steps.works["j"].owners
        times: dict[str, Any] = {"since_ms": 0, "renewed_ms": 0, "ttl_ms": 1, "expires_ms": 1}
        live = [Holder(lease_id="L", owner=f"o{each}", principal="p", token=each, **times) for each in tokens]
        self.outside.written(LockRecord(ns="default", name="j", holders=tuple(live), effects=effects, **more))


def noted(state: str, token: int = 1, **more: Any) -> EffectState:
    return EffectState(key="mail", id=f"try-{token}", state=state, owner=f"o{token}", token=token, at_ms=0, **more)


def test_a_step_is_new_begun_in_doubt_and_done() -> None:
    seen = Seen()
    seen.happens(kinds.ACQUIRED)
    seen.tells("new")
    seen.happens(kinds.EFFECT_BEGUN)
    seen.written(noted(EFFECT_BEGUN))
    assert seen.outside.does("j", 1, "mail") == "mail-1"
    seen.happens(kinds.EXPIRED)
    seen.written(noted(EFFECT_BEGUN))
    seen.happens(kinds.ACQUIRED, 2)
    seen.tells("in_doubt", 2, owner="o1", fencing_token=1)
    seen.happens(kinds.EFFECT_BEGUN, 2)
    seen.written(noted(EFFECT_BEGUN, 2, doubt_owner="o1", doubt_token=1))
    assert seen.outside.finds("j", 2, "mail") == "mail-1"
    assert seen.outside.does("j", 1, "mail") is None, "another owner was there"
    seen.happens(kinds.EFFECT_DONE, 2)
    seen.written(noted(EFFECT_DONE, 2, result="mail-1"))
    seen.tells("done", 2, result="mail-1")
    seen.happens(kinds.RELEASED, 2)
    seen.happens(kinds.ACQUIRED, 3)
    seen.tells("new", 3)
    assert seen.said == []


def ends_another_try(seen: Seen) -> None:
    seen.taken_over().happens(kinds.EFFECT_DONE, 2)


def begins_what_is_done(seen: Seen) -> None:
    seen.begun().happens(kinds.EFFECT_DONE)
    seen.happens(kinds.EFFECT_BEGUN)


def begins_what_is_under_way(seen: Seen) -> None:
    seen.begun().happens(kinds.EFFECT_BEGUN)


def begins_what_it_has_not(seen: Seen) -> None:
    seen.begun().happens(kinds.EFFECT_BEGUN, 7)


def forgets_what_was_done(seen: Seen) -> None:
    seen.begun().happens(kinds.EFFECT_DONE)
    seen.written()


def forgets_a_doubt(seen: Seen) -> None:
    seen.taken_over().happens(kinds.EFFECT_BEGUN, 2)
    seen.happens(kinds.EFFECT_FAILED, 2)
    seen.written(noted(EFFECT_FAILED, 2))


def blames_another(seen: Seen) -> None:
    seen.taken_over().happens(kinds.EFFECT_BEGUN, 2)
    seen.written(noted(EFFECT_BEGUN, 2, doubt_owner="o2", doubt_token=2))


def begins_an_ended_try(seen: Seen) -> None:
    seen.begun().happens(kinds.EFFECT_FAILED)
    seen.written(noted(EFFECT_FAILED))
    seen.happens(kinds.EFFECT_BEGUN)
    seen.written(noted(EFFECT_BEGUN))


def calls_new_what_happened(seen: Seen) -> None:
    seen.begun().outside.does("j", 1, "mail")
    seen.happens(kinds.EXPIRED)
    seen.happens(kinds.ACQUIRED, 2)
    seen.tells("new", 2)


def tells_a_result_that_never_was(seen: Seen) -> None:
    seen.begun().tells("done", result="mail-9")


def tells_another_doubt(seen: Seen) -> None:
    seen.taken_over().tells("in_doubt", 2, owner="o2", fencing_token=2)


def happens_twice(seen: Seen) -> None:
    outside = seen.begun().outside
    assert outside.does("j", 1, "mail")
    assert outside.does("j", 1, "mail")


def gives_a_number_twice(seen: Seen) -> None:
    seen.happens(kinds.NUMBERED, 1, reason="1")
    seen.happens(kinds.NUMBERED, 2, reason="1")


def leaves_a_number_out(seen: Seen) -> None:
    seen.happens(kinds.NUMBERED, 1, reason="1")
    seen.happens(kinds.NUMBERED, 2, reason="3")
    seen.outside.numbered("j", 3, "o2", "k", is_next=True)


def leaves_out_what_was_given_back(seen: Seen) -> None:
    seen.happens(kinds.NUMBERED, 1, reason="1")
    seen.happens(kinds.NUMBERED, 2, reason="2")
    seen.outside.gives_back("j", 1, "b")
    seen.happens(kinds.NUMBER_RETURNED, 1, reason="1")
    seen.happens(kinds.NUMBERED, 3, reason="3")
    seen.outside.numbered("j", 3, "o3", "k", is_next=True)


def frees_what_nobody_gave_back(seen: Seen) -> None:
    seen.happens(kinds.NUMBERED, 1, reason="1")
    for _ in range(2):
        seen.outside.gives_back("j", 1, "b")
        seen.happens(kinds.NUMBER_RETURNED, reason="1")
        seen.happens(kinds.NUMBERED, 2, reason="1")


def tells_a_number_that_nobody_gave(seen: Seen) -> None:
    seen.outside.numbered("j", 1, "o1", "k", is_next=True)


def gives_one_ask_two(seen: Seen) -> None:
    for number in (1, 2):
        seen.happens(kinds.NUMBERED, 1, reason=str(number))
        seen.outside.numbered("j", number, "o1", "k", is_next=True)


def forgets_the_last_number(seen: Seen) -> None:
    seen.happens(kinds.NUMBERED, 1, reason="1")
    seen.written(last_number=0)


def names_another_owner(seen: Seen) -> None:
    seen.happens(kinds.NUMBERED, 1, reason="1")
    seen.written(last_number=1, numbers=(Number(number=1, at_ms=0, owner="o2"),))


WRONG = {
    ends_another_try: "effect:once",
    begins_what_is_done: "effect:once",
    begins_what_is_under_way: "effect:once",
    begins_what_it_has_not: "effect:once",
    forgets_what_was_done: "effect:once",
    forgets_a_doubt: DOUBT_TOLD,
    blames_another: DOUBT_TOLD,
    begins_an_ended_try: "effect:once",
    calls_new_what_happened: "effect:once",
    tells_a_result_that_never_was: "effect:once",
    tells_another_doubt: DOUBT_TOLD,
    happens_twice: "effect:once",
    gives_a_number_twice: "number",
    leaves_a_number_out: "number",
    leaves_out_what_was_given_back: "number",
    frees_what_nobody_gave_back: "number",
    tells_a_number_that_nobody_gave: "number",
    gives_one_ask_two: "number",
    forgets_the_last_number: "number",
    names_another_owner: "number",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_what_cannot_be_true_is_said(wrong: Any) -> None:
    seen = Seen()
    wrong(seen)
    assert seen.said == [WRONG[wrong]]


def test_what_happened_before_an_older_copy_took_over_is_not_expected_of_it() -> None:
    seen = Seen()
    event = Event(at_ms=0, kind=kinds.ACQUIRED, job="j", owner="o1", token=1)
    seen.outside.learn([event, event.replace(kind=kinds.EFFECT_BEGUN, effect_key="mail")])
    seen.tells("done", result="mail-9")
    assert seen.outside.does("j", 1, "mail")
    assert seen.outside.does("j", 1, "mail")
    assert seen.said == []


@pytest.mark.fault("F-711")
def test_a_step_of_an_owner_whose_token_an_older_copy_lacks_may_be_of_the_work_in_it() -> None:
    """It waited under both, and its ticket is its lease."""
    seen = Seen()
    seen.happens(kinds.ACQUIRED, 9)
    assert seen.outside.does("j", 7, "mail") == "mail-1"
    seen.happens(kinds.EFFECT_BEGUN, 9)
    seen.happens(kinds.EFFECT_DONE, 9)
    seen.tells("done", 9, result="mail-1")
    assert seen.said == []


def test_what_was_given_back_before_an_older_copy_took_over_may_be_anybodys_in_it() -> None:
    seen, copy = Seen(), Seen()
    seen.happens(kinds.NUMBERED, 1, reason="1")
    seen.outside.gives_back("j", 1, "b")
    copy.outside.goes_on_from(seen.outside)
    copy.happens(kinds.NUMBERED, 2, reason="1")
    copy.happens(kinds.NUMBER_RETURNED, reason="1")
    assert copy.said == []


def test_numbers_are_given_in_order_and_those_that_come_back_first() -> None:
    seen = Seen()
    for owner, number in ((1, 1), (2, 2), (3, 3)):
        seen.happens(kinds.NUMBERED, owner, reason=str(number))
        seen.outside.numbered("j", number, f"o{owner}", f"k{owner}", is_next=True)
    for number in (2, 3):
        seen.outside.gives_back("j", number, f"b{number}")
        seen.happens(kinds.NUMBER_RETURNED, reason=str(number))
    seen.happens(kinds.NUMBERED, 4, reason="2")
    seen.outside.numbered("j", 2, "o4", "k4", is_next=True)
    seen.happens(kinds.NUMBERED, 5, reason="9")
    seen.outside.numbered("j", 9, "o5", "k5", is_next=False)  # it asked for one from 9 on
    assert seen.said == []
