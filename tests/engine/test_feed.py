"""One read of the store for all who follow, also for those who come a moment later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dibs.engine.event_log import EventFilter
from dibs.engine.feed import EventFeed
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from dibs.core.events import Event


class Reader:
    """Notes what it is given."""

    def __init__(self, at: int) -> None:
        self.wanted = EventFilter(ns="default")
        self.at = at
        self.got: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    def take(self, event: Event) -> None:
        self.got.append(event.seq)
        self.at = event.seq

    def tell_gap(self, after: int, oldest: int) -> None:
        self.gaps.append((after, oldest))
        self.at = oldest - 1


@pytest.mark.promise("events:told")
@pytest.mark.fault("F-074")
def test_who_joins_behind_a_gap_that_the_others_were_told_of_reads_for_itself() -> None:
    async def scene() -> None:
        store = MemoryStore(ManualClock())
        feed = EventFeed(store, asyncio.get_running_loop())
        first, late, current = Reader(0), Reader(0), Reader(3)
        store.commit({}, {}, [event("job") for _ in range(5)])
        store.prune(keep=2, before_ms=0)
        assert feed.join(first)
        async with asyncio.timeout(WAIT_S_MAX):
            while first.at < 5:
                await asyncio.sleep(0)
        assert first.gaps == [(0, 4)]
        assert not feed.join(late)
        assert (await feed.replay(late.at, late.wanted)).oldest == 4
        assert feed.join(current)
        assert (current.got, current.gaps) == ([4, 5], [])
        feed.close()

    asyncio.run(scene())
