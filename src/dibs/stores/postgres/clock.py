"""The store's time: the database's wall clock, made fit for leases.

    time = the larger of: wall clock + offset, and the highest time that anything was decided on

Both numbers are in the one row of the table `state`. Wall clocks are stepped, and after a failover it is another
machine's clock. Two rules keep that away from leases:

- **Backwards.** Time stands at the highest time known, and the next commit moves the offset so that it goes on from
  there. Leases last longer by what was lost; a live server commits several times a second.
- **Forwards.** Every process holds each answer against its own steady clock. Time that passed faster there than here,
  by more than a tolerance, is a step: the process takes it out of the offset, before it decides anything. The
  comparison is in favour of the store: of the trip there and back, all of it may have been on either side. Time that
  was decided on already is never taken back.

A process that was started after the step cannot know of it. While a server lives, the server has corrected it within
its next few hundred milliseconds. If nobody lived through it, a server that starts takes it for an outage, for which
leases are given credit.
"""

from __future__ import annotations

import threading

from dibs import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCE_MS = 50
SLOWEST = 1_000  # and one in a thousand: steady clocks of two machines differ by far less
ANCHOR_MS = 60_000  # how long one comparison holds; a slew that hides in the tolerance begins anew then


class StepWatch:
    """Tells whether the store's time ran ahead of this process's steady clock. For any thread."""

    def __init__(self, steady_ms: Callable[[], int] = clock.steady_ms) -> None:
        self.steady_ms = steady_ms
        self._lock = threading.Lock()
        self._ahead_ms: int | None = None  # store time less steady time, as little as was seen
        self._since_ms = 0
        self._last_ms = 0

    def expected_ms(self, store_ms: int, asked_ms: int) -> int | None:
        """None if `store_ms`, asked for at `asked_ms`, can be true. Else the latest time that it can be."""
        with self._lock:
            got_ms = self.steady_ms()
            if self._ahead_ms is not None:
                passed_ms = max(0, got_ms - self._since_ms)
                latest_ms = self._ahead_ms + got_ms
                if store_ms > latest_ms + TOLERANCE_MS + passed_ms // SLOWEST:
                    return max(latest_ms, self._last_ms)
            ahead_ms = store_ms - asked_ms
            if self._ahead_ms is None or ahead_ms < self._ahead_ms or got_ms - self._since_ms > ANCHOR_MS:
                self._ahead_ms, self._since_ms = ahead_ms, asked_ms
            return None

    def handed_out(self, store_ms: int) -> int:
        """The time to hand out: never less than before."""
        with self._lock:
            self._last_ms = max(self._last_ms, store_ms)
            return self._last_ms

    @property
    def last_ms(self) -> int:
        """The highest time that was handed out here."""
        return self._last_ms
