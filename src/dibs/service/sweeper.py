"""Turns expiry into events on time, and keeps the store tidy. `step` is one round; the batcher's thread calls it.

A new lease lasts a second at least, and an outage only moves deadlines later: looking every SWEEP_LATE_MS_MAX (and
exactly when the earliest known deadline comes) finds every expiry within that bound, also of leases that other
processes made. Beats are sent only while somebody holds something, so an idle server leaves its disk alone. While
callers wait here, what other processes did is looked for every NEWS_MS: one of them may have handed over a job.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dibs.clock import steady_ms
from dibs.core.commands import Sweep
from dibs.core.limits import (
    EVENTS_AGE_MS_MAX,
    EVENTS_KEPT_MAX,
    PRUNE_INTERVAL_MS,
    SWEEP_BATCH_MAX,
    SWEEP_INTERVAL_MS,
    SWEEP_LATE_MS_MAX,
    TALLY_INTERVAL_MS,
)

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
    ) -> None:
        self._store = store
        self._decider = decider
        self._tally = tally
        self._keep_events = keep_events
        self._keep_events_ms = keep_events_ms
        self._steady = steady
        self._has_waiters = has_waiters
        self._counted_ms = self._pruned_ms = steady()

    def step(self) -> int:
        """One round. Returns in how many milliseconds the next one is wanted; raises what the store raises."""
        self._decider.liveness.tick()
        try:
            return self._step()
        except Exception:
            self._decider.liveness.cut_off()
            raise

    def _step(self) -> int:
        now_ms = self._steady()
        if now_ms - self._counted_ms >= TALLY_INTERVAL_MS:
            self._counted_ms = now_ms
            self._tally.catch_up(self._store)
        elif self._has_waiters():
            self._tally.look(self._store)
        if self._tally.is_busy:
            self._decider.beat_if_due()
        if now_ms - self._pruned_ms >= PRUNE_INTERVAL_MS:
            self._pruned_ms = now_ms
            self.prune()
        if self.sweep() == SWEEP_BATCH_MAX:
            return 0  # there is more; whoever asked meanwhile comes first
        return self._rest_ms()

    def sweep(self) -> int:
        """Do what is due. Returns how many records were looked at."""
        keys = self._store.due(SWEEP_BATCH_MAX).keys
        if not keys:
            return 0
        for result in self._decider.run([Sweep(key=key) for key in keys]):
            if isinstance(result, BaseException):
                raise result
        return len(keys)

    def prune(self) -> int:
        """Drop history beyond what is kept."""
        before_ms = self._store.read(()).now_ms - self._keep_events_ms
        return self._store.prune(keep=self._keep_events, before_ms=before_ms)

    def _rest_ms(self) -> int:
        late_ms = NEWS_MS if self._has_waiters() else SWEEP_LATE_MS_MAX
        if self._tally.is_busy:
            late_ms = min(late_ms, max(self._decider.liveness.beat_due_in_ms(), SWEEP_INTERVAL_MS))
        due_ms = self._store.due(0).next_ms
        if due_ms is None:
            return late_ms
        wait_ms = due_ms - self._store.read(()).now_ms
        # What is due already and was not swept just now (another server may be at it) is not asked about in a spin.
        return min(max(wait_ms, SWEEP_INTERVAL_MS), late_ms)
