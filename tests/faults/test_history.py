"""The checker of histories finds every violation: a checker that reports nothing would pass every history."""

from __future__ import annotations

import pytest

from dibs.core.events import Event
from tests.models.history import ObservedHold, broken_promises, overlaps


def history(*lines: str) -> list[Event]:
    """Lines of "TIME KIND OWNER TOKEN", each claim for 1000 ms."""
    events = []
    for seq, line in enumerate(lines, start=1):
        at, kind, owner, token = line.split()
        ttl_ms = 1000 if kind == "acquired" else None
        events.append(
            Event(
                at_ms=int(at),
                kind=kind,
                ns="n",
                job="j",
                owner=owner,
                token=int(token),
                seq=seq,
                ttl_ms=ttl_ms,
            )
        )
    return events


def test_a_good_history_is_left_alone() -> None:
    good = history("1 acquired a 1", "5 released a 1", "5 acquired b 2", "1005 expired b 2", "1005 acquired c 5")
    assert broken_promises(good) == []


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (("1 acquired a 1", "2 acquired b 2"), "while live: ['a']"),
        (("1 acquired a 1", "2 released a 1", "3 acquired b 1"), "does not rise above token 1"),
        (("1 acquired a 1", "1000 expired a 1"), "is early: claimed at 1 for 1000 ms"),
        (("1 acquired a 1", "2 released a 2"), "ends what was not live"),
        (("5 acquired a 1", "4 released a 1"), "is earlier than the event"),
    ],
)
def test_a_broken_promise_is_found(lines: tuple[str, ...], what: str) -> None:
    assert any(what in wrong for wrong in broken_promises(history(*lines)))


def test_events_out_of_order_are_found() -> None:
    assert broken_promises(list(reversed(history("1 acquired a 1", "1 released a 1"))))


def test_clients_that_were_sure_at_the_same_time_are_found() -> None:
    apart = [
        ObservedHold("j", "a", 1, 0, 10),
        ObservedHold("j", "b", 2, 10, 20),
        ObservedHold("other", "c", 1, 5, 15),
    ]
    assert overlaps(apart) == []
    assert overlaps([*apart, ObservedHold("j", "d", 3, 19, 30)])
    assert overlaps([*apart, ObservedHold("j", "d", 2, 25, 30)]), "a token that does not rise"
