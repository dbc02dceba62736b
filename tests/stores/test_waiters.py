"""Waiting for a store: how often it is looked at, and what a waiter is told."""

from __future__ import annotations

import pytest

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput
from dibs.stores.memory import open_url
from dibs.stores.port import Opening
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


def test_the_time_of_a_store_in_memory_begins_with_the_clock_on_the_wall() -> None:
    store = open_url("memory://", Opening())
    assert abs(store.read(()).now_ms - wall_ms()) < 60_000
    with pytest.raises(InvalidInput):
        open_url("memory://elsewhere", Opening())
