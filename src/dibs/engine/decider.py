"""Decides the batches of a server: a coordinator on a store that is watched.

A batch is decided by `run`, on a thread that may wait, or by `run_at_once`, on the event loop (`engine/batcher.py`
chooses). Each batch, and each answer of the store, tells `engine/liveness.py` that this server can serve; in return the
rules get the time up to which it vouches. Upkeep (`engine/sweeper.py`) is decided beside the batches, and sends the
beats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dibs.base.clock import steady_ms, stopwatch_us
from dibs.base.errors import StoreUnavailable
from dibs.base.ids import new_token
from dibs.base.logger import log
from dibs.core.commands import Beat, Command
from dibs.core.draft import HandedOver
from dibs.core.events import Event
from dibs.core.lease_outcomes import BeatRecorded
from dibs.engine.coordinator import LOOKS, Coordinator, Result
from dibs.engine.liveness import Liveness
from dibs.engine.metrics import Metrics
from dibs.engine.observed_store import ObservedStore
from dibs.engine.pace import Pace
from dibs.engine.pulses import after_gap
from dibs.stores.port import Busy, Store


class Decider:
    """Runs batches on the thread that calls it, and upkeep on another. `server` is fresh at each start."""

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
        self._metrics = metrics = metrics or Metrics()
        self.liveness = Liveness(steady, metrics)
        self.server = server or new_token()
        self.pace = Pace()
        self._at_once = store.at_once()
        self.store = observed = ObservedStore(store, self.liveness, self.pace, metrics)
        self.batches = 0  # how many were decided
        vouch = self.liveness.vouch
        self._coordinator = Coordinator(observed, on_commit, on_handed, vouch=vouch, pause=pause, is_gone=is_gone)
        self._hurried = Coordinator(observed, on_commit, on_handed, vouch=vouch, pause=_refuse_to_wait, is_gone=is_gone)

    @property
    def is_quick(self) -> bool:
        """Return whether `run_at_once` would take no longer than an event loop may."""
        return self._at_once is not None and self.pace.is_quick

    def run_at_once(self, commands: Sequence[Command]) -> list[Result]:
        """Like `run`, for a thread that must not wait. What would have to was not decided: Busy, for `run`."""
        assert self._at_once is not None
        began_us = stopwatch_us()
        try:
            with self._at_once:
                return self._run(self._hurried, commands)
        finally:
            self.pace.kept_loop(stopwatch_us() - began_us, len(commands))

    def run(self, commands: Sequence[Command]) -> list[Result]:
        """One result per command."""
        return self._run(self._coordinator, commands)

    def upkeep(self, commands: Sequence[Command]) -> list[Result]:
        """Like `run`, for commands that nobody waits for, while a batch may be under way."""
        return self._coordinator.run(commands)

    def _run(self, coordinator: Coordinator, commands: Sequence[Command]) -> list[Result]:
        """Run a batch. If the store cannot be written (a full disk, say), looks are answered all the same."""
        self.liveness.began()
        try:
            results = coordinator.run(commands)
            failed = [at for at, result in enumerate(results) if isinstance(result, StoreUnavailable)]
            looks = [at for at in failed if type(commands[at]) in LOOKS and type(results[at]) is not Busy]
            if 0 < len(looks) < len(commands):
                for at, again in zip(looks, coordinator.run([commands[at] for at in looks]), strict=True):
                    results[at] = again
            return results
        finally:
            self.liveness.ended()
            self.batches += 1

    def beat_if_due(self) -> None:
        if self.liveness.beat_due_in_ms():
            return
        noted = self.liveness.beating()
        beat = Beat(server=self.server)
        if self.liveness.has_gap():
            doubt_ms, since_ms = self.liveness.gap(self.store.read(()).now_ms)
            beat = after_gap(self.store, beat.replace(doubt_ms=doubt_ms), since_ms)
        outcome = self._coordinator.one(beat)
        assert isinstance(outcome, BeatRecorded)
        if outcome.frozen:
            return  # nothing is decided while the store is frozen, so no lease can end early
        noted()
        if outcome.outage_ms:
            self._metrics.outages_ms += outcome.outage_ms
            log.warning("outage of %d ms recorded: leases that were live get time to renew", outcome.outage_ms)


def _refuse_to_wait(seconds: float) -> None:
    raise Busy("Others write the same records. Try again.")
