"""When a delivery that failed is tried again, and when its target as a whole is.

A delivery that failed rests for longer each time. A target is trusted once a delivery succeeded. Before that, and if
WEBHOOK_FAILURES_MAX deliveries in a row failed, one delivery at a time is tried, and the target rests as a whole, for
longer each time. A target that says how long it wants to rest is left alone for so long, WEBHOOK_REST_MS_MAX at most;
only a replay ends that rest earlier.

Time and random fractions are arguments.
"""

from __future__ import annotations

from dibs.core.limits import (
    WEBHOOK_FAILURES_MAX,
    WEBHOOK_PAUSE_MS_MAX,
    WEBHOOK_PAUSE_MS_MIN,
    WEBHOOK_REST_MS_MAX,
)


def pause_ms(tries: int, fraction: float) -> int:
    """How long a delivery rests after so many tries: twice as long each time, and a random part of the last half."""
    longest_ms = min(WEBHOOK_PAUSE_MS_MIN * 2 ** min(tries - 1, 30), WEBHOOK_PAUSE_MS_MAX)
    return int(longest_ms * (1 + fraction) / 2)


def rest_ms(tries: int, fraction: float, asked_ms: int) -> int:
    """The same of a target that asked for a rest: never shorter."""
    return max(pause_ms(tries, fraction), min(asked_ms, WEBHOOK_REST_MS_MAX))


class TargetBackoff:
    """What is known of one target. `asked_until_ms` is stored with the progress of its webhook."""

    __slots__ = ("_until_ms", "asked_until_ms", "has_succeeded", "row")

    def __init__(self, asked_until_ms: int) -> None:
        self.row = 0  # failures since the last success
        self.has_succeeded = False
        self.asked_until_ms = (
            asked_until_ms  # not tried before, because it asked for it: a success does not end it
        )
        self._until_ms = 0  # not tried before

    @property
    def is_trusted(self) -> bool:
        """Whether it answers, as far as is known."""
        return self.has_succeeded and not self.is_down

    @property
    def is_down(self) -> bool:
        return self.row >= WEBHOOK_FAILURES_MAX

    @property
    def until_ms(self) -> int:
        """Nothing is sent before."""
        return max(self._until_ms, self.asked_until_ms)

    def succeeded(self) -> None:
        self.row, self._until_ms, self.has_succeeded = 0, 0, True

    def failed(self, at_ms: int, fraction: float, asked_ms: int) -> None:
        self.row += 1
        if self.is_down:
            self._until_ms = at_ms + pause_ms(self.row - WEBHOOK_FAILURES_MAX + 1, fraction)
        if asked_ms > 0:
            asked_until_ms = at_ms + min(asked_ms, WEBHOOK_REST_MS_MAX)
            self.asked_until_ms = max(self.asked_until_ms, asked_until_ms)

    def end_rest(self) -> None:
        """It is to be tried now."""
        self._until_ms = self.asked_until_ms = 0
