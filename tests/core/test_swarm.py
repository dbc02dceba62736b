"""Walks with a random half of the features (`tests/walks/swarm.py`): each step is judged by the records before and
after it (`stepwise.py`), and by what must hold at every moment (`raw.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core import claims, leases, queue, several, tickets
from tests.build import COMPILED, tries
from tests.core import raw as raws
from tests.core.stepwise import Taken, check_step
from tests.faults.brought_back import rewrite
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
            check_step(Taken(before, made.command, made.decision, after, walk.records, frozenset(walk.called)))
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


def test_every_two_features_meet_in_a_walk() -> None:
    rare = {pair: count for pair, count in swarm.pairs_met(swarm.WALKS).items() if count < 3}
    assert not rare, f"These met less than three times:\n{swarm.table(rare)}"


def judge_all() -> None:
    for name in ("swarm 493", "swarm 787", *swarm.WALKS):  # the first two find what is rare
        judge_walk(name)


# Faults that were found where two features meet, each as the rules had it: the walks of one run must find it.


def drops_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """A place goes for a job that its session has and that is done, parked or smaller."""
    rewrite(patch, queue, "_pointless", ("tickets.needed_parts(draft, ticket)", "tickets.parts_of(ticket)"))


def drops_the_place_of_another_ask(patch: pytest.MonkeyPatch) -> None:
    """A refused ask takes away the place at which another one waits."""
    patch.setattr(claims, "ABOUT_THE_ASK", ())
    patch.setattr(several, "ABOUT_THE_ASK", ())


def knows_every_ask_by_its_session(patch: pytest.MonkeyPatch) -> None:
    """An ask with a key has the place of another one without."""
    by_session = (" and ask.request_key is None and ticket.", " and ticket.")
    rewrite(patch, tickets, "recognised", by_session, ("if ask.request_key is None:", "if True:"))


def shares_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A session that shares a job waits for itself, or closes a circle."""
    patch.setattr(leases, "note_loss", lambda *_: None)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "F-272": drops_what_it_has,
    "F-350": drops_the_place_of_another_ask,
    "F-350, by session": knows_every_ask_by_its_session,
    "F-351": shares_without_a_look,
}


@pytest.mark.skipif(COMPILED, reason="a compiled rule cannot be replaced")
@pytest.mark.parametrize("planted", PLANTED)
def test_the_walks_find_a_fault_that_is_put_back(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[planted](monkeypatch)
    with pytest.raises(AssertionError):
        judge_all()
