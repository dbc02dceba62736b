"""Closures at their bounds, and every field of what is answered, noted and written."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import events
from dibs.core.commands import Close, Open
from dibs.core.decide import decide
from dibs.core.draft import Decision, View
from dibs.core.events import Event
from dibs.core.lease_outcomes import ClosureSet, NotClosed, Opened
from dibs.core.limits import CLOSURE_MS_MAX, CLOSURES_MAX
from dibs.core.records import META_KEY, Closure, Meta
from tests.core.make import JOB, NS

NOW_MS = 1_000
OLD = Closure(ns=NS, name=JOB, at_ms=10, until_ms=NOW_MS + 1, by="old", reason="why")
CLOSE = Close(ns=NS, name=JOB, principal="op", reason="upgrade", length_ms=500)
MADE = Closure(ns=NS, name=JOB, at_ms=NOW_MS, until_ms=NOW_MS + 500, by="op", reason="upgrade")


def decided(command: Close | Open, *closures: Closure) -> Decision:
    """What is decided while these closures are in effect and no job is known."""
    view = View(NOW_MS, {META_KEY: Meta(closures=closures)})
    view.load = lambda keys: view.records.update(dict.fromkeys(keys))
    return decide(view, command)


def told(kind: str, **fields: Any) -> Event:
    return Event(**{"at_ms": NOW_MS, "kind": kind, "ns": NS, "job": JOB, **fields})


@pytest.mark.promise("closed")
@pytest.mark.parametrize("before", [(), (OLD,), (OLD.replace(name="other"),), (OLD.replace(ns="elsewhere"),)])
def test_a_closure_takes_the_place_of_the_one_of_its_name_and_no_other(before: tuple[Closure, ...]) -> None:
    found = decided(CLOSE, *before)
    others = tuple([each for each in before if (each.ns, each.name) != (NS, JOB)])
    assert found.outcome == ClosureSet(now_ms=NOW_MS, name=JOB, closure=MADE)
    assert found.writes == {META_KEY: Meta(closures=(*others, MADE))}
    assert found.events == (told(events.CLOSED, by="op", reason="upgrade", until_ms=NOW_MS + 500),)


@pytest.mark.promise("closed")
@pytest.mark.parametrize(
    ("changes", "others", "why"),
    [
        ({"until_ms": NOW_MS}, 0, "That time is over"),
        ({"until_ms": NOW_MS + 1}, 0, None),
        ({"length_ms": CLOSURE_MS_MAX}, 0, None),
        ({"length_ms": CLOSURE_MS_MAX + 1}, 0, "A job can be closed for"),
        ({}, CLOSURES_MAX - 1, None),
        ({}, CLOSURES_MAX, f"{CLOSURES_MAX} closures are in effect"),
    ],
)
def test_a_closure_has_an_end_and_there_are_only_so_many(changes: dict[str, int], others: int, why: str | None) -> None:
    over = OLD.replace(name="over", until_ms=NOW_MS)
    before = (over, *[OLD.replace(name=f"job-{number}") for number in range(others)])
    found = decided(CLOSE.replace(**changes), *before)
    if why is None:
        assert isinstance(found.outcome, ClosureSet)
        assert found.events[0] == told(events.OPENED, job="over", began_ms=10)
        return
    assert isinstance(found.outcome, NotClosed)
    assert (found.outcome.name, found.outcome.why.startswith(why)) == (JOB, True)
    assert (found.writes, found.events) == ({}, ())


@pytest.mark.promise("closed")
def test_opening_ends_the_closure_of_the_name_and_says_which_other_is_left() -> None:
    above = OLD.replace(name="issue-1/", until_ms=NOW_MS + 9)
    for before, was_closed in (((OLD, above), True), ((above,), False)):
        found = decided(Open(ns=NS, name=JOB, principal="op"), *before)
        assert found.outcome == Opened(now_ms=NOW_MS, name=JOB, was_closed=was_closed, closure=None)
        assert found.events == ((told(events.OPENED, by="op", began_ms=10),) if was_closed else ())
        assert found.writes.get(META_KEY) == (Meta(closures=(above,)) if was_closed else None)
    again = decided(Open(ns=NS, name=JOB, principal="op"), OLD.replace(name="issue-"))
    assert again.events == ()
