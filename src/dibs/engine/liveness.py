"""The time up to which this server can vouch for its clock. The promise `lease:outage-credit` needs it.

An outage is a time in which no renewal could be committed by any server. This server may have been stopped, suspended,
or cut off from its store without knowing yet whether that was one. So every batch carries a time up to which the server
vouches, and the rules take every deadline after it as not reached (`core/holds/expiry.py`). Nothing has to be found out
before a batch: the upkeep thread sends a `Beat` a moment later, which reads the pulses of all servers, records the
outage if there was one, and from then on the server vouches for all time again (`core/upkeep/outages.py`).

Three things begin a gap, for which nobody vouches:

- The process was stopped for more than OUTAGE_MS_MIN. A thread that does nothing else ticks, and did not.
- The store took longer than that for one answer.
- The store failed: from the beginning of the call until a beat is committed.

A store that answers sooner is slow, not away: every answer, also a conflict, is a sign of life. A machine may also be
so busy that a process stands still for a second. Such a silence, from PULSE_LATE_MS on, is no outage and is not
recorded. But whoever wanted to renew had to wait, so the server takes deadlines in it as not reached for as long again.
The same goes for a slow batch, for which the next commands wait.

A server without a gap writes its pulse between other upkeep. Each server has its own record, so they do not conflict.
It writes none while its store has not answered something for longer than PULSE_LATE_MS. A pulse has its own connection,
so it could be written beside a batch that hangs, and would say that renewals are possible here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar
from zlib import crc32

from dibs.base.clock import steady_ms, stopwatch_us
from dibs.base.errors import StoreBroken, StoreUnavailable
from dibs.base.ids import new_token
from dibs.base.logger import log
from dibs.core import limits
from dibs.core.commands import Beat, Command
from dibs.core.draft import ALL_TIME_MS, HandedOver
from dibs.core.events import Event
from dibs.core.lease_outcomes import BeatRecorded
from dibs.core.outcomes import Outcome
from dibs.core.records import LOCK_PREFIX, PULSE_PREFIX, SESSION_PREFIX, LockRecord, Pulse, SessionRecord, Stored
from dibs.core.upkeep.outages import accounted_ms, gone_servers, live_servers
from dibs.engine.coordinator import LOOKS, Coordinator
from dibs.engine.metrics import Metrics
from dibs.stores.port import Busy, Conflict, RecordCorrupt, Snapshot, Store, StoreProxy

Result = Outcome | BaseException


# How long a commit takes on this disk, and a decision of late, and whether an event loop may wait for them.

QUICK_US_MAX = 2_000
STUCK_US_MIN = 20_000
COMMAND_US = 200  # what the decision of one command may take
_WEIGHT = 8


class Pace:
    """A moving mean. A single commit that is very slow counts at once, and so does a batch on the loop: the next ones
    are likely to be slow, too. Some twenty quick commits make up for it."""

    def __init__(self) -> None:
        self._mean_us: float | None = None

    @property
    def is_quick(self) -> bool:
        return self._mean_us is not None and self._mean_us <= QUICK_US_MAX

    def took(self, us: int) -> None:
        if self._mean_us is None or us >= STUCK_US_MIN:
            self._mean_us = us
        else:
            self._mean_us += (us - self._mean_us) / _WEIGHT

    def kept_loop(self, us: int, commands: int) -> None:
        """A batch of so many commands was decided and committed on the event loop."""
        if us - commands * COMMAND_US >= STUCK_US_MIN:
            self.took(us)


# Which servers use this store, known from their pulses (`core/upkeep/outages.py`), and which of them sweeps what.


def pulses_of(store: Store) -> list[Pulse]:
    found = store.scan(PULSE_PREFIX, limit=limits.LIST_PAGE_DEFAULT)
    return [versioned.record for _, versioned in found if isinstance(versioned.record, Pulse)]


def after_gap(store: Store, beat: Beat, ended_ms: int) -> Beat:
    """The beat of a server whose gap ended then, with what the store knows about that time."""
    others = [pulse for pulse in pulses_of(store) if pulse.server != beat.server]
    return beat.replace(
        alive_since_ms=ended_ms,
        heard_ms=accounted_ms(others),
        idle=is_idle(store, ended_ms),
        gone=gone_servers(others, ended_ms),
    )


def is_idle(store: Store, since_ms: int = ALL_TIME_MS) -> bool:
    """Return whether nobody who was there before that time holds anything, waits, or has a session. Servers write no
    pulse while nobody does, so a missing pulse means nothing then."""
    try:
        return not any(_is_somebody(record, since_ms) for record in _live_records(store))
    except RecordCorrupt:
        return False  # whoever has it may lose it


def _is_somebody(record: Stored | None, since_ms: int) -> bool:
    if isinstance(record, LockRecord):  # one that is parked is live, too; nobody can lose it
        return bool(record.line) or any(holder.since_ms < since_ms for holder in record.holders)
    return isinstance(record, SessionRecord) and record.since_ms < since_ms


def _live_records(store: Store) -> Iterator[Stored | None]:
    """Jobs, then sessions. The first pages are short: mostly one record is enough."""
    for prefix in (LOCK_PREFIX, SESSION_PREFIX):
        after, limit = "", 1
        while page := store.scan(prefix, after, limit, live=True):
            yield from [found.record for _, found in page]
            after, limit = page[-1][0], min(8 * limit, limits.LIST_PAGE_DEFAULT)


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


Answer = TypeVar("Answer")

_NEVER_MS = 2**62


class EngineThread:
    """Works on a thread of its own until it is stopped. `_work` ends when `_stopping` is set; `_wake` tells it so."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._stopping = False
        # A daemon: a store that never answers must not keep the process from ending.
        self._works = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._works.start()

    def stop(self, timeout_ms: int) -> bool:
        """End the work that was begun, and begin no more. False if that was not finished in time."""
        self._stopping = True
        self._wake.set()
        if self._works.is_alive():
            self._works.join(timeout_ms / 1000)
        return not self._works.is_alive()

    def _work(self) -> None:
        raise NotImplementedError


class Liveness(EngineThread):
    """Since when this server has not been able to serve, and since when it has. For any thread. It ticks on a thread of
    its own, so that a store that is slow is not taken for a process that was stopped.

    All times are of its steady clock. Times of the store are counted back from one that was just read."""

    def __init__(self, steady: Callable[[], int] = steady_ms, metrics: Metrics | None = None) -> None:
        super().__init__("dibs-liveness")
        self.steady = steady
        self._metrics = metrics or Metrics()
        self._lock = threading.Lock()
        self._ticked_ms = self._since_ms = steady()
        self._doubt_ms = -_NEVER_MS  # the beginning of the gap; before the start nobody vouches for anything
        self._later_doubt_ms = _NEVER_MS  # the same of gaps that the beat under way may not know of
        self._cut_off = False
        self._noted_ms = -_NEVER_MS
        self.calls: dict[object, int] = {}  # those that the store has not answered, and since when
        self._batch_ms = _NEVER_MS  # when the batch under way began
        self._grace_ms = self._grace_until_ms = -_NEVER_MS  # the beginning of short silences, and how long it counts

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait(limits.TICK_MS / 1000)
            self.tick()

    def tick(self) -> int:
        """This process runs. Returns the time."""
        now_ms = self.steady()
        since_ms = now_ms - self._ticked_ms
        if since_ms > limits.PULSE_LATE_MS:
            with self._lock:
                if now_ms - self._ticked_ms > limits.PULSE_LATE_MS:  # no other thread has noted it
                    self._metrics.add("stalls")
                    self._note_silence(self._ticked_ms, now_ms)
                    self._ticked_ms = now_ms
        elif since_ms > 0:
            self._ticked_ms = now_ms
        return now_ms

    def answered(self, asked_ms: int) -> None:
        now_ms = self.tick()
        if now_ms - asked_ms > limits.PULSE_LATE_MS:
            with self._lock:
                self._note_silence(asked_ms, now_ms)

    def failed(self, asked_ms: int) -> None:
        """The store failed: until it accepts a beat, nobody can renew at this server. A short silence before it belongs
        to the gap: those who could not renew in it had no time to since."""
        now_ms = self.tick()
        with self._lock:
            self._cut_off = True
            is_graced = asked_ms < self._grace_until_ms
            silent_ms = max(self._grace_ms, now_ms - limits.GRACE_MS_MAX) if is_graced else asked_ms
            self._note_gap(min(asked_ms, silent_ms), now_ms)

    def _note_silence(self, from_ms: int, until_ms: int) -> None:
        if until_ms - from_ms > limits.OUTAGE_MS_MIN:
            self._note_gap(from_ms, until_ms)
        else:
            self._give_grace(from_ms, until_ms)

    def _note_gap(self, from_ms: int, until_ms: int) -> None:
        self._doubt_ms = min(self._doubt_ms, from_ms)
        self._later_doubt_ms = min(self._later_doubt_ms, from_ms)
        self._since_ms = until_ms

    def _give_grace(self, from_ms: int, until_ms: int) -> None:
        self._grace_ms = min(self._grace_ms, from_ms) if until_ms < self._grace_until_ms else from_ms
        again_ms = min(until_ms - from_ms, limits.OUTAGE_MS_MIN)
        self._grace_until_ms = max(self._grace_until_ms, until_ms + again_ms)

    def has_gap(self) -> bool:
        """Return whether there was a gap that no beat has accounted for yet."""
        return self._doubt_ms != _NEVER_MS

    def beat_due_in_ms(self) -> int:
        if self.has_gap():
            return 0
        now_ms = self.steady()
        if now_ms - self._asked_ms() > limits.PULSE_LATE_MS:
            return limits.PULSE_MS
        return max(self._noted_ms + limits.PULSE_MS - now_ms, 0)

    def _asked_ms(self) -> int:
        """Return since when the store has not answered something."""
        return min(self.calls.copy().values(), default=_NEVER_MS)

    def began(self) -> None:
        """A batch is decided from now on. One at a time."""
        self._batch_ms = self.tick()

    def ended(self) -> None:
        now_ms = self.steady()
        if now_ms - self._batch_ms > limits.PULSE_LATE_MS:
            with self._lock:
                self._give_grace(self._batch_ms, now_ms)
        self._batch_ms = _NEVER_MS

    def vouch(self) -> Callable[[int], int]:
        """Call it before records are read, and what it returns with the time that was read with them: it says up to
        when this server vouches. A gap that is recorded meanwhile may not be in the records yet, so it still counts."""
        self.tick()
        before_ms = self._doubt_ms

        def vouched_ms(store_now_ms: int) -> int:
            now_ms = self.tick()
            known_ms = min(before_ms, self._doubt_ms, now_ms)
            if now_ms < self._grace_until_ms:
                known_ms = min(known_ms, max(self._grace_ms, now_ms - limits.GRACE_MS_MAX))
            waits_ms = min(self._batch_ms, self._asked_ms())
            if now_ms - waits_ms > limits.PULSE_LATE_MS:  # somebody has waited since then, and this may be a gap
                known_ms = min(known_ms, waits_ms)
            return max(0, store_now_ms - (now_ms - known_ms))

        return vouched_ms

    def gap(self, store_now_ms: int) -> tuple[int, int]:
        """Return when the gap began and ended, on the store's clock. A failure lasts until a beat is committed. What is
        still not answered may have been asked before the gap, and nobody could renew since then."""
        with self._lock:
            now_ms = self.steady()
            since_ms = now_ms if self._cut_off else self._since_ms
            doubt_ms = min(self._doubt_ms, self._asked_ms())
            return max(0, store_now_ms - (now_ms - doubt_ms)), store_now_ms - (now_ms - since_ms)

    def beating(self) -> Callable[[], None]:
        """Call it before a beat is made, and what it returns when the store has accepted it. One beat at a time."""
        self.tick()
        with self._lock:
            self._later_doubt_ms = _NEVER_MS

        def noted() -> None:
            self.tick()  # a stop in the commit came after what the beat says
            with self._lock:
                self._noted_ms = self.steady()
                self._doubt_ms = self._later_doubt_ms
                self._cut_off = self._cut_off and self.has_gap()

        return noted


class ObservedStore(StoreProxy):
    """A store whose answers are signs of life, and are counted. Pruning may take long, and says nothing."""

    def __init__(self, store: Store, liveness: Liveness, pace: Pace, metrics: Metrics) -> None:
        super().__init__(store)
        self._liveness = liveness
        self._pace = pace
        self._metrics = metrics

    def _ask(self, call: Callable[..., Answer], *args: object, **named: object) -> Answer:
        liveness, this = self._liveness, object()
        asked_ms = liveness.calls[this] = liveness.steady()
        try:
            answer = call(*args, **named)
            liveness.answered(asked_ms)
        except Busy:
            self._metrics.add("busy")
            raise
        except (Conflict, RecordCorrupt) as error:
            self._metrics.add("conflicts" if isinstance(error, Conflict) else "read_errors")
            liveness.answered(asked_ms)
            raise
        except (StoreUnavailable, StoreBroken):
            liveness.failed(asked_ms)
            if call == self.inner.commit:
                self._metrics.write_failed()
            else:
                self._metrics.add("read_errors")
            raise
        finally:
            liveness.calls.pop(this, None)  # not before the answer is noted: another thread may vouch meanwhile
        return answer

    # The proxy's way round costs two calls more, and every decision reads.
    def read(self, keys: Iterable[str]) -> Snapshot:
        return self._ask(self.inner.read, keys)

    def recall(self, keys: Iterable[str]) -> Snapshot:
        return self._ask(self.inner.recall, keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        began_us = self._metrics.writes()
        try:
            last_seq = self._ask(self.inner.commit, expect, puts, events)
        finally:
            took_us = stopwatch_us() - began_us
            self._pace.took(took_us)
            self._metrics.wrote(took_us)
        self._metrics.write_failed_us = 0
        return last_seq


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
