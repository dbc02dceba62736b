"""Kinds of events: the list of them is whole, since whoever counts or filters begins with it."""

from __future__ import annotations

import pytest

from dibs.core import events


def test_the_list_of_kinds_has_every_kind_once() -> None:
    declared = [value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)]
    assert sorted(events.KINDS) == sorted(declared)


def test_every_group_of_kinds_is_of_known_kinds() -> None:
    groups = (events.TOKEN_CHANGES, events.WEBHOOK_CHANGES, events.OWNERSHIP_ENDS, events.LOCK_CHANGES.keys())
    for group in groups:
        assert set(group) <= set(events.KINDS)


@pytest.mark.parametrize(
    ("ttl_ms", "until_ms", "ends_ms"),
    [(None, None, None), (0, None, None), (30, None, 130), (30, 120, 120), (None, 120, 120), (30, 0, 0)],
)
def test_a_hold_ends_after_its_ttl_unless_the_event_says_when(
    ttl_ms: int | None, until_ms: int | None, ends_ms: int | None
) -> None:
    event = events.Event(at_ms=100, kind=events.ACQUIRED, ttl_ms=ttl_ms, until_ms=until_ms)
    assert event.hold_ends_ms() == ends_ms
