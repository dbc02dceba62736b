"""The store's events, read once for all who follow them at this server.

Everything here runs on the event loop's thread, except the reads. A follower first reads what it missed (`replay`),
then joins. From then on one read serves all followers: the engine calls `wake` after a commit of this server, and after
news of others. Order and completeness come from the store alone: the feed asks for what follows its position.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from dibs.base.errors import Unavailable
from dibs.base.logger import log
from dibs.core.durations import format_duration
from dibs.core.events import Event
from dibs.core.limits import FEED_PAGE_MAX, OVERLOAD_RETRY_MS, QUEUE_MS_MAX, SWEEP_LATE_MS_MAX, WATCH_MS
from dibs.engine.event_log import EventFilter, EventPage, position_at, read_on, read_page
from dibs.stores.port import Store

T = TypeVar("T")


async def in_turn(threads: ThreadPoolExecutor, read: Callable[[], T]) -> T:
    """Return what `read` returns, called on one of a few threads. While the store does not answer, all of them are
    taken. A caller that has waited for a thread for QUEUE_MS_MAX is refused, and nothing was read or changed."""
    waiting, is_late = threads.submit(read), False

    def refuse() -> None:
        nonlocal is_late
        is_late = waiting.cancel()  # not if it has begun

    timer = asyncio.get_running_loop().call_later(QUEUE_MS_MAX / 1000, refuse)
    try:
        return await asyncio.wrap_future(waiting)
    except asyncio.CancelledError:
        if not is_late:
            raise
        says = f"Others have waited for the server's store for {format_duration(QUEUE_MS_MAX)}. Nothing was changed."
        raise Unavailable(f"{says} Try again later.", retry_after_ms=OVERLOAD_RETRY_MS) from None
    finally:
        timer.cancel()


class Follower(Protocol):
    wanted: EventFilter
    at: int  # the position up to which it has everything

    def take(self, event: Event) -> None:
        """A wanted event that follows its position."""

    def report_gap(self, after: int, oldest: int) -> None:
        """Events between were pruned, and may have been wanted."""


# Reads news of other servers at once, on a thread of its own, while callers wait here.
#
# Most stores can report news. Waiting for it blocks, and no other thread may be blocked; so this one waits, and reads
# what there is. The sweeper's regular looks continue as well, so a lost message costs only a moment. A store that can
# only be polled (`watch` "polling") is left to them.


class StoreWatcher:
    """`known_seq` returns the last event known here, `is_wanted` whether anybody waits. `read` reads what follows."""

    def __init__(
        self, store: Store, known_seq: Callable[[], int], is_wanted: Callable[[], bool], read: Callable[[], None]
    ) -> None:
        self._store = store
        self._known_seq = known_seq
        self._is_wanted = is_wanted
        self._read = read
        self._wake = threading.Event()
        self.wake = self._wake.set  # somebody begins to wait
        self._stop = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="dibs-watcher", daemon=True)

    def start(self) -> None:
        if self._store.capabilities.watch != "polling":
            self._thread.start()

    def stop(self) -> None:
        """The thread may still sleep in the store for a moment. Nobody waits for it."""
        self._stop.set()
        self._wake.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(WATCH_MS / 1000)
            self._wake.clear()
            while self._is_wanted() and not self._stop.is_set():
                self.watch()

    def watch(self) -> None:
        known_seq = self._known_seq()
        try:
            news = self._store.watch(known_seq, WATCH_MS)
            if news and self._known_seq() == known_seq and not self._stop.is_set():
                self._read()
                if self._known_seq() == known_seq:
                    self._stop.wait(SWEEP_LATE_MS_MAX / 1000)  # there was nothing: the store would say so again at once
        except Exception as error:
            if not self._failed and not self._stop.is_set():
                log.warning("the store does not report news, so it is polled instead: %s", error)
            self._failed = True
            self._stop.wait(SWEEP_LATE_MS_MAX / 1000)
            return
        self._failed = False


RECENT_PAGES = 8


class EventFeed:
    """For one event loop. `on_first` is called when the first follower joins: from then on the store is watched."""

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, on_first: Callable[[], object] = lambda: None
    ) -> None:
        self._store = store
        self._loop = loop
        self._on_first = on_first
        self._followers: dict[Follower, None] = {}
        # By job, and by namespace: an event must not be compared with the wishes of all.
        self._groups: dict[tuple[str, str | None], dict[Follower, None]] = {}
        self.at = 0  # the position that all followers have reached
        self._known: Event | None = None  # the event that was read last
        # The last pages, with the positions before them, for those who join a moment behind the others.
        self._recent: deque[tuple[int, EventPage]] = deque(maxlen=RECENT_PAGES)
        self._is_reading = False
        self._is_woken = False
        self._has_failed = False
        self._is_closed = False
        # Two threads: those who catch up on a long history must not delay those who are up to date.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="dibs-feed")
        self._replayer = ThreadPoolExecutor(1, thread_name_prefix="dibs-replay")

    def __len__(self) -> int:
        return len(self._followers)

    def __contains__(self, follower: Follower) -> bool:
        return follower in self._followers

    def position_of(self, follower: Follower) -> int:
        return max(follower.at, self.at) if follower in self._followers else follower.at

    async def replay(self, after: int, wanted: EventFilter) -> EventPage:
        return await self._in_replayer(lambda: read_page(self._store, after, FEED_PAGE_MAX, wanted))

    async def position_now(self) -> int:
        if self._followers:
            return self.at
        return await self._in_replayer(self._store.newest_seq)

    async def position_ago(self, ago_ms: int) -> int:
        return await self._in_replayer(lambda: position_at(self._store, self._store.read(()).now_ms - ago_ms))

    async def _in_replayer(self, read: Callable[[], T]) -> T:
        return await in_turn(self._replayer, read)

    def join(self, follower: Follower) -> bool:
        """Follow from `follower.at` on. False if the others are far ahead of that: then replay first."""
        if not self._followers:
            self.at = follower.at
            self._recent.clear()
            self._on_first()
        elif follower.at < self.at and not (self._recent and self._recent[0][0] <= follower.at):
            return False
        self._followers[follower] = None
        key = (follower.wanted.ns, follower.wanted.name)
        self._groups.setdefault(key, {})[follower] = None
        for _, page in self._recent:
            for event in page.events:
                if follower in self and event.seq > follower.at and follower.wanted.takes(event):
                    follower.take(event)
        self.wake()
        return True

    def leave(self, follower: Follower) -> None:
        if follower not in self._followers:
            return
        follower.at = self.position_of(follower)
        del self._followers[follower]
        key = (follower.wanted.ns, follower.wanted.name)
        del self._groups[key][follower]
        if not self._groups[key]:
            del self._groups[key]

    def wake(self) -> None:
        self._is_woken = True
        if self._followers and not self._is_reading and not self._is_closed:
            self._is_reading, self._is_woken = True, False
            after, known = self.at, self._known
            reading = self._loop.run_in_executor(
                self._reader, lambda: read_on(self._store, after, FEED_PAGE_MAX, known)
            )
            reading.add_done_callback(lambda done: self._read(after, done))

    def close(self) -> None:
        self._is_closed = True
        for executor in (self._reader, self._replayer):
            executor.shutdown(wait=False, cancel_futures=True)

    def _read(self, after: int, reading: asyncio.Future[EventPage]) -> None:
        self._is_reading = False
        if reading.cancelled() or self._is_closed:
            return
        error = reading.exception()
        if error is not None:
            if not self._has_failed:
                log.warning("events cannot be read, followers wait: %s", error)
            self._has_failed = True
            self._loop.call_later(SWEEP_LATE_MS_MAX / 1000, self.wake)
            return
        self._has_failed = False
        page = reading.result()
        is_behind = self._is_woken or not page.is_last
        if after == self.at:
            self._hand_out(page)
        else:  # the readers of this page have left, and others have come
            is_behind = True
        if is_behind:
            self.wake()

    def _hand_out(self, page: EventPage) -> None:
        before = self.at
        if page.oldest is not None:
            self._recent.clear()  # who joins behind the gap must learn of it, too, and reads for itself
            before = page.oldest - 1
            is_reset = page.oldest <= self.at  # the store was replaced by a copy
            for follower in list(self._followers):
                after = self.position_of(follower)
                if is_reset or after + 1 < page.oldest:
                    follower.report_gap(after, page.oldest)
        for event in page.events:
            if not event.job:
                continue
            for key in ((event.ns, event.job), (event.ns, None)):
                for follower in list(self._groups.get(key, ())):
                    if event.seq > follower.at and follower.wanted.takes(event):
                        follower.take(event)
        if page.events:
            self._recent.append((before, page))
            self._known = page.events[-1]
        self.at = page.upto
