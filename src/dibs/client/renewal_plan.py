"""Plans renewals: the times to renew, and to treat a hold as lost. The promise `loss:told`.

The store counts from when it received the renewal, after it was sent. An owner that counts from before sending, on a
steady clock, knows of the end before anybody else can own the job. The time to stop the work is subtracted.
"""

from __future__ import annotations

RETRY_MS = 1_000
CEILING_REACHED = "it reached the longest time that it may last (max_hold)"
# A busy machine took 600 ms to kill and reap a command.
SLACK_MS = 1_000


class RenewalPlan:
    """Times only. `stop_ms` is how long it takes to stop the work after a loss."""

    def __init__(self, ttl_ms: int, sent_ms: int, stop_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self._stop_ms = stop_ms
        self.next_ms = self.lost_ms = 0
        self.kept(sent_ms)

    @property
    def call_ms(self) -> int:
        """Return how long one renewal may take, so that there is time for another."""
        return self.ttl_ms // 6

    def kept(self, sent_ms: int, *, ttl_ms: int | None = None, jitter: float = 0.0) -> None:
        """The renewal sent at `sent_ms` succeeded, for another `ttl_ms` (default: as before). `jitter`, 0 to 1, makes
        the next renewal earlier by up to a quarter, so that holds that began together spread out."""
        ttl_ms = self.ttl_ms if ttl_ms is None else ttl_ms
        third_ms = min(ttl_ms, self.ttl_ms) // 3
        self.next_ms = sent_ms + third_ms - int(third_ms * jitter / 4)
        self.lost_ms = sent_ms + ttl_ms - self._stop_ms

    def failed(self, now_ms: int) -> None:
        """A renewal failed, or its result is unknown."""
        self.next_ms = now_ms + min(RETRY_MS, self.ttl_ms // 12)

    @property
    def look_ms(self) -> int:
        """Return when there is something to do: the next renewal, or the deadline."""
        return min(self.next_ms, self.lost_ms)

    def left_ms(self, now_ms: int) -> int:
        return max(0, self.look_ms - now_ms)


def ttl_ms_min(stop_ms: int) -> int:
    """The least TTL, in whole seconds, that leaves time for the first renewal before the work must be stopped: a
    second, or a quarter of a short TTL. The renewal is due after a third of the TTL."""
    least_ms = stop_ms * 12 // 5
    if least_ms >= 4 * RETRY_MS:
        least_ms = (stop_ms + RETRY_MS) * 3 // 2
    return max(1_000, -(-least_ms // 1_000) * 1_000)


def stop_ms_default(ttl_ms: int, wanted_ms: int, slack_ms: int) -> int:
    """The default time for stopping: the wanted time, or less with a short TTL."""
    return wanted_ms if ttl_ms >= ttl_ms_min(wanted_ms + slack_ms) else ttl_ms // 4


def slack_ms(ttl_ms: int) -> int:
    """Extra time for the system to end killed processes."""
    return min(SLACK_MS, ttl_ms // 8)
