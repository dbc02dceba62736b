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
from collections.abc import Callable

from dibs.base.clock import steady_ms
from dibs.core import limits
from dibs.engine.metrics import Metrics
from dibs.engine.thread import EngineThread

_NEVER_MS = 2**62


class Silence:
    """A time in which nobody could renew at this server, on its steady clock. It does not change, so that any thread
    reads beginning and end of the same one."""

    __slots__ = ("from_ms", "until_ms")

    def __init__(self, from_ms: int, until_ms: int) -> None:
        self.from_ms = from_ms
        self.until_ms = until_ms


def _with(gap: Silence | None, from_ms: int, until_ms: int) -> Silence:
    """Return the gap that a silence belongs to: one that nobody has accounted for, or a new one."""
    return Silence(from_ms if gap is None else min(gap.from_ms, from_ms), until_ms)


class Liveness(EngineThread):
    """Knows since when this server can serve, and when it could not. For any thread. It ticks on a thread of its own,
    so that a slow store is not taken for a process that was stopped.

    All times are of its steady clock. Times of the store are counted back from one that was just read."""

    def __init__(self, steady: Callable[[], int] = steady_ms, metrics: Metrics | None = None) -> None:
        super().__init__("dibs-liveness")
        self.steady = steady
        self._metrics = metrics or Metrics()
        self._lock = threading.Lock()
        self._ticked_ms = now_ms = steady()
        # The gap that no beat has accounted for; before the start nobody vouches for anything.
        self._gap: Silence | None = Silence(-_NEVER_MS, now_ms)
        self._later_gap: Silence | None = None  # as much of it as the beat under way may not know of
        self._is_cut_off = False  # the store failed, and has accepted no beat since
        self._grace = Silence(-_NEVER_MS, -_NEVER_MS)  # where short silences began, and until when they count
        self._beat_ms = -_NEVER_MS  # when the last beat was accepted
        self.calls: dict[object, int] = {}  # those that the store has not answered, and since when
        self._batch_ms = _NEVER_MS  # when the batch under way began

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait(limits.TICK_MS / 1000)
            self.tick()

    # Signs of life, and what is concluded from their absence.

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
        to the gap: owners that could not renew during the silence had no time to do so since."""
        now_ms = self.tick()
        with self._lock:
            self._is_cut_off = True
            self._note_gap(min(asked_ms, self._graced_from_ms(asked_ms, now_ms)), now_ms)

    def began(self) -> None:
        """A batch is decided from now on. One at a time."""
        self._batch_ms = self.tick()

    def ended(self) -> None:
        now_ms = self.steady()
        if now_ms - self._batch_ms > limits.PULSE_LATE_MS:
            with self._lock:
                self._give_grace(self._batch_ms, now_ms)
        self._batch_ms = _NEVER_MS

    def _note_silence(self, from_ms: int, until_ms: int) -> None:
        if until_ms - from_ms > limits.OUTAGE_MS_MIN:
            self._note_gap(from_ms, until_ms)
        else:
            self._give_grace(from_ms, until_ms)

    def _note_gap(self, from_ms: int, until_ms: int) -> None:
        self._gap = _with(self._gap, from_ms, until_ms)
        self._later_gap = _with(self._later_gap, from_ms, until_ms)

    def _give_grace(self, from_ms: int, until_ms: int) -> None:
        before = self._grace
        again_ms = min(until_ms - from_ms, limits.OUTAGE_MS_MIN)
        self._grace = Silence(
            min(before.from_ms, from_ms) if until_ms < before.until_ms else from_ms,
            max(before.until_ms, until_ms + again_ms),
        )

    def _graced_from_ms(self, at_ms: int, now_ms: int) -> int:
        """Return when the short silences began that still count at that time; that time itself if none does."""
        grace = self._grace
        return max(grace.from_ms, now_ms - limits.GRACE_MS_MAX) if at_ms < grace.until_ms else at_ms

    def _asked_ms(self) -> int:
        """Return since when the store has not answered something."""
        return min(self.calls.copy().values(), default=_NEVER_MS)

    # What this server vouches for.

    def vouch(self) -> Callable[[int], int]:
        """Call it before records are read, and what it returns with the time that was read with them: it says up to
        when this server vouches. A gap that is recorded meanwhile may not be in the records yet, so it still counts."""
        self.tick()
        before = self._gap

        def vouched_ms(store_now_ms: int) -> int:
            now_ms = self.tick()
            known_ms = self._graced_from_ms(now_ms, now_ms)
            for gap in (before, self._gap):
                if gap is not None:
                    known_ms = min(known_ms, gap.from_ms)
            waits_ms = min(self._batch_ms, self._asked_ms())
            if now_ms - waits_ms > limits.PULSE_LATE_MS:  # somebody has waited since then, and this may be a gap
                known_ms = min(known_ms, waits_ms)
            return max(0, store_now_ms - (now_ms - known_ms))

        return vouched_ms

    # Beats, which account for gaps.

    def has_gap(self) -> bool:
        """Return whether there was a gap that no beat has accounted for yet."""
        return self._gap is not None

    def gap(self, store_now_ms: int) -> tuple[int, int]:
        """Return when the gap began and ended, on the store's clock; `has_gap` must have said that there is one. A
        failure lasts until a beat is committed. A call that is still not answered may have begun before the gap, and
        nobody could renew since then."""
        with self._lock:
            now_ms, gap = self.steady(), self._gap
            assert gap is not None
            from_ms = min(gap.from_ms, self._asked_ms())
            until_ms = now_ms if self._is_cut_off else gap.until_ms
            return max(0, store_now_ms - (now_ms - from_ms)), store_now_ms - (now_ms - until_ms)

    def beat_due_in_ms(self) -> int:
        if self.has_gap():
            return 0
        now_ms = self.steady()
        if now_ms - self._asked_ms() > limits.PULSE_LATE_MS:
            return limits.PULSE_MS
        return max(self._beat_ms + limits.PULSE_MS - now_ms, 0)

    def beating(self) -> Callable[[], None]:
        """Call it before a beat is made, and what it returns when the store has accepted it. One beat at a time."""
        self.tick()
        with self._lock:
            self._later_gap = None

        def noted() -> None:
            self.tick()  # a stop in the commit came after what the beat says
            with self._lock:
                self._beat_ms = self.steady()
                self._gap = self._later_gap
                self._is_cut_off = self._is_cut_off and self.has_gap()

        return noted
