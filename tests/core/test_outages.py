"""Pulses: what a beat writes, and up to when time is accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import Beat
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.limits import PULSE_KEPT_MS
from dibs.core.records import META_KEY, FreezeMark, Meta, Pulse, pulse_key
from dibs.core.upkeep.outages import accounted_ms


def decided(now_ms: int, meta: Meta | None, command: Any, **others: Any) -> Any:
    return decide(View(now_ms, {META_KEY: meta, **others}), command)


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
    frozen = Meta(frozen=FreezeMark(at_ms=10, id="one"))
    decision = decided(now_ms, frozen, Beat(server="s", gone=("old",), alive_since_ms=now_ms), **others)
    assert decision.outcome.frozen
    assert not decision.writes


def test_time_is_accounted_for_up_to_the_newest_pulse_or_what_it_leaves_in_doubt() -> None:
    assert accounted_ms([]) is None
    assert accounted_ms([Pulse(server="a", at_ms=10), Pulse(server="b", at_ms=30, doubt_ms=20)]) == 20
