"""The store's time, without anybody's wall clock.

etcd has no clock that can be read, but it counts: a lease of etcd (nothing to do with leases of dibs) says how much of
its time is left, in whole seconds of the leader's steady clock. One such lease, made once and practically endless, is
the **stopwatch**. Three keys:

    time        the time of the latest decision. Every commit raises it, every read reads it.
    stopwatch   the lease's id, and what the store's time was when it was started
    boot/ID     for one boot of one machine: the offset of its steady clock to the store's time

A process computes its first time from these, and continues by its own steady clock. Its time is the highest of these:
`time`; the stopwatch (its start plus the seconds that surely passed); the note of its boot. None of them can be ahead
of the time that really passed, as long as steady clocks are steady. The first process of a boot has no note. It waits
for the moment in which the stopwatch counts up, up to a second, and so knows the time to a few milliseconds: a process
that is behind the others gives leases that are over early for them. A wall clock is read once, when the prefix is first
used; a wrong or changed wall clock moves no lease.

**The guard.** Every CHECK_MS the process compares how far its own clock and the stopwatch came since the last check,
and over the last minutes. If they differ by more than the tolerance, one of the two is wrong: the process refuses to
decide anything, says so, and afterwards uses the stopwatch alone. A note of a boot is trusted only if it passes the
same check. A change of etcd's leader restarts the stopwatch. Then it shows less time than has passed, and is not used
for this check.
"""

from __future__ import annotations

from _thread import allocate_lock

from dibs.base.record import Record
from dibs.core.limits import ETCD_CLOCK_MS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHECK_MS = 2_000
RECOVER_MS = 30_000  # a clock that ran too fast is watched for so long before it is trusted again
UNCOUNTED_MS = 10_000  # for how long our own clock alone is trusted, while etcd changes its leader
BASE_MS = 600_000  # over how long small differences add up before the comparison starts again
SECOND_MS = 1_000
DRIFT_PARTS = 1_000  # steady clocks may differ by one in so many


class StopwatchReading(Record):
    """One reading of the stopwatch: our steady clock at that moment, and the value."""

    before_ms: int
    after_ms: int
    elapsed_s: int
    lease: str
    term: str


class BootNote(Record):
    """The offset of one boot's steady clock to the store's time, and the reading that it came from."""

    offset_ms: int
    reading: StopwatchReading

    def agrees_with(self, reading: StopwatchReading) -> bool:
        """Return whether the machine's clock and the stopwatch ran alike since the note was made."""
        return difference_ms(self.reading, reading) == 0


def difference_ms(old: StopwatchReading, new: StopwatchReading) -> int | None:
    """Return how much more our clock advanced than the stopwatch between two readings; negative: less. 0 within the
    tolerance. None: the two cannot be compared."""
    if (old.lease, old.term) != (new.lease, new.term):
        return None
    ours_min, ours_max = new.before_ms - old.after_ms, new.after_ms - old.before_ms
    counted = (new.elapsed_s - old.elapsed_s) * SECOND_MS
    tolerance = ETCD_CLOCK_MS_MAX + max(0, counted) // DRIFT_PARTS
    if ours_min > counted + SECOND_MS + tolerance:
        return ours_min - counted
    if ours_max < counted - SECOND_MS - tolerance:
        return ours_max - counted
    return 0


class EtcdClock:
    """One per connection. It does no I/O: `store_time.py` gives it what it reads from etcd."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self.steady_ms = steady_ms
        self._lock = allocate_lock()
        self._offset_ms: int | None = None
        self._last_ms = 0
        self._base: StopwatchReading | None = None
        self._newest: StopwatchReading | None = None
        self._distrusted_until_ms = 0

    @property
    def is_set(self) -> bool:
        return self._offset_ms is not None

    def is_trusted(self) -> bool:
        """Return whether it has run well for long enough since its last fault."""
        return self.steady_ms() >= self._distrusted_until_ms

    def begin(self, mark_ms: int, started_ms: int, reading: StopwatchReading | None, note: BootNote | None) -> bool:
        """Set the clock from the data in etcd. False if the boot's note is unusable and must be written again."""
        at_ms = self.steady_ms() if reading is None else reading.after_ms
        self._base = self._newest = reading
        if reading is not None and note is not None and note.agrees_with(reading):
            self._set(max(mark_ms, note.offset_ms + at_ms), at_ms)
            self._follow_stopwatch(started_ms, reading)
            return True
        counted_ms = 0 if reading is None else _surely_passed(started_ms, reading)
        self._set(max(mark_ms, counted_ms), at_ms)
        return False

    def note(self) -> BootNote | None:
        """The note for other processes of this boot."""
        if self._newest is None or self._offset_ms is None:
            return None
        return BootNote(offset_ms=self._offset_ms, reading=self._newest)

    def check_is_due(self) -> bool:
        return self._newest is None or not 0 <= self.steady_ms() - self._newest.after_ms < CHECK_MS

    def check(self, mark_ms: int, started_ms: int, reading: StopwatchReading | None) -> int:
        """Compare with the stopwatch. Returns by how much our clock is too fast; below 0: too slow; 0: neither. A clock
        that was too fast uses only etcd's data afterwards, and is not trusted for RECOVER_MS."""
        base, newest, self._newest = self._base, self._newest, reading
        if reading is None or base is None or newest is None:
            self._base = reading
            return 0
        off_ms = difference_ms(newest, reading) or difference_ms(base, reading) or 0
        if off_ms > 0:
            # Times returned since the last good check may have been too high. They are not returned again.
            self._last_ms = 0
            self._base = reading
            self._distrusted_until_ms = reading.after_ms + RECOVER_MS
            self._set(max(mark_ms, _surely_passed(started_ms, reading)), reading.after_ms)
            return off_ms
        if off_ms < 0:
            self._base, self._distrusted_until_ms = reading, reading.after_ms
        elif difference_ms(newest, reading) is None:
            self._base = reading
            self._bound_what_nobody_counted(mark_ms, newest, reading)
        elif reading.after_ms - base.after_ms > BASE_MS:
            self._base = reading
        self._follow_stopwatch(started_ms, reading)
        return off_ms

    def _bound_what_nobody_counted(self, mark_ms: int, old: StopwatchReading, new: StopwatchReading) -> None:
        """The leader has changed: only our clock says how long that took, and it is trusted for a short time only."""
        assert self._offset_ms is not None
        if new.after_ms - old.after_ms > UNCOUNTED_MS:
            self._last_ms = 0
            self._set(max(mark_ms, self._offset_ms + old.after_ms + UNCOUNTED_MS), new.after_ms)

    def saw(self, mark_ms: int) -> None:
        """Another process decided at this time."""
        with self._lock:
            if mark_ms > self._now_ms():
                self._set(mark_ms, self.steady_ms())

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms()

    def _now_ms(self) -> int:
        assert self._offset_ms is not None, "the clock was not set"
        self._last_ms = max(self._last_ms, self._offset_ms + self.steady_ms())
        return self._last_ms

    def _set(self, now_ms: int, at_ms: int) -> None:
        self._offset_ms = now_ms - at_ms

    def _follow_stopwatch(self, started_ms: int, reading: StopwatchReading) -> None:
        counted_ms = _surely_passed(started_ms, reading)
        if self._offset_ms is not None and counted_ms > self._offset_ms + reading.after_ms:
            self._set(counted_ms, reading.after_ms)


def _surely_passed(started_ms: int, reading: StopwatchReading) -> int:
    """The lower bound of the store's time by the stopwatch. etcd counts a second that has begun. So the bound is the
    time itself in the moment in which the count goes up."""
    return started_ms + max(0, reading.elapsed_s - 1) * SECOND_MS
