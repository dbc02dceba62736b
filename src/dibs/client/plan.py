"""When to say next that one is alive, and from when on to take what one holds for lost. The promise `loss:told`.

The store counts time from when it heard of it, which is after we began to say so. So whoever counts from before
sending, on a clock that nobody can step, knows of the end before anybody else may own. How long it takes to stop the
work is taken off as well.
"""

from __future__ import annotations

RETRY_MS = 1_000
SLACK_MS = 500


class RenewalPlan:
    """Times only. `stop_ms` is what it takes to stop the work once what is kept is lost."""

    def __init__(self, ttl_ms: int, sent_ms: int, stop_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self._stop_ms = stop_ms
        self.next_ms = self.lost_ms = 0
        self.kept(sent_ms)

    @property
    def call_ms(self) -> int:
        """How long one attempt may take, so that there is time for another."""
        return self.ttl_ms // 6

    def kept(self, sent_ms: int, *, ttl_ms: int | None = None, jitter: float = 0.0) -> None:
        """What was sent at `sent_ms` was answered with yes: for another `ttl_ms`, the same as before if not said.

        `jitter`, 0 to 1, brings the next time forward by up to a quarter: those who began together drift apart."""
        ttl_ms = self.ttl_ms if ttl_ms is None else ttl_ms
        third_ms = min(ttl_ms, self.ttl_ms) // 3
        self.next_ms = sent_ms + third_ms - int(third_ms * jitter / 4)
        self.lost_ms = sent_ms + ttl_ms - self._stop_ms

    def failed(self, now_ms: int) -> None:
        """It is not known whether it was heard."""
        self.next_ms = now_ms + min(RETRY_MS, self.ttl_ms // 12)

    def left_ms(self, now_ms: int) -> int:
        """Until something is due: to say that one is alive, or to give up."""
        return max(0, min(self.next_ms, self.lost_ms) - now_ms)


def ttl_ms_min(stop_ms: int) -> int:
    """The least TTL, in whole seconds, that leaves time for the first renewal before it is time to stop: a second, or a
    quarter of a short TTL. The renewal is due after a third."""
    least_ms = stop_ms * 12 // 5
    if least_ms >= 4 * RETRY_MS:
        least_ms = (stop_ms + RETRY_MS) * 3 // 2
    return max(1_000, -(-least_ms // 1_000) * 1_000)


def stop_ms_default(ttl_ms: int, wanted_ms: int, slack_ms: int) -> int:
    """How long stopping may take where nobody says: as long as is wanted, or what a short TTL has time for."""
    return wanted_ms if ttl_ms >= ttl_ms_min(wanted_ms + slack_ms) else ttl_ms // 4


def slack_ms(ttl_ms: int) -> int:
    """For the system to be done with what was killed."""
    return min(SLACK_MS, ttl_ms // 8)
