"""A series: no number twice, none left out, and each stays taken until it is given back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dibs.core import events
from dibs.core.commands import (
    Acquire,
    Close,
    Command,
    Inspect,
    ReturnNumber,
    SetAcl,
    SetPool,
    Sweep,
    TakeNumber,
    Withdraw,
)
from dibs.core.lease_outcomes import Numbered, NumberReturned, NumberTaken
from dibs.core.limits import IDLE_RECORD_MS, NUMBERS_KEPT, REMEMBERED_MS
from dibs.core.outcomes import Closed, Forbidden, Granted, Outcome, Status
from dibs.core.records import lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.build import tries
from tests.docs.pages import DOCS, read

NS = "default"
NAME = "migrations"
pytestmark = pytest.mark.promise("number")


class Series:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.coordinator = Coordinator(MemoryStore(self.clock))
        self._keys = 0

    def ask(self, command: Command) -> Outcome:
        return self.coordinator.one(command)

    def take(self, owner: str = "a", key: str = "", **more: Any) -> Outcome:
        self._keys += 1
        given: dict[str, Any] = {"principal": "p", "owner": owner, "request_key": key or f"key-{self._keys}", **more}
        return self.ask(TakeNumber(ns=NS, name=NAME, **given))

    def number(self, owner: str = "a", key: str = "", **more: Any) -> int:
        outcome = self.take(owner, key, **more)
        assert isinstance(outcome, Numbered)
        return outcome.number

    def give_back(self, number: int, principal: str = "p", **more: Any) -> Outcome:
        return self.ask(ReturnNumber(ns=NS, name=NAME, principal=principal, number=number, **more))


@pytest.fixture
def series() -> Series:
    return Series()


def test_numbers_are_consecutive_from_the_least_that_was_asked_for(series: Series) -> None:
    assert [series.number() for _ in range(3)] == [1, 2, 3]
    assert [series.number(at_least=436), series.number(at_least=436), series.number()] == [436, 437, 438]


def test_a_repeat_gets_the_same_number_and_skips_none(series: Series) -> None:
    first = series.take(key="k")
    again = series.take(key="k")
    assert isinstance(again, Numbered)
    assert (first, again) == (again.replace(again=False), again)
    assert again.again
    assert series.number() == 2
    assert series.number(key="k", principal="another") == 3


@pytest.mark.fault("F-618")
def test_a_repeat_is_known_until_as_many_others_were_given_as_the_page_says(series: Series) -> None:
    assert f"unless {NUMBERS_KEPT} others were given since" in read(DOCS / "reference" / "promises.md")
    series.number(key="k")
    for _ in range(NUMBERS_KEPT - 1):
        series.number()
    assert series.number(key="k") == 1
    series.number()
    assert series.number(key="k") == NUMBERS_KEPT + 2


def test_a_number_that_somebody_has_is_refused_with_whose_it_is_and_the_next(series: Series) -> None:
    series.number("a", number=436)
    series.clock.advance(5_000)
    refused = series.take("b", number=436)
    assert isinstance(refused, NumberTaken)
    assert (refused.number, refused.following) == (436, 437)
    assert refused.taken is not None
    assert (refused.taken.owner, refused.taken.at_ms) == ("a", 1_000_000)
    below = series.take("b", number=12)  # nobody knows whether it is used
    assert isinstance(below, NumberTaken)
    assert below.taken is None


def test_what_is_given_back_goes_to_the_next_who_asks(series: Series) -> None:
    for expected in (1, 2, 3):
        assert series.number() == expected
    assert series.give_back(2) == NumberReturned(now_ms=1_000_000, name=NAME, number=2, was_taken=True, last_number=3)
    assert isinstance(again := series.give_back(2), NumberReturned)
    assert not again.was_taken
    assert [series.number(at_least=3), series.number(), series.number()] == [4, 2, 5]
    assert isinstance(last := series.give_back(5), NumberReturned)
    assert last.last_number == 4
    assert [series.number(), series.number()] == [5, 6]


def test_a_number_far_off_that_is_given_back_leaves_no_gap(series: Series) -> None:
    assert [series.number(), series.number(number=9_999)] == [1, 9_999]
    series.give_back(9_999)
    assert series.number() == 2


def test_only_its_owner_or_an_operator_gives_a_number_back(series: Series) -> None:
    series.number()
    assert isinstance(series.give_back(1, "another"), Forbidden)
    assert isinstance(done := series.give_back(1, "another", admin=True), NumberReturned)
    assert done.was_taken
    assert isinstance(never := series.give_back(77), NumberReturned)
    assert not never.was_taken


@pytest.mark.fault("F-664")
@pytest.mark.parametrize("last", [1, 2])
def test_a_late_copy_of_a_give_back_does_not_free_the_number_of_the_next_who_got_it(series: Series, last: int) -> None:
    for _ in range(last):
        series.number()
    first = series.give_back(1, request_key="b")
    assert series.number("b") == 1
    assert isinstance(first, NumberReturned)
    assert series.give_back(1, request_key="b") == first.replace(last_number=last)
    assert series.number("c") == last + 1
    series.clock.advance(REMEMBERED_MS - 1)
    series.give_back(1, request_key="b")
    assert series.number("d") == last + 2
    assert isinstance(own := series.give_back(1, request_key="c"), NumberReturned)
    assert own.was_taken
    assert series.number("e") == 1


@pytest.mark.fault("F-664")
def test_a_late_copy_of_a_give_back_that_found_nobody_frees_nothing_either(series: Series) -> None:
    series.give_back(1, request_key="b")
    assert series.number() == 1
    series.give_back(1, request_key="b")
    assert series.number() == 2
    series.give_back(2, request_key="b")  # the key of a give-back is for its number alone
    assert series.number() == 2


@pytest.mark.promise("idem:withdraw")
def test_a_give_back_and_a_claim_with_one_request_key_are_two_asks(series: Series) -> None:
    series.number()
    series.give_back(1, request_key="k")
    claim = Acquire(ns=NS, name=NAME, principal="p", owner="a", ttl_ms=5_000, fresh_lease_id="l" * 8, request_key="k")
    assert isinstance(series.ask(claim), Granted)
    series.ask(Withdraw(ns=NS, principal="p", names=(NAME,), request_key="k"))
    assert series.number(key="k") == 1


def test_a_series_is_never_forgotten_and_has_a_bounded_memory(series: Series) -> None:
    for expected in range(1, 3 * NUMBERS_KEPT):
        assert series.number() == expected
    series.clock.advance(10 * IDLE_RECORD_MS)
    series.ask(Sweep(key=lock_key(NS, NAME)))
    seen = series.ask(Inspect(ns=NS, name=NAME))
    assert isinstance(seen, Status)
    assert len(seen.lock.numbers) == NUMBERS_KEPT
    assert series.number() == 3 * NUMBERS_KEPT


def test_a_closed_series_gives_no_number_and_repeats_are_answered(series: Series) -> None:
    series.number(key="k")
    series.ask(Close(ns=NS, name=NAME, principal="op", reason="freeze", length_ms=1_000))
    assert isinstance(series.take(), Closed)
    assert series.number(key="k") == 1
    series.clock.advance(2_000)
    assert series.number() == 2


def test_who_may_not_claim_the_series_gets_no_number(series: Series) -> None:
    series.ask(SetAcl(ns=NS, name=NAME, principal="op", acl=("user:p",), admin=True, ahead=True))
    assert isinstance(series.take(), Forbidden)
    assert series.number(badges=("user:p",)) == 1
    assert series.number(admin=True) == 2


def test_claims_and_pools_of_the_same_name_do_not_concern_its_numbers(series: Series) -> None:
    series.number()
    claim = Acquire(ns=NS, name=NAME, principal="q", owner="b", ttl_ms=5_000, fresh_lease_id="l" * 8)
    assert isinstance(series.ask(claim), Granted)
    assert series.number() == 2
    series.clock.advance(60_000)
    series.ask(SetPool(ns=NS, name=NAME, principal="op", slots=0))
    assert series.number() == 3
    kinds = [each.kind for each in series.coordinator.store.events(0, 100)]
    assert kinds.count(events.NUMBERED) == 3


def test_random_asks_agree_with_the_obvious_series() -> None:
    """Of two who ask at any time, no two have one number, and none below the last is free but what was given back."""
    for seed in range(tries(60, 2_000)):
        chance, series, taken, last = random.Random(seed), Series(), dict[int, str](), 0
        returned: set[int] = set()
        sent: list[tuple[int, str]] = []  # give-backs, of which copies come late
        for step in range(40):
            if sent and chance.random() < 0.2:
                number, key = chance.choice(sent)
                series.give_back(number, request_key=key)
            elif taken and chance.random() < 0.3:
                number = chance.choice(list(taken))
                sent.append((number, f"{seed}-{step}"))
                series.give_back(number, request_key=sent[-1][1])
                del taken[number]
                returned.add(number)
            else:
                key = f"{seed}-{step}"
                number = series.number(key=key)
                assert series.number(key=key) == number
                assert number not in taken
                assert number == min([*returned, last + 1])
                returned.discard(number)
                taken[number] = key
            last = max([last, *taken])
            if last not in taken:  # what was given back at the end is no gap
                known = [each for each in taken if each <= last]
                last = max(known, default=0)
                returned = {each for each in returned if each < last}


@pytest.mark.promise("access")
@pytest.mark.fault("F-572")
def test_a_list_above_the_name_of_a_series_counts_for_it(series: Series) -> None:
    series.ask(SetAcl(ns=NS, name="path:db", principal="op", acl=("user:p",), admin=True, ahead=True))
    asked = TakeNumber(ns=NS, name="path:db/migrations", principal="p", owner="a", request_key="k")
    assert isinstance(series.ask(asked), Forbidden)
    assert isinstance(series.ask(asked.replace(badges=("user:p",))), Numbered)
