"""One read of the store for all who follow, also for those who come a moment later."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreUnavailable, Unavailable
from dibs.core.limits import SWEEP_LATE_MS_MAX
from dibs.engine import feed as feed_of
from dibs.engine.event_log import EventFilter, EventPage, read_on
from dibs.engine.feed import EventFeed, in_turn
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Store, StoreProxy
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.events import Event


class Reader:
    """Notes what it is given."""

    def __init__(self, at: int, **wish: str) -> None:
        self.wanted = EventFilter(ns="default", **wish)
        self.at = at
        self.got: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    def take(self, event: Event) -> None:
        self.got.append(event.seq)
        self.at = event.seq

    def report_gap(self, after: int, oldest: int) -> None:
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


@pytest.mark.promise("events:ordered")
@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_and_goes_each_is_given_all_that_it_wants_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed >= 4:  # one word of news is enough for all pages
        monkeypatch.setattr(feed_of, "FEED_PAGE_MAX", 2)
    chance = Random(seed)
    jobs = ("a", "ab", "b", "")
    log: list[str] = []

    def wanted_of(reader: Reader, after: int) -> list[int]:
        takes = reader.wanted
        alike = [job == takes.name if takes.name is not None else job.startswith(takes.prefix) for job in log]
        return [seq for seq, job in enumerate(log, 1) if job and alike[seq - 1] and seq > after]

    async def scene() -> None:
        store = MemoryStore(ManualClock())
        begun: list[int] = []
        feed = EventFeed(store, asyncio.get_running_loop(), lambda: begun.append(len(log)))
        readers: dict[Reader, int] = {}

        async def settled() -> None:
            feed.wake()
            async with asyncio.timeout(WAIT_S_MAX):
                while readers and feed.at < len(log):
                    await asyncio.sleep(0)

        for _ in range(40):
            step = chance.randrange(5)
            if step < 2:
                new = [chance.choice(jobs) for _ in range(chance.randrange(1, 4))]
                log.extend(new)
                store.commit({}, {}, [event(job) for job in new])
            elif step == 2:
                at = await feed.position_now() if chance.random() < 0.5 else chance.randrange(len(log) + 1)
                reader = Reader(at, **chance.choice(({}, {"name": "a"}, {"prefix": "a"})))
                was_empty, joined = len(feed) == 0, feed.join(reader)
                assert joined or not was_empty
                if joined:
                    readers[reader] = at
                else:
                    assert at < feed.at
                    pages = [await feed.replay(at, reader.wanted)]
                    while not pages[-1].is_last:
                        pages.append(await feed.replay(pages[-1].upto, reader.wanted))
                    assert [each.seq for page in pages for each in page.events] == wanted_of(reader, at)
            elif step == 3 and readers:
                await settled()
                reader = chance.choice(list(readers))
                feed.leave(reader)
                feed.leave(reader)
                after = readers.pop(reader)
                assert (reader.at, reader not in feed) == (feed.at, True)
                assert reader.got == wanted_of(reader, after)
            else:
                await settled()
            assert len(feed) == len(readers)
        await settled()
        for reader, after in readers.items():
            assert (reader.got, reader.gaps) == (wanted_of(reader, after), [])
            assert feed.position_of(reader) == len(log)
        assert await feed.position_now() == (feed.at if readers else len(log))
        assert await feed.position_ago(0) == len(log)
        assert await feed.position_ago(10**13) == 0
        feed.close()
        assert begun

    asyncio.run(scene())


@pytest.mark.fault("F-274")
@pytest.mark.promise("events:told")
@pytest.mark.parametrize("more", [0, 1, 3])
def test_who_follows_a_store_that_a_copy_replaces_is_told_of_a_gap_although_its_numbers_go_on(more: int) -> None:
    async def scene() -> None:
        one, other = MemoryStore(ManualClock()), MemoryStore(ManualClock())
        for store in (one, other):
            store.commit({}, {}, [event("kept")])
        now = StoreProxy(one)
        feed = EventFeed(now, asyncio.get_running_loop())
        reader = Reader(0)
        one.commit({}, {}, [event("lost") for _ in range(2)])
        feed.join(reader)
        async with asyncio.timeout(WAIT_S_MAX):
            while reader.at < 3:
                await asyncio.sleep(0)
            now.inner = other
            other.commit({}, {}, [event("other", at_ms=2) for _ in range(2 + more)])
            feed.wake()
            while not reader.gaps:
                await asyncio.sleep(0)
            while feed.at < 3 + more:
                await asyncio.sleep(0)
        assert reader.gaps == [(3, 3)]
        assert reader.got == [1, 2, 3, *range(3, 4 + more)]
        feed.close()

    asyncio.run(scene())


class Held(MemoryStore):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.asked = threading.Event()
        self.go_on = threading.Event()
        self.answered = threading.Event()

    def events(self, *args: Any, **named: Any) -> list[Event]:
        self.asked.set()
        assert self.go_on.wait(WAIT_S_MAX)
        try:
            return super().events(*args, **named)
        finally:
            self.answered.set()


def test_what_is_read_when_a_feed_is_closed_is_given_to_nobody() -> None:
    async def scene() -> None:
        store = Held()
        store.commit({}, {}, [event("job")])
        feed, reader = EventFeed(store, asyncio.get_running_loop()), Reader(0)
        assert feed.join(reader)
        assert await asyncio.to_thread(store.asked.wait, WAIT_S_MAX)
        feed.close()
        store.go_on.set()
        assert await asyncio.to_thread(store.answered.wait, WAIT_S_MAX)
        await asyncio.sleep(0.05)
        assert reader.got == []

    asyncio.run(scene())


class Failing(MemoryStore):
    failures = 0

    def events(self, *args: Any, **named: Any) -> list[Event]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        return super().events(*args, **named)


def test_who_follows_a_store_that_fails_is_told_of_it_once_and_gets_everything_afterwards(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, reader, pauses = Failing(ManualClock()), Reader(0), list[float]()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        feed = EventFeed(store, loop)

        def soon(seconds: float, call: Callable[[], None]) -> None:
            pauses.append(seconds)
            loop.call_soon(call)

        monkeypatch.setattr(loop, "call_later", soon)
        store.commit({}, {}, [event("job") for _ in range(3)])
        for failures in (3, 2):
            store.failures = failures
            if reader in feed:
                feed.wake()
            else:
                feed.join(reader)
            async with asyncio.timeout(WAIT_S_MAX):
                while reader.at < store.newest_seq():
                    await asyncio.sleep(0)
            store.commit({}, {}, [event("job")])
        feed.close()

    asyncio.run(scene())
    assert reader.got == [1, 2, 3, 4]
    assert pauses == [SWEEP_LATE_MS_MAX / 1000] * 5
    assert len([each for each in caplog.records if "cannot be read" in each.message]) == 2


@pytest.mark.fault("F-475")
def test_while_the_store_hangs_readers_are_refused_instead_of_waiting_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_of, "QUEUE_MS_MAX", 50)
    answers, threads = threading.Event(), ThreadPoolExecutor(1)

    def read() -> str:
        assert answers.wait(WAIT_S_MAX)
        return "read"

    async def ask() -> None:
        begun = asyncio.ensure_future(in_turn(threads, read))
        later = [asyncio.ensure_future(in_turn(threads, read)) for _ in range(5)]
        gone = asyncio.ensure_future(in_turn(threads, read))
        await asyncio.sleep(0)
        gone.cancel()
        for refused in await asyncio.gather(*later, return_exceptions=True):
            assert isinstance(refused, Unavailable)
            assert "Nothing was changed" in refused.details
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not begun.done(), "what has begun may still be answered"
        answers.set()
        assert await begun == "read"
        assert await in_turn(threads, read) == "read"

    try:
        asyncio.run(ask())
    finally:
        answers.set()
        threads.shutdown()


def test_who_leaves_while_it_is_given_what_others_have_already_gets_no_more() -> None:
    async def scene() -> None:
        store = MemoryStore(ManualClock())
        feed = EventFeed(store, asyncio.get_running_loop())
        first, late = Reader(0), Reader(0)
        take = late.take

        def take_and_leave(event: Event) -> None:
            take(event)
            feed.leave(late)

        late.take = take_and_leave  # type: ignore[method-assign]
        store.commit({}, {}, [event("job") for _ in range(3)])
        assert feed.join(first)
        async with asyncio.timeout(WAIT_S_MAX):
            while first.at < 3:
                await asyncio.sleep(0)
        assert feed.join(late)
        assert (first.got, late.got) == ([1, 2, 3], [1])
        assert late not in feed
        feed.close()

    asyncio.run(scene())


def test_a_wake_reads_once_for_those_who_follow_and_never_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    mine = MemoryStore(ManualClock())

    def counted(store: Store, after: int, limit: int, known: Event | None) -> EventPage:
        if store is mine:  # the feed of an earlier test may still read
            reads.append(after)
        return read_on(store, after, limit, known)

    monkeypatch.setattr(feed_of, "read_on", counted)

    async def scene() -> None:
        feed = EventFeed(mine, asyncio.get_running_loop())
        feed.wake()
        assert not feed._is_reading, "nobody follows"
        reader = Reader(0)
        mine.commit({}, {}, [event("job")])
        assert feed.join(reader)
        for _ in range(5):
            feed.wake()
        async with asyncio.timeout(WAIT_S_MAX):
            while reader.at < 1 or feed._is_reading:
                await asyncio.sleep(0)
        assert reads == [0, 1], "one read under way, and one for all who called meanwhile"
        feed.close()
        feed.wake()
        assert not feed._is_reading, "it is closed"

    asyncio.run(scene())
