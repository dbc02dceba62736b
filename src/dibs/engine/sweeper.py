"""Upkeep, on a thread of its own: writes pulses, expiries as events in time, counts, and keeps the store tidy. No
batch waits for it. `step` is one round.

A new lease lasts at least a second, and an outage only moves deadlines later. So a look every SWEEP_LATE_MS_MAX, and
at the earliest known deadline, finds every expiry within that bound, including leases made by other processes. Several
servers on one store divide what is due among them (`SweepShare`). Beats are sent only while the store has something to
lose, so an idle server does not write to its disk.

In between, it looks for changes by other processes: one of them may have handed a job to a caller who waits here.
`engine/feed.py` reads such news at once. A store without news is polled every NEWS_MS while callers wait here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError
from dibs.base.logger import log
from dibs.core import limits
from dibs.core.commands import Sweep
from dibs.core.events import ACQUIRED, SESSION_ENDED, Event
from dibs.core.lease_outcomes import Swept
from dibs.core.upkeep.outages import live_servers
from dibs.core.upkeep.sweep import is_swept
from dibs.engine.decider import Decider
from dibs.engine.pulses import is_idle, pulses_of
from dibs.engine.tally import Tally
from dibs.engine.thread import EngineThread
from dibs.stores.port import Store, concerns_all

NEWS_MS = 25
NEVER_MS = 2**62


class Sweeper(EngineThread):
    def __init__(
        self,
        decider: Decider,
        tally: Tally,
        *,
        keep_events: int = limits.EVENTS_KEPT_MAX,
        keep_events_ms: int = limits.EVENTS_AGE_MS_MAX,
        steady: Callable[[], int] = steady_ms,
        has_waiters: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__("dibs-upkeep")
        self._store = store = decider.store
        self._decider = decider
        self._tally = tally
        self._keep_events = keep_events
        self._keep_events_ms = keep_events_ms
        self._steady = steady
        self._has_waiters = has_waiters
        self._share = SweepShare(decider.server, steady)
        self._polls = store.capabilities.watch == "polling"
        self._claimed = 0  # as of the last round
        self._unknown = 0  # due keys that only a newer version sweeps, in the last round
        self._failed_ms: dict[str, int] = {}  # keys that could not be swept, and when
        # How many batches and events there were when nobody had anything to lose. None: somebody has.
        self._idle_at: tuple[int, int] | None = None
        self._counted_ms = self._pruned_ms = steady()
        self._knew_ms = steady() - limits.SERVERS_INTERVAL_MS
        self._step_at_ms = steady()
        self._has_failed = False

    def hurry(self, within_ms: int) -> None:
        """Do the next round soon, even if one is under way. For any thread."""
        at_ms = self._steady() + within_ms
        if at_ms < self._step_at_ms:
            self._step_at_ms = at_ms
            self._wake.set()

    def _work(self) -> None:
        while not self._stopping:
            wait_ms = min(max(self._step_at_ms - self._steady(), 0), limits.SWEEP_LATE_MS_MAX)
            self._wake.wait(wait_ms / 1000)
            self._wake.clear()
            if self._steady() >= self._step_at_ms and not self._stopping:
                self._step_at_ms = NEVER_MS  # a call of `hurry` meanwhile is not lost
                rest_ms = self._try()
                self._step_at_ms = min(self._step_at_ms, self._steady() + rest_ms)

    def _try(self) -> int:
        try:
            rest_ms = self.step()
        except Exception as error:
            if not self._has_failed:
                # Errors of the store need no traceback; any other error is a bug.
                ours = None if isinstance(error, DibsError) else error
                log.error("sweeping failed and will be tried again: %s", error, exc_info=ours)
            self._has_failed = True
            return limits.SWEEP_LATE_MS_MAX
        if self._has_failed:
            log.warning("sweeping works again")
        self._has_failed = False
        return rest_ms

    def step(self) -> int:
        """One round. Returns in how many milliseconds the next one is wanted; raises the store's errors."""
        self._decider.liveness.tick()
        now_ms = self._steady()
        if now_ms - self._counted_ms >= limits.TALLY_INTERVAL_MS:
            self._counted_ms = now_ms
            self._tally.catch_up(self._store)
        elif self._has_waiters():
            self._tally.look(self._store)
        self._beat_if_needed()
        if self._tally.is_counting:
            self._tally.count_page(self._store)
        if self._idle_at is not None:
            self._share.know(None)  # others write no pulse then, and there is almost nothing to divide
        elif now_ms - self._knew_ms >= limits.SERVERS_INTERVAL_MS:
            self._knew_ms = now_ms
            self._share.know(self._store)
        if now_ms - self._pruned_ms >= limits.PRUNE_INTERVAL_MS:
            self._pruned_ms = now_ms
            self.prune()
        # If there is more, the next round follows at once: a beat may be due.
        return 0 if self.sweep() or self._tally.is_counting else self._rest_ms()

    def stirred(self, events: Sequence[Event]) -> None:
        """This server wrote these. If nobody had anything to lose before, a beat reports to the other servers that
        somebody has. A session that ended may have more jobs than were freed at once. For any thread."""
        if self._idle_at is not None or SESSION_ENDED in [event.kind for event in events]:
            self.hurry(0)

    def _beat_if_needed(self) -> None:
        liveness = self._decider.liveness
        if liveness.beat_due_in_ms():
            return
        seen = (self._decider.batches, self._tally.reported_seq)
        if seen != self._idle_at:  # else nothing has changed since the store was found idle
            self._idle_at = seen if is_idle(self._store) else None
        if self._idle_at is None or liveness.has_gap():
            self._decider.beat_if_due()

    def sweep(self) -> bool:
        """Sweep the due keys of our part. Returns whether there are more."""
        now_ms = self._steady()
        self._failed_ms = {
            key: at_ms for key, at_ms in self._failed_ms.items() if now_ms - at_ms < limits.SWEEP_RETRY_MS
        }
        # Few at a time, because commands wait for the round, and all leases may end at once; but twice as many as jobs
        # were claimed since the last round, so that claims do not outrun it.
        claimed = self._tally.kinds[ACQUIRED]
        most = min(max(limits.SWEEP_BATCH_MIN, 2 * (claimed - self._claimed)), limits.SWEEP_BATCH_MAX)
        self._claimed = claimed
        # Those that are not swept here and now come first every time: beside them there must be room for others.
        limit = most + self._unknown + len(self._failed_ms) + len(self._share)
        due = self._store.due(limit)
        known = [key for key in due.keys if is_swept(key)]
        self._unknown = len(due.keys) - len(known)
        keys = self._share.of([key for key in known if key not in self._failed_ms])
        has_more = due.has_more
        if not keys:
            return has_more
        for key, result in zip(keys, self._decider.upkeep([Sweep(key=key) for key in keys]), strict=True):
            if isinstance(result, BaseException) and concerns_all(result):
                raise result
            if isinstance(result, BaseException):  # a failure of one record must not keep the others waiting
                log.error("%s cannot be swept: %s", key, result)
                self._failed_ms[key] = now_ms
            else:
                assert isinstance(result, Swept)
                if result.frozen:
                    return False  # otherwise the same keys would come again at once
                has_more = has_more or result.unfinished
        return has_more or len(due.keys) == limit

    def prune(self) -> int:
        before_ms = self._store.read(()).now_ms - self._keep_events_ms
        return self._store.prune(keep=self._keep_events, before_ms=before_ms)

    def _rest_ms(self) -> int:
        late_ms = NEWS_MS if self._polls and self._has_waiters() else limits.SWEEP_LATE_MS_MAX
        if self._idle_at is None:
            late_ms = min(late_ms, max(self._decider.liveness.beat_due_in_ms(), limits.SWEEP_INTERVAL_MS))
        due_ms = self._store.due(0).next_ms
        if due_ms is None:
            return late_ms
        wait_ms = due_ms - self._store.read(()).now_ms
        # Keys that are due but were not swept just now (another server may be doing it) must not cause a busy loop.
        return min(max(wait_ms, limits.SWEEP_INTERVAL_MS), late_ms)


class SweepShare:
    """Chooses the due keys to sweep here: this server's part at once, and another server's part when that one is late.

    A key belongs to one of the live servers by its hash. The next server takes over after SWEEP_GRACE_MS, the one after
    it after twice as long, so that two servers do not both begin at once."""

    def __init__(self, server: str, steady: Callable[[], int]) -> None:
        self._server = server
        self._steady = steady
        self._servers = [server]
        self._left_ms: dict[str, int] = {}  # keys left to others, and since when

    def know(self, store: Store | None) -> None:
        """Take note of the live servers of a store; None: there is no other."""
        others = live_servers(pulses_of(store), store.read(()).now_ms) if store is not None else ()
        self._servers = sorted({self._server, *others})

    def __len__(self) -> int:
        return len(self._left_ms)

    def of(self, keys: list[str]) -> list[str]:
        """Those of `keys` that are to be swept here and now. `keys` are all due keys."""
        count = len(self._servers)
        if count == 1:
            self._left_ms = {}
            return keys
        me, now_ms = self._servers.index(self._server), self._steady()
        mine: list[str] = []
        left_ms: dict[str, int] = {}
        for key in keys:
            distance = (me - crc32(key.encode())) % count
            since_ms = self._left_ms.get(key, now_ms)
            if now_ms - since_ms >= distance * limits.SWEEP_GRACE_MS:
                mine.append(key)
            else:
                left_ms[key] = since_ms
        self._left_ms = left_ms
        return mine
