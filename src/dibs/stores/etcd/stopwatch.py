"""Readings of etcd's stopwatch, and how far two of them agree with our own clock (`clock.py`). Needs no hpack: a build
imports the modules that have records.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.limits import ETCD_CLOCK_MS_MAX

SECOND_MS = 1_000
DRIFT_PARTS = 1_000  # steady clocks may differ by one part in a thousand


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
