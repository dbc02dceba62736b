"""Bounds how many requests a second a principal may send to this server: a token bucket for each principal with a
limit. It holds one second's worth. Heartbeats and releases are charged but never refused: a principal that asks too
much must not lose its leases. Each server counts for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError
from dibs.engine.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.identity import Caller

# Never refused.
_KEEPING = frozenset(("renew", "release", "leave", "session-keep", "session-end"))
BUCKETS_MAX = 10_000


class RateLimited(DibsError):
    """More requests in a second than the token allows."""

    code = "rate_limited"

    def __init__(self, details: str, retry_after_ms: int) -> None:
        super().__init__(details)
        self.retry_after_ms = retry_after_ms


class RequestRates:
    """For one event loop."""

    def __init__(self, steady: Callable[[], int] = steady_ms, metrics: Metrics | None = None) -> None:
        self._steady = steady
        self._metrics = metrics or Metrics()
        self._buckets: dict[tuple[str, str | None], tuple[int, int]] = {}  # milli-requests left, and when

    def charge(self, caller: Caller, verb: str) -> None:
        """Count one request; raise RateLimited if it is one too many."""
        rate = caller.limits.rate
        if not rate:
            return
        now_ms = self._steady()
        key = (caller.principal, caller.namespace)
        left, then_ms = self._buckets.get(key, (rate * 1000, now_ms))
        left = min(rate * 1000, left + (now_ms - then_ms) * rate)
        if left < 1000 and verb not in _KEEPING:
            self._buckets[key] = (left, now_ms)
            self._metrics.rate_limited += 1
            raise RateLimited(
                f"This token may send {rate} requests a second to a server. Ask again a little later.",
                max(1, -(-(1000 - left) // rate)),
            )
        if len(self._buckets) >= BUCKETS_MAX and key not in self._buckets:
            self._buckets.clear()  # principals come and go; a new entry has a full bucket
        self._buckets[key] = (max(left - 1000, -rate * 1000), now_ms)
