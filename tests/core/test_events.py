"""Kinds of events: the list of them is whole, since whoever counts or filters begins with it."""

from __future__ import annotations

from dibs.core import events


def test_the_list_of_kinds_has_every_kind_once() -> None:
    declared = [value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)]
    assert sorted(events.KINDS) == sorted(declared)


def test_every_group_of_kinds_is_of_known_kinds() -> None:
    groups = (events.TOKEN_CHANGES, events.WEBHOOK_CHANGES, events.OWNERSHIP_ENDS, events.LOCK_CHANGES.keys())
    for group in groups:
        assert set(group) <= set(events.KINDS)
