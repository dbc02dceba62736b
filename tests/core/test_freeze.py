"""Freezing a store and going on, one rule at a time; the floor of its fencing tokens."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import Freeze, Inspect, KeepTickets, RaiseFloor, Sweep, Thaw
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.records import META_KEY, FreezeMark, LockRecord, Meta, SessionRecord, session_key
from tests.core.make import KEY, acquire, ending

FROZEN = Meta(frozen=FreezeMark(at_ms=10, id="one", incomplete=True, source="file", from_ms=20), token_floor=7)


def decided(now_ms: int, meta: Meta | None, command: Any, **others: Any) -> Any:
    return decide(View(now_ms, {META_KEY: meta, KEY: None, **others}), command)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (KeepTickets(tickets=(("default", "job", 1),)), outcomes.TicketsKept),
        (Sweep(key=KEY), lease_outcomes.Swept),
        (acquire(), lease_outcomes.Frozen),
        (Inspect(ns="default", name="job"), lease_outcomes.Frozen),
    ],
)
def test_a_frozen_store_refuses_callers_and_keeps_its_servers_calm(command: Any, answer: type) -> None:
    decision = decided(100, FROZEN, command)
    assert type(decision.outcome).__name__ == answer.__name__
    assert not decision.writes


@pytest.mark.parametrize(
    ("source", "from_ms"), [("file", 20), ("another", 100)], ids=["the same import", "another import"]
)
def test_only_an_import_that_goes_on_keeps_the_moment_of_its_first_try(source: str, from_ms: int) -> None:
    noted = decided(100, FROZEN, Freeze(id="two", over="one", incomplete=True, source=source)).outcome
    assert (noted.mark.from_ms, noted.mark.at_ms, noted.mark.id) == (from_ms, 10, "two")


def test_thawing_what_is_not_frozen_writes_nothing() -> None:
    assert not decided(100, Meta(token_floor=7), Thaw(id="one", floor=7)).writes


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize(("floor", "raised"), [(6, False), (7, False), (8, True)])
def test_the_floor_of_tokens_only_rises(floor: int, raised: bool) -> None:
    decision = decided(100, Meta(token_floor=7), RaiseFloor(floor=floor))
    assert decision.outcome.floor == max(floor, 7)
    assert decision.writes == ({META_KEY: Meta(token_floor=8)} if raised else {})


@pytest.mark.parametrize(("own", "over", "is_taken"), [("one", None, True), ("two", "one", True), ("two", "x", False)])
def test_a_mark_is_replaced_by_who_set_it_or_knows_of_it(own: str, over: str | None, is_taken: bool) -> None:
    decision = decided(100, FROZEN, Freeze(id=own, over=over))
    assert isinstance(decision.outcome, lease_outcomes.FreezeNoted if is_taken else lease_outcomes.Frozen)
    assert decision.outcome.mark.id == (own if is_taken else "one")
    assert bool(decision.writes) is is_taken


@pytest.mark.parametrize("id_", ["one", None])
def test_a_repeated_thaw_notes_no_second_outage(id_: str | None) -> None:
    complete = Meta(frozen=FreezeMark(at_ms=10, id="one", from_ms=20))
    first = decided(100, complete, Thaw(id="one", since_ms=30)).writes[META_KEY]
    assert [(each.began_ms, each.ended_ms) for each in first.outages] == [(30, 100)]
    again = decided(200, first, Thaw(id=id_, since_ms=30)).writes
    assert bool(again) is (id_ is None)  # without an id it is somebody who knows of an outage


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize(("token", "floor"), [(6, None), (7, None), (8, 8)])
def test_a_job_that_is_forgotten_raises_the_floor_to_its_own_token_and_no_more(token: int, floor: int | None) -> None:
    idle = LockRecord(ns="default", name="issue-1", token=token, endings=(ending(at_ms=1),))
    writes = decided(10**12, Meta(token_floor=7), Sweep(key=KEY), **{KEY: idle}).writes
    assert writes == ({KEY: None} | ({META_KEY: Meta(token_floor=floor)} if floor is not None else {}))


def test_an_ended_session_with_nothing_left_is_finished() -> None:
    session = SessionRecord(
        id="s", ns="default", principal="p", owner="o", ttl_ms=9, since_ms=0, renewed_ms=0, expires_ms=9, ended_ms=90
    )
    swept = decided(100, None, Sweep(key=session_key("s")), **{session_key("s"): session})
    assert (swept.outcome.unfinished, swept.writes) == (False, {})
