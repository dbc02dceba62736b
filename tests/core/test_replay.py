from __future__ import annotations

from typing import Any

import pytest

from dibs.core import events
from dibs.core.events import Event
from tests.models.replay import ReplayedHold, apply, replay

JOB = ("default", "issue-1")
CLAIM = ReplayedHold(owner="a1", principal="team", token=1, mode="exclusive", attempt=1)


def event(kind: str, **more: Any) -> Event:
    made = Event(at_ms=0, kind=kind, ns="default", job="issue-1", owner="a1", principal="team", token=1)
    return made.replace(**more)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("history", "live"),
    [
        ([], {}),
        ([event(events.ACQUIRED)], {JOB: {1: CLAIM}}),
        ([event(events.ACQUIRED, attempt=3)], {JOB: {1: CLAIM._replace(attempt=3)}}),
        ([event(events.ACQUIRED), event(events.RELEASED)], {}),
        ([event(events.ACQUIRED), event(events.EXPIRED)], {}),
        ([event(events.ACQUIRED), event(events.BROKEN)], {}),
        (
            [event(events.ACQUIRED, metadata="m"), event(events.PROGRESS, metadata="m", checkpoint="half")],
            {JOB: {1: CLAIM._replace(metadata="m", checkpoint="half")}},
        ),
        (
            [event(events.ACQUIRED), event(events.EXPIRED), event(events.ACQUIRED, owner="a2", token=2)],
            {JOB: {2: CLAIM._replace(owner="a2", token=2)}},
        ),
        (
            [
                event(events.ACQUIRED, mode="shared"),
                event(events.ACQUIRED, mode="shared", token=2),
                event(events.RELEASED),
            ],
            {JOB: {2: CLAIM._replace(mode="shared", token=2)}},
        ),
        (
            [event(events.ACQUIRED), event(events.ACQUIRED, ns="other"), event(events.BROKEN)],
            {("other", "issue-1"): {1: CLAIM}},
        ),
        ([event(events.ACQUIRED), event(events.RELEASED), event(events.FORGOTTEN)], {}),
        ([event(events.ACQUIRED), Event(at_ms=0, kind=events.OUTAGE, began_ms=0)], {JOB: {1: CLAIM}}),
    ],
)
def test_history_played_from_the_start_gives_who_owns_what(
    history: list[Event], live: dict[tuple[str, str], dict[int, ReplayedHold]]
) -> None:
    assert replay(history) == live


def test_an_end_or_progress_of_what_is_not_known_is_passed_over() -> None:
    """A tally may have begun in the middle."""
    assert replay([event(events.RELEASED), event(events.PROGRESS, checkpoint="x"), event(events.FORGOTTEN)]) == {}


def test_events_can_be_added_one_at_a_time() -> None:
    live: dict[tuple[str, str], dict[int, ReplayedHold]] = {}
    for each in (event(events.ACQUIRED), event(events.ACQUIRED, job="issue-2"), event(events.RELEASED)):
        apply(live, each)
    assert live == {("default", "issue-2"): {1: CLAIM}}
