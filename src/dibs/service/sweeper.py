"""Writes expiries as events in time, and keeps the store tidy. The batcher's thread calls `step`, which is one round.

A new lease lasts at least a second, and an outage only moves deadlines later. So a look every SWEEP_LATE_MS_MAX, and
at the earliest known deadline, finds every expiry within that bound, including leases made by other processes. Several
servers on one store divide what is due among them (`service/servers.py`). Beats are sent only while somebody holds
something, so an idle server does not write to its disk.

In between, it looks for changes by other processes: one of them may have handed a job to a caller who waits here.
`service/watcher.py` reports such news. A store that cannot report news is polled every NEWS_MS while callers wait here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dibs.clock import steady_ms
from dibs.core.commands import Sweep
from dibs.core.events import ACQUIRED
from dibs.core.limits import (
    EVENTS_AGE_MS_MAX,
    EVENTS_KEPT_MAX,
    PRUNE_INTERVAL_MS,
    SERVERS_INTERVAL_MS,
    SWEEP_BATCH_MAX,
    SWEEP_BATCH_MIN,
    SWEEP_INTERVAL_MS,
    SWEEP_LATE_MS_MAX,
    TALLY_INTERVAL_MS,
)
from dibs.core.upkeep import is_swept
from dibs.core.upkeep_outcomes import Swept
from dibs.errors import InvalidInput
from dibs.service.coordinator import Contended
from dibs.service.servers import SweepShare

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.service.liveness import Decider
    from dibs.service.tally import Tally
    from dibs.stores.port import Store

log = logging.getLogger("dibs")

NEWS_MS = 25


class Sweeper:
    def __init__(
        self,
        store: Store,
        decider: Decider,
        tally: Tally,
        *,
        keep_events: int = EVENTS_KEPT_MAX,
        keep_events_ms: int = EVENTS_AGE_MS_MAX,
        steady: Callable[[], int] = steady_ms,
        has_waiters: Callable[[], bool] = lambda: False,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._decider = decider
        self._tally = tally
        self._keep_events = keep_events
        self._keep_events_ms = keep_events_ms
        self._steady = steady
        self._has_waiters = has_waiters
        self._looked = looked
        self._share = SweepShare(decider.server, steady)
        self._polls = store.capabilities.watch == "polling"
        self._has_news = False
        self._claimed = 0  # as of the last round
        self._unknown = 0  # due keys that only a newer version sweeps, in the last round
        self._counted_ms = self._pruned_ms = self._sweep_at_ms = steady()
        self._knew_ms = steady() - SERVERS_INTERVAL_MS

    def news(self) -> None:
        """The store has something new. For any thread; the next round reads it."""
        self._has_news = True

    def step(self) -> int:
        """One round. Returns in how many milliseconds the next one is wanted; raises the store's errors."""
        self._decider.liveness.tick()
        try:
            return self._step()
        except Contended:
            raise  # the store answers
        except Exception:
            self._decider.liveness.cut_off()
            raise

    def _step(self) -> int:
        now_ms = self._steady()
        only_news = self._has_news and now_ms < self._sweep_at_ms
        self._read_news(now_ms)
        if self._tally.is_busy:
            self._decider.beat_if_due()
        if only_news:
            return self._sweep_at_ms - now_ms
        if self._tally.is_counting:
            self._tally.count_page(self._store)
        self._know_servers(now_ms)
        if now_ms - self._pruned_ms >= PRUNE_INTERVAL_MS:
            self._pruned_ms = now_ms
            self.prune()
        # If there is more, commands that came meanwhile go first.
        rest_ms = 0 if self.sweep() or self._tally.is_counting else self._rest_ms()
        self._sweep_at_ms = self._steady() + rest_ms
        return rest_ms

    def _slice(self) -> int:
        """How many due keys one round looks at. Few, because commands wait for the round, and all leases may end at
        once. At least twice as many as jobs were claimed since the last round, so that claims do not outrun it."""
        claimed = self._tally.kinds[ACQUIRED]
        since, self._claimed = claimed - self._claimed, claimed
        return min(max(SWEEP_BATCH_MIN, 2 * since), SWEEP_BATCH_MAX)

    def sweep(self) -> bool:
        """Sweep the due keys of our part. Returns whether there are more."""
        limit = self._slice() + self._unknown
        due = self._store.due(limit)
        known = [key for key in due.keys if is_swept(key)]
        self._unknown = len(due.keys) - len(known)
        keys = self._share.of(known)
        if not keys:
            return due.has_more
        for key, result in zip(keys, self._decider.run([Sweep(key=key) for key in keys]), strict=True):
            if isinstance(result, InvalidInput):
                log.error("%s cannot be swept: %s", key, result)
            elif isinstance(result, BaseException):
                raise result
            elif isinstance(result, Swept) and result.frozen:
                return False  # otherwise the same keys would come again at once
        return due.has_more or len(due.keys) == limit

    def prune(self) -> int:
        """Drop history beyond the bounds."""
        before_ms = self._store.read(()).now_ms - self._keep_events_ms
        return self._store.prune(keep=self._keep_events, before_ms=before_ms)

    def _read_news(self, now_ms: int) -> None:
        if self._has_news or now_ms - self._counted_ms >= TALLY_INTERVAL_MS:
            self._has_news = False
            self._counted_ms = now_ms
            self._tally.catch_up(self._store)
            self._looked()
        elif self._has_waiters():
            self._tally.look(self._store)

    def _know_servers(self, now_ms: int) -> None:
        if not self._tally.is_busy:
            self._share.know_nobody()  # others write no pulse then, and there is almost nothing to divide
        elif now_ms - self._knew_ms >= SERVERS_INTERVAL_MS:
            self._knew_ms = now_ms
            self._share.know(self._store)

    def _rest_ms(self) -> int:
        late_ms = NEWS_MS if self._polls and self._has_waiters() else SWEEP_LATE_MS_MAX
        if self._tally.is_busy:
            late_ms = min(late_ms, max(self._decider.liveness.beat_due_in_ms(), SWEEP_INTERVAL_MS))
        due_ms = self._store.due(0).next_ms
        if due_ms is None:
            return late_ms
        wait_ms = due_ms - self._store.read(()).now_ms
        # Keys that are due but were not swept just now (another server may be doing it) must not cause a busy loop.
        return min(max(wait_ms, SWEEP_INTERVAL_MS), late_ms)
