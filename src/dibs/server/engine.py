"""A server without HTTP: the store, the threads for batches and upkeep, the counts and the waiting, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError
from dibs.base.ids import new_id
from dibs.core import events as kinds
from dibs.core.commands import Identify
from dibs.core.events import Event
from dibs.core.lease_outcomes import Identified
from dibs.core.limits import EVENTS_AGE_MS_MAX, EVENTS_KEPT_MAX, SHUTDOWN_MS_MAX
from dibs.engine.batcher import Batcher
from dibs.engine.coordinator import run_one
from dibs.engine.decider import Decider
from dibs.engine.feed import EventFeed, StoreWatcher
from dibs.engine.metrics import Metrics
from dibs.engine.queries import Successes
from dibs.engine.sweeper import NEWS_MS, Sweeper
from dibs.engine.tally import Tally
from dibs.engine.token_floor import has_floor, raise_floor
from dibs.engine.waiters import Waiters
from dibs.engine.webhooks import TargetPolicy, registered
from dibs.engine.webhooks.dispatcher import WebhookDispatcher
from dibs.engine.webhooks.sender import Sender
from dibs.stores.port import RecordCorrupt, Store


class Engine:
    """For one event loop: its thread sends commands and gets the answers. The caller opens and closes the store."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        *,
        keep_events: int = EVENTS_KEPT_MAX,
        keep_events_ms: int = EVENTS_AGE_MS_MAX,
        token_floor: int = 0,
        metric_jobs: Sequence[tuple[str, str]] = (),
        steady: Callable[[], int] = steady_ms,
        webhook_policy: TargetPolicy | None = None,
        webhook_sender: Callable[[], Sender] | None = None,
    ) -> None:
        self.store = store
        self._loop = loop
        self._token_floor = token_floor
        self.metrics = Metrics()
        self.successes = Successes(metric_jobs)
        self.tally = Tally(self._read, gapless=store.capabilities.gapless)
        self.decider = Decider(
            store,
            self._committed,
            steady,
            lambda handed: self.batcher.after(self.waiters.on_handed_over, handed),
            metrics=self.metrics,
            is_gone=lambda command: self.batcher.is_gone(command),  # noqa: PLW0108 - it is made below
        )
        self.watcher = StoreWatcher(
            store, lambda: self.tally.reported_seq, self._is_watched, lambda: self.tally.catch_up(self.decider.store)
        )
        self.sweeper = Sweeper(
            self.decider,
            self.tally,
            keep_events=keep_events,
            keep_events_ms=keep_events_ms,
            steady=steady,
            has_waiters=self._is_watched,
        )
        self.batcher = Batcher(
            self.decider.run,
            deliver=loop.call_soon_threadsafe,
            soon=loop.call_soon,
            run_at_once=self.decider.run_at_once,
            is_quick=lambda: self.decider.is_quick,
            steady=steady,
            metrics=self.metrics,
        )
        self.waiters = Waiters(self.batcher.post, loop.call_later, self._first_waits, self.metrics)
        self.feed = EventFeed(store, loop, self._first_waits)
        self.webhook_policy = webhook_policy or TargetPolicy()
        make_sender = webhook_sender or (lambda: Sender(self.webhook_policy))
        self.dispatcher = WebhookDispatcher(store, make_sender, self.decider.server, counts=self.metrics.deliveries)
        self.store_id = ""  # the store's name; known once it has started
        self.moved_from: tuple[str, ...] = ()  # the names of the stores that it goes on from
        self.on_named: Callable[[], None] = lambda: None  # called on the event loop when the name is another
        self.on_tokens: Callable[[], None] = lambda: None  # called after a change of tokens
        self._steady = steady
        self._started_ms = steady()

    def start(self) -> None:
        """Record the outage that ended with this start, and begin to answer. Live leases are counted meanwhile."""
        self.tally.begin(self.store)
        self.successes.begin(self.store)
        self.tally.count_page(self.store)
        self.decider.beat_if_due()
        if self._token_floor and not has_floor(self.store, self._token_floor):  # not at each start: it makes a gap
            raise_floor(self.store, self._token_floor)
        self.learn_name()
        self.decider.liveness.start()
        self.batcher.start()
        self.sweeper.start()
        self.store.on_gone(self._gone)
        self.watcher.start()
        try:
            has_webhooks = bool(registered(self.store).entries)
        except RecordCorrupt:  # the dispatcher reports it, and goes on when the record is set aside
            has_webhooks = True
        if has_webhooks:
            self.dispatcher.start()

    def learn_name(self) -> None:
        """Ask the store for its name, which it gives up when it is moved. For any thread; raises the store's errors."""
        known = run_one(self.store, Identify(fresh_id=new_id()))
        assert isinstance(known, Identified)  # that is what the command gives
        if (known.store_id, known.moved_from) != (self.store_id, self.moved_from):
            self.store_id, self.moved_from = known.store_id, known.moved_from
            self._loop.call_soon_threadsafe(self.on_named)

    def stop(self, timeout_ms: int = SHUTDOWN_MS_MAX) -> bool:
        self.watcher.stop()
        self.feed.close()
        self.dispatcher.end()
        until_ms = steady_ms() + timeout_ms
        has_finished = self.batcher.stop(timeout_ms)
        has_finished = self.sweeper.stop(max(0, until_ms - steady_ms())) and has_finished
        self.decider.liveness.stop(0)
        self.dispatcher.stop()
        return has_finished

    def _is_watched(self) -> bool:
        return bool(self.waiters) or bool(self.feed)

    def _first_waits(self) -> None:
        self.sweeper.hurry(NEWS_MS)
        self.watcher.wake()

    # These run where a batch or upkeep is decided. The waiters are notified on the event loop, after the answers were
    # sent.

    def _committed(self, events: Sequence[Event], last_seq: int) -> None:
        self.tally.committed(events, last_seq)
        self.metrics.committed(events)
        if self.successes.at_ms:
            self.successes.heard(events)
        self.sweeper.stirred(events)
        left = [event for event in events if event.kind in (kinds.LEFT, kinds.OPENED)]
        if left:
            self.batcher.after(self.waiters.on_events, left)
        if events and self.feed:
            self.batcher.after(self.feed.wake)
        if events and self.dispatcher.is_started:
            self.dispatcher.wake()

    def _read(self, events: Sequence[Event]) -> None:
        is_imported = any(event.kind == kinds.IMPORTED for event in events)
        self.successes.heard(events)
        if is_imported or any(event.kind in kinds.TOKEN_CHANGES for event in events):
            self.on_tokens()
        if is_imported or any(event.kind == kinds.OUTAGE for event in events):  # such as that of a move
            with suppress(DibsError):  # whoever comes with the new name has it asked again
                self.learn_name()
        if is_imported or any(event.kind in kinds.WEBHOOK_CHANGES for event in events):
            self.dispatcher.changed()
        elif self.dispatcher.is_started:
            self.dispatcher.wake()
        if self.feed:
            self.batcher.after(self.feed.wake)
        placed = [event for event in events if event.ticket and event.kind in (kinds.ACQUIRED, kinds.LEFT)]
        placed += [event for event in events if event.kind == kinds.OPENED]
        if placed:
            self.batcher.after(self.waiters.on_events, placed)
        if is_imported:
            with suppress(DibsError):  # a store that is away: then these wait for the next success
                self.successes.begin(self.store)

    def _gone(self, marks: Sequence[str]) -> None:
        if marks and self.waiters:  # they are notified after what the batch under way hands over itself
            self.batcher.after(self._loop.call_soon, self.waiters.on_gone, marks)

    @property
    def reported_seq(self) -> int:
        """The newest event that counts and followers here know."""
        return self.feed.at if self.feed else self.tally.reported_seq

    def uptime_ms(self) -> int:
        return self._steady() - self._started_ms
