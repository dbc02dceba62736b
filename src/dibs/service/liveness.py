"""Notices when this process was paused or cut off, before anything is decided. The promise `lease:outage-credit` needs
it.

Before a batch is decided, the deciding thread checks whether it was stopped, suspended, stuck in a write, or cut off
from its store. If so, a `Beat` goes first. It reads the pulses of all servers, and if none of them could serve
meanwhile, records the outage before any expiry is decided. `Liveness` knows since when there was no gap;
`StallCheckedStore` notices a gap between that look and the reading of the records; `Decider` puts the two around the
coordinator.

A server without a gap has nothing to check before a batch. Its pulse is written between batches, and between the tries
of a batch that conflicts. The pulse is a separate record for each server, so servers do not conflict.

Contention is not an outage. If a store answers in time, with records or with a conflict, both the store and this
process work: every such answer is a tick.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from dibs.clock import steady_ms, stopwatch_us
from dibs.core.commands import Beat, Inspect, InspectSession
from dibs.core.limits import PULSE_LATE_MS, PULSE_MS
from dibs.core.upkeep_outcomes import BeatRecorded
from dibs.errors import StoreBroken, StoreUnavailable
from dibs.ids import new_token
from dibs.service.coordinator import Contended, Coordinator
from dibs.service.metrics import Metrics
from dibs.service.pace import Pace
from dibs.service.servers import after_gap
from dibs.stores.port import Busy, Conflict
from dibs.stores.proxy import StoreProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored
    from dibs.core.view import HandedOver
    from dibs.stores.port import Snapshot, Store

    Result = Outcome | BaseException

Answer = TypeVar("Answer")

log = logging.getLogger("dibs")

STALLS_MAX = 5


class ProcessPaused(StoreUnavailable):
    """This process was kept from work just before the records were read. Nothing was decided or written."""


class Liveness:
    """Since when this process has been able to take work and reach its store, without a gap."""

    def __init__(self, steady: Callable[[], int] = steady_ms) -> None:
        self._steady = steady
        self._ticked_ms = self._good_ms = self._since_ms = steady()
        self._noted_ms = self._noted_since_ms = self._beat_since_ms = -1
        self._cut_off = False

    def tick(self) -> None:
        """Called at least every 250 ms by a worker that is free. A long silence means that it was not."""
        self._ticked_ms = now_ms = self._steady()
        if not self._cut_off:
            self._note_gap(now_ms)
            self._good_ms = now_ms

    def stalled(self) -> bool:
        return self._steady() - self._ticked_ms > PULSE_LATE_MS

    def cut_off(self) -> None:
        """The store failed: until it accepts a beat, nobody can renew at this server."""
        self._cut_off = True

    def has_gap(self) -> bool:
        """Whether there was a gap that no beat has accounted for yet."""
        return self._cut_off or self._noted_since_ms != self._since_ms

    def beat_is_due(self) -> bool:
        return self.has_gap() or not self.beat_due_in_ms()

    def beat_due_in_ms(self) -> int:
        return max(self._noted_ms + PULSE_MS - self._steady(), 0)

    def beat(self, store_now_ms: int) -> Beat:
        """A beat with the time since when there was no gap, on the store's clock."""
        now_ms = self._steady()
        self._note_gap(now_ms)
        self._beat_since_ms = self._since_ms
        return Beat(alive_since_ms=store_now_ms - (now_ms - self._since_ms))

    def noted(self) -> None:
        """The store accepted the beat. It is true for the moment when its records were read, at the last tick. A stop
        since then, in the commit, is a gap that the next tick finds."""
        self._noted_ms = self._steady()
        self._noted_since_ms = self._beat_since_ms
        self._good_ms = self._ticked_ms
        self._cut_off = False

    def _note_gap(self, now_ms: int) -> None:
        if now_ms - self._good_ms > PULSE_LATE_MS:
            self._since_ms = now_ms


class StallCheckedStore(StoreProxy):
    """A store that refuses to be read for a decision when the process was stopped since its last tick."""

    def __init__(
        self,
        store: Store,
        liveness: Liveness,
        pace: Pace,
        on_conflict: Callable[[], None] = lambda: None,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(store)
        self.last_seq = 0
        self._liveness = liveness
        self._pace = pace
        self._on_conflict = on_conflict
        self._metrics = metrics or Metrics()
        self._unknown = False

    def read(self, keys: Iterable[str]) -> Snapshot:
        return self._checked(self.inner.read, keys)

    def recall(self, keys: Iterable[str]) -> Snapshot:
        return self._checked(self.inner.recall, keys)

    def _checked(self, get: Callable[[Iterable[str]], Snapshot], keys: Iterable[str]) -> Snapshot:
        try:
            snapshot = get(keys)
        except Busy:
            self._metrics.busy += 1
            self._tell_unknown()
            raise
        except (StoreUnavailable, StoreBroken):
            self._metrics.read_errors += 1
            raise
        # Checked after the read: a stop before the read is seen here, and a stop after it does not affect the time that
        # was read.
        if self._liveness.stalled():
            self._metrics.stalls += 1
            self._tell_unknown()
            raise ProcessPaused("The server was stopped; it records that and decides again.")
        self._liveness.tick()
        return snapshot

    def _tell_unknown(self) -> None:
        """What follows would say that nothing was written. If the last commit may have been, say so instead."""
        unknown, self._unknown = self._unknown, False
        if unknown:
            raise StoreUnavailable(
                "The server was stopped during a write; the outcome is unknown.", unknown=True
            )

    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
        self._metrics.writing_since_us = began_us = stopwatch_us()
        try:
            self.last_seq = self.inner.commit(expect, puts, events)
        except Busy:
            self._metrics.busy += 1
            self._tell_unknown()
            raise
        except StoreUnavailable as error:
            self._metrics.write_failed()
            self._unknown = error.unknown
            raise
        except StoreBroken:
            self._metrics.write_failed()
            raise
        except Conflict:
            self._metrics.conflicts += 1
            if not self._liveness.stalled():
                self._liveness.tick()
                self._on_conflict()
            raise
        finally:
            took_us = stopwatch_us() - began_us
            self._pace.took(took_us)
            self._metrics.commits.observe(took_us / 1_000_000)
            self._metrics.writing_since_us = 0
        self._metrics.write_failed_us = 0
        self._unknown = False
        return self.last_seq


class Decider:
    """Runs batches on the thread that calls it; after a gap, a beat before them. `server` is fresh at each start."""

    def __init__(
        self,
        store: Store,
        on_commit: Callable[[Sequence[Event], int], None],
        steady: Callable[[], int] = steady_ms,
        on_handed: Callable[[Sequence[HandedOver]], None] | None = None,
        pause: Callable[[float], None] = time.sleep,
        server: str | None = None,
        metrics: Metrics | None = None,
        is_gone: Callable[[Command], bool] = lambda command: False,
    ) -> None:
        self.liveness = Liveness(steady)
        self.server = server or new_token()
        self.pace = Pace()
        self._metrics = metrics = metrics or Metrics()
        self._store = store
        self._at_once = store.at_once()
        self._is_hurried = False
        self._sleep = pause
        watched = StallCheckedStore(store, self.liveness, self.pace, self._beat_if_contended, metrics)
        self._coordinator = Coordinator(
            watched,
            lambda events: on_commit(events, watched.last_seq),
            on_handed,
            pause=self._pause,
            is_gone=is_gone,
        )
        # Beats have their own coordinator: one may be sent while a batch with an unknown outcome is tried again.
        own = StallCheckedStore(store, self.liveness, self.pace, metrics=metrics)
        self._beats = Coordinator(own, lambda events: on_commit(events, own.last_seq), pause=self._pause)

    @property
    def is_quick(self) -> bool:
        """Whether `run_at_once` would take no longer than an event loop may."""
        return self._at_once is not None and self.pace.is_quick

    def run_at_once(self, commands: Sequence[Command]) -> list[Result]:
        """Like `run`, for a thread that must not wait for others. What would have to wait was not decided, and its
        result is Busy: call `run` with it, on another thread."""
        assert self._at_once is not None
        self.liveness.tick()
        if self.liveness.has_gap():  # finding out about it takes longer
            return [Busy("The server was stopped; it records that first.")] * len(commands)
        self._is_hurried = True
        began_us = stopwatch_us()
        try:
            with self._at_once:
                return self.run(commands)
        except Busy as busy:
            return [busy] * len(commands)
        finally:
            self._is_hurried = False
            self.pace.kept_loop(stopwatch_us() - began_us, len(commands))

    def _pause(self, seconds: float) -> None:
        if self._is_hurried:
            raise Busy("Others write the same records. Try again.")
        self._sleep(seconds)

    def run(self, commands: Sequence[Command]) -> list[Result]:
        """One result per command. Raises an error that concerns all of them."""
        try:
            results = self._guarded(lambda: self._try(commands))
        except (ProcessPaused, Busy):
            raise
        except StoreUnavailable as error:
            return self._look_only(commands, error)
        failed = [index for index, result in enumerate(results) if isinstance(result, StoreUnavailable)]
        if not failed:
            return results
        if not all(_says_less(results[index]) for index in failed):
            self.liveness.cut_off()
        # Some may have been answered before the process was stopped, others not.
        late = [index for index in failed if isinstance(results[index], ProcessPaused)]
        if late and len(late) < len(results):
            again = self.run([commands[index] for index in late])
            for index, result in zip(late, again, strict=True):
                results[index] = result
        return results

    def _look_only(self, commands: Sequence[Command], error: StoreUnavailable) -> list[Result]:
        """Writing fails, for instance because the disk is full. Commands that only look need no beat."""
        looks = [command for command in commands if isinstance(command, Inspect | InspectSession)]
        if not looks:
            raise error
        answers = dict(zip(map(id, looks), self._coordinator.run(looks), strict=True))
        return [answers.get(id(command), error) for command in commands]

    def beat_if_due(self) -> None:
        if self.liveness.beat_is_due():
            self._guarded(self._beat)

    def _beat_if_contended(self) -> None:
        """After repeated conflicts, send a beat. A server that starts meanwhile must not mistake this for an outage."""
        if not self.liveness.beat_due_in_ms() and not self.liveness.has_gap():
            with suppress(StoreUnavailable):  # the batch will meet the same error
                self._beat()

    def _guarded(self, call: Callable[[], Answer]) -> Answer:
        """Call it, and again if this process was stopped meanwhile. An error of the store means that we are cut off."""
        for stalls in range(1, STALLS_MAX + 1):
            self.liveness.tick()
            try:
                return call()
            except (Contended, Busy):
                raise
            except ProcessPaused:
                # Otherwise reads that are always slow would be tried for ever.
                if stalls == STALLS_MAX:
                    self.liveness.cut_off()
                    raise
            except Exception:
                self.liveness.cut_off()
                raise
        raise AssertionError("it returned or raised")

    def _try(self, commands: Sequence[Command]) -> list[Result]:
        if self.liveness.has_gap():
            self._beat()
            self.liveness.tick()
        if self.liveness.has_gap():
            return self._run_with_beat(commands)
        return self._coordinator.run(commands)

    def _run_with_beat(self, commands: Sequence[Command]) -> list[Result]:
        """Decide and commit them together with a beat. If every commit takes so long that it is a gap, then so does
        that of a beat: whoever waits until there is none would wait for ever."""
        noted, *results = self._coordinator.run([self._new_beat(), *commands])
        if isinstance(noted, BaseException):
            raise noted
        self._noted(noted)
        return results

    def _beat(self) -> None:
        self._noted(self._beats.one(self._new_beat()))

    def _new_beat(self) -> Beat:
        beat = self.liveness.beat(self._store.read(()).now_ms).replace(server=self.server)
        return after_gap(self._store, beat) if self.liveness.has_gap() else beat

    def _noted(self, noted: Outcome) -> None:
        assert isinstance(noted, BeatRecorded)
        if noted.frozen:
            return  # nothing is decided while the store is frozen, so no lease can end early
        self.liveness.noted()
        if noted.outage_ms:
            self._metrics.outages_ms += noted.outage_ms
            log.warning("outage of %d ms recorded: leases that were live get time to renew", noted.outage_ms)


def _says_less(error: Result) -> bool:
    """Whether an error does not mean that the store failed: it answered others, or was not asked."""
    return isinstance(error, Contended | ProcessPaused | Busy)
