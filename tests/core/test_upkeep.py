"""What servers and operators do to the whole store, one rule at a time: freezing, the floor, pulses, counting."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import Beat, CountUsage, Freeze, KeepTickets, RaiseFloor, Sweep, Thaw
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.limits import PULSE_KEPT_MS
from dibs.core.records import META_KEY, USAGE_PREFIX, FreezeMark, Meta, Pulse, Ticket, pulse_key, ticket_key
from dibs.core.service.credentials import Usage
from dibs.core.upkeep.due import accounted_ms
from tests.core.make import KEY, acquire

FROZEN = Meta(frozen=FreezeMark(at_ms=10, id="one", incomplete=True, source="file", from_ms=20), token_floor=7)


def decided(now_ms: int, meta: Meta | None, command: Any, **others: Any) -> Any:
    return decide(View(now_ms, {META_KEY: meta, KEY: None, **others}), command)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (KeepTickets(tickets=(("default", "job", 1),)), outcomes.TicketsKept),
        (Sweep(key=KEY), lease_outcomes.Swept),
        (acquire(), lease_outcomes.Frozen),
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


@pytest.mark.parametrize(("age_ms", "gone"), [(PULSE_KEPT_MS - 1, False), (PULSE_KEPT_MS, True)])
def test_a_beat_forgets_only_pulses_that_nobody_needs_any_more(age_ms: int, gone: bool) -> None:
    now_ms = 10 * PULSE_KEPT_MS
    old = Pulse(server="old", at_ms=now_ms - age_ms)
    others = {pulse_key("old"): old, pulse_key("s"): None}
    decision = decided(now_ms, None, Beat(server="s", gone=("old",)), **others)
    assert (pulse_key("old") in decision.writes) == gone


def test_a_beat_after_a_gap_writes_nothing_while_the_store_is_frozen() -> None:
    now_ms = 10 * PULSE_KEPT_MS
    others = {pulse_key("old"): Pulse(server="old", at_ms=1), pulse_key("s"): None}
    decision = decided(now_ms, FROZEN, Beat(server="s", gone=("old",), alive_since_ms=now_ms), **others)
    assert decision.outcome.frozen
    assert not decision.writes


def test_time_is_accounted_for_up_to_the_newest_pulse_or_what_it_leaves_in_doubt() -> None:
    assert accounted_ms([]) is None
    assert accounted_ms([Pulse(server="a", at_ms=10), Pulse(server="b", at_ms=30, doubt_ms=20)]) == 20


@pytest.mark.promise("quota")
@pytest.mark.parametrize(("principal", "counted"), [("p", 1), ("q", 0)])
def test_a_place_in_line_is_counted_for_its_own_principal(principal: str, counted: int) -> None:
    key, usage = ticket_key("default", "job", 1), USAGE_PREFIX + "/p"
    terms = {"ns": "default", "owner": "o", "ttl_ms": 1_000, "lease_id": "l"}
    ticket = Ticket(
        name="job",
        number=1,
        principal=principal,
        since_ms=0,
        renewed_ms=0,
        expires_ms=10,
        **terms,  # type: ignore[arg-type]  # texts and one number
    )
    decision = decided(5, None, CountUsage(key=key, payer="/p"), **{key: ticket, usage: Usage(count=3)})
    assert (usage in decision.writes) == bool(counted)
    assert (key in decision.writes) == bool(counted)


@pytest.mark.parametrize(("own", "over", "is_taken"), [("one", None, True), ("two", "one", True), ("two", "x", False)])
def test_a_mark_is_replaced_by_who_set_it_or_knows_of_it(own: str, over: str | None, is_taken: bool) -> None:
    decision = decided(100, FROZEN, Freeze(id=own, over=over))
    assert isinstance(decision.outcome, lease_outcomes.FreezeNoted if is_taken else lease_outcomes.Frozen)
    assert decision.outcome.mark.id == (own if is_taken else "one")
    assert bool(decision.writes) is is_taken
