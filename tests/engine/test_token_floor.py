"""The floor under all fencing tokens: numbers that another store or lock service gave out do not come again."""

from __future__ import annotations

import pytest

from dibs.base.clock import wall_ms
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.engine.token_floor import has_floor, raise_floor
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.core.make import acquire

pytestmark = pytest.mark.promise("token:rises")


def token(store: MemoryStore, job: str) -> int:
    granted = Coordinator(store).one(acquire(name=job, fresh_lease_id=f"lease-{job}"))
    assert isinstance(granted, Granted)
    return granted.lease.token


def test_the_floor_is_raised_for_every_job_and_never_lowered() -> None:
    store = MemoryStore(ManualClock())
    assert token(store, "before") == 1
    assert not has_floor(store, 1)
    assert raise_floor(store, 5000) == 5000
    assert has_floor(store, 5000)
    assert not has_floor(store, 5001)
    assert token(store, "after") == 5001
    assert raise_floor(store, 10) == 5000
    assert token(store, "last") == 5001


def test_numbers_of_events_go_on_from_the_clock() -> None:
    """An old copy that was put back by other means would give out numbers again that others have seen."""
    store = MemoryStore(ManualClock())
    token(store, "before")
    began_us = wall_ms() * 1_000
    raise_floor(store, 10)
    token(store, "after")
    assert store.newest_seq() > began_us


def test_a_server_that_is_killed_in_between_does_both_at_its_next_start() -> None:
    class Dying(MemoryStore):
        def number_from(self, seq: int) -> None:
            super().number_from(seq)
            raise KeyboardInterrupt

    store = Dying(ManualClock())
    with pytest.raises(KeyboardInterrupt):
        raise_floor(store, 10)
    assert not has_floor(store, 10)
