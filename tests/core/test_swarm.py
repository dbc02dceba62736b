"""Walks with a random half of the features (`tests/walks/swarm.py`): each step is judged by the records before and
after it (`stepwise.py`), and by what must hold at every moment (`raw.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core.claims import acquire, sessions
from dibs.core.waiting import tickets
from tests.build import COMPILED, tries
from tests.core import raw as raws
from tests.core.stepwise import Taken, check_step
from tests.rules import rewrite
from tests.walks import swarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.events import Event

ALWAYS = (
    raws.owners_are_compatible,
    raws.lines_and_tickets_agree,
    raws.sessions_miss_nothing,
    raws.the_tree_agrees,
    raws.nobody_waits_in_a_circle,
)
PARTS = 10


def judge_walk(name: str) -> swarm.Swarm:
    walk = swarm.Swarm(name)
    history: list[Event] = []
    for at in range(swarm.STEPS):
        records = dict(walk.records)
        made = walk.step()
        before = raws.raw_of_records(records, history, walk.now_ms)
        events = [event.replace(seq=len(history) + more) for more, event in enumerate(made.decision.events, 1)]
        history = [*history, *events]
        after = raws.raw_of_records(walk.records, history, walk.now_ms)
        try:
            for check in ALWAYS:
                check(after)
            check_step(Taken(before, made.command, made.decision, after, walk.records, records, frozenset(walk.called)))
        except AssertionError as error:
            said = f"walk {name!r}, step {at}: {made.command}\n{made.decision.outcome}\n{made.decision.events}"
            raise AssertionError(f"{error}\n{said}") from error
    raws.history_is_what_is_stored(raws.raw_of_records(walk.records, history, walk.now_ms))
    raws.tokens_rise(history)
    return walk


@pytest.mark.promise(
    "excl", "audit", "tree", "deadlock", "token:rises", "queue:fifo", "max-hold", "slot:number", "quota"
)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_step_of_a_swarm_leaves_what_must_hold(part: int) -> None:
    for number in range(part, tries(len(swarm.WALKS), 20_000), PARTS):
        judge_walk(f"swarm {number}")


@pytest.mark.full
def test_every_two_features_meet_in_a_walk() -> None:
    rare = {pair: count for pair, count in swarm.pairs_met(swarm.WALKS).items() if count < 3}
    assert not rare, f"These met less than three times:\n{swarm.table(rare)}"


def judge_all() -> None:
    for name in ("swarm 493", "swarm 787", *swarm.WALKS):  # the first two find what is rare
        judge_walk(name)


# Faults that are on no record in this form: the walks of one run must find each. `tests/put_back` has the others.


def knows_every_ask_by_its_session(patch: pytest.MonkeyPatch) -> None:
    """An ask with a key has the place of another one without."""
    by_session = (" and ask.request_key is None and ticket.", " and ticket.")
    rewrite(patch, tickets, "recognised", by_session, ("if ask.request_key is None:", "if True:"))


def moves_the_ceiling(patch: pytest.MonkeyPatch) -> None:
    """A repeat begins the time anew that its lease may last at most."""
    old = "kept = kept.replace(renewed_ms=draft.now_ms, ttl_ms=ttl_ms, expires_ms=expires_ms)"
    new = old.replace("kept.replace(", "kept.replace(ends_ms=mine.ends_ms and draft.now_ms + ask.max_hold_ms, ")
    rewrite(patch, acquire, "grant_again", (old, new))


def serves_nobody_at_the_end_of_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "advance", lambda *_: None)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "asks known by their session": knows_every_ask_by_its_session,
    "moved ceiling": moves_the_ceiling,
    "nobody served": serves_nobody_at_the_end_of_a_session,
}


@pytest.mark.full
@pytest.mark.skipif(COMPILED, reason="a compiled rule cannot be replaced")
@pytest.mark.parametrize("planted", PLANTED)
def test_the_walks_find_a_fault_that_is_put_back(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[planted](monkeypatch)
    with pytest.raises(AssertionError):
        judge_all()
