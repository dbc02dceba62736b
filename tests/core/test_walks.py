"""Random walks through all commands: whatever they do, these hold after every step. The model of the other tests says
what is right of the parts that it knows; here every option meets every other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core.outcomes import Queued
from tests.build import COMPILED, tries
from tests.core import raw as raws
from tests.core.stepwise import Taken, check_step
from tests.walks import rules

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.draft import Decision
    from dibs.core.events import Event

# A torn walk loses parts of its writes: its records need not agree.
THEMES = [each for each in rules.THEMES if not each.startswith("halves")]
ALWAYS = (
    raws.owners_are_compatible,
    raws.lines_and_tickets_agree,
    raws.sessions_miss_nothing,
    raws.the_tree_agrees,
    raws.history_is_what_is_stored,
    raws.nobody_waits_in_a_circle,
)


def judge(raw: raws.Raw, decision: Decision) -> None:
    for check in ALWAYS:
        check(raw)
    outcome = decision.outcome
    if isinstance(outcome, Queued):
        assert (outcome.name, outcome.ticket) in raw.tickets, "told of a place that is not there"


def judge_ask(walk: rules.Walk, before: raws.Raw, command: Command, decision: Decision) -> None:
    """The same of an ask that nobody makes: the walk goes on as if it had not been decided."""
    records = walk.records | decision.writes
    told = len(before.events)
    history = [*before.events, *[each.replace(seq=told + more) for more, each in enumerate(decision.events, 1)]]
    after = raws.raw_of_records(records, history, walk.now_ms)
    judge(after, decision)
    check_step(Taken(before, command, decision, after, records, walk.records))


@pytest.mark.promise("excl", "audit", "tree", "deadlock", "token:rises", "queue:fifo")
@pytest.mark.parametrize("theme", THEMES)
def test_every_step_of_a_walk_leaves_what_must_hold(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if COMPILED and theme.startswith("bounds"):
        pytest.skip("a compiled bound cannot be replaced")
    for number in range(tries(12, 2_000)):
        history: list[Event] = []
        walk = rules.walk_of(f"{theme} {number}", monkeypatch)
        for at in range(rules.STEPS):
            records = dict(walk.records)
            command, decision = walk.step()
            before = raws.raw_of_records(records, history, walk.now_ms)
            history = [
                *history,
                *[each.replace(seq=len(history) + more) for more, each in enumerate(decision.events, 1)],
            ]
            after = raws.raw_of_records(walk.records, history, walk.now_ms)
            try:
                judge(after, decision)
                if walk.vouches:  # else what is over by the clock may be live
                    check_step(Taken(before, command, decision, after, walk.records, records))
                if theme.startswith("circles") and at % 10 == 9 and walk.vouches:
                    for command, decision in walk.what_if():
                        judge_ask(walk, after, command, decision)
            except AssertionError as error:
                raise AssertionError(f"walk '{theme} {number}', step {at}: {command}\n{decision.outcome}") from error
        raws.tokens_rise(history)
        raws.fifo(history)


@pytest.mark.parametrize("theme", sorted(set(rules.THEMES) - set(THEMES)))
@pytest.mark.usefixtures("unchecked")
def test_every_step_of_a_torn_walk_has_an_answer(theme: str) -> None:
    for number in range(tries(12, 2_000)):
        rules.walked(f"{theme} {number}")


def test_a_walk_repeats_to_the_last_step() -> None:
    assert rules.walked("jobs 1") == rules.walked("jobs 1")
