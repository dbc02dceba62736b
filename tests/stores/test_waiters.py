"""Waiting for a store: how often it is looked at, and what a waiter is told."""

from __future__ import annotations

from dibs.stores.waiters import POLL_MS_MIN, StoreWaiter, pauses


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_a_bound() -> None:
    pause_ms, last_ms, seen = pauses(100), 0, []
    for _ in range(5):
        last_ms = pause_ms(last_ms)
        seen.append(last_ms)
    assert seen == [POLL_MS_MIN, 40, 80, 100, 100]


def test_a_waiter_knows_the_newest_event_it_heard_of() -> None:
    waiter = StoreWaiter(None)
    for heard in (5, 3):
        waiter.wake(heard)
        assert waiter.heard == 5
