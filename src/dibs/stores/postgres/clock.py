"""The store's time: the database's wall clock, made fit for leases.

    time = the larger of: wall clock + offset, and the time of the latest decision

Both numbers are in the one row of the table `state`. Wall clocks can be stepped, and after a failover the clock is
another machine's. Two rules protect leases from that:

- **Backwards.** Time stops at the highest known time, and the next commit moves the offset so that time continues
  from there. Leases last that much longer; a live server commits several times a second.
- **Forwards.** Every process compares each answer with its own steady clock. If the store's time advanced more, by
  more than a tolerance, that is a step: the process subtracts it from the offset, before it decides anything. The
  comparison gives the store the benefit of the whole round trip. The time of a decision is never taken back.

A process that was started after the step cannot notice it. A running server corrects it within a few hundred
milliseconds. If no server ran during the step, the next server treats it as an outage, for which leases get credit.

A decision by remembered records asks nobody for the time. It goes by the last answer, and by the steady time since: the
store's time is not less. A commit writes down the time of its decision, so it is never taken back, either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dibs.base import clock

TOLERANCE_MS = 50
SLOWEST = 1_000  # plus one in a thousand: steady clocks of two machines differ by far less
ANSWER_MS = 2_000  # for how long the time is known without a question; a server that works asks far more often
ANCHOR_MS = 60_000  # how long one comparison is used; then the tolerance starts again


class StepWatch:
    """Detects that the store's time ran ahead of this process's steady clock. For any thread."""

    def __init__(self, steady_ms: Callable[[], int] = clock.steady_ms) -> None:
        self.steady_ms = steady_ms
        self._lock = threading.Lock()
        self._ahead_ms: int | None = None  # store time minus steady time, the lowest value seen
        self._since_ms = 0
        self.last_ms = 0  # the highest time returned so far
        self._answer: tuple[int, int] | None = None  # the store's time in the last answer, and when that came

    def expected_ms(self, store_ms: int, asked_ms: int) -> int | None:
        """None if `store_ms`, read at `asked_ms`, is possible. Otherwise the latest possible time."""
        with self._lock:
            got_ms = self.steady_ms()
            if self._ahead_ms is not None:
                passed_ms = max(0, got_ms - self._since_ms)
                latest_ms = self._ahead_ms + got_ms
                if store_ms > latest_ms + TOLERANCE_MS + passed_ms // SLOWEST:
                    return max(latest_ms, self.last_ms)
            ahead_ms = store_ms - asked_ms
            if self._ahead_ms is None or ahead_ms < self._ahead_ms or got_ms - self._since_ms > ANCHOR_MS:
                self._ahead_ms, self._since_ms = ahead_ms, asked_ms
            self._answer = (store_ms, got_ms)
            return None

    def handed_out(self, store_ms: int) -> int:
        """The time to return to the caller: never less than before."""
        with self._lock:
            self.last_ms = max(self.last_ms, store_ms)
            return self.last_ms

    def now_ms(self) -> int | None:
        """The time, without a question to the store. None: its last answer is too long ago."""
        if self._answer is None:
            return None
        store_ms, got_ms = self._answer
        passed_ms = self.steady_ms() - got_ms
        return self.handed_out(store_ms + passed_ms) if 0 <= passed_ms < ANSWER_MS else None
