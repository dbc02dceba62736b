"""OctoStore's /metrics: the same numbers as for Prometheus, in the form that its clients know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core import events
from dibs.engine.metrics import RequestCounts

if TYPE_CHECKING:
    from typing import Any

    from dibs.server.annexes import Contract
    from dibs.server.monitor.metric_table import Scrape


# OctoStore's endpoint for each of dibs' operations.
_ENDPOINTS = {
    **{verb: verb for verb in ("acquire", "release", "renew", "list")},
    "inspect": "status",
    **dict.fromkeys(("register", "token-rotate-own"), "auth"),
    **dict.fromkeys(("election-open", "campaign", "election-renew", "resign"), "election"),
    **dict.fromkeys(("election-show", "election-watch"), "election"),
}


def metrics_document(scrape: Scrape, users: int, contract: Contract | None = None) -> dict[str, Any]:
    """With a contract: without the operations that OctoStore does not have."""
    metrics = scrape.metrics
    endpoints = _by_endpoint(metrics.requests, only_its_own=contract is not None)
    uptime_ms = max(scrape.engine.uptime_ms(), 1)
    requests = sum(counts.count for counts in list(metrics.requests.values()))
    return {
        "uptime_seconds": uptime_ms // 1000,
        "total_requests": requests,
        "requests_per_second": round(requests * 1000 / uptime_ms, 2),
        "active_locks": scrape.engine.tally.live,
        "total_users": users,
        "endpoints": {verb: _endpoint(counts) for verb, counts in sorted(endpoints.items())},
        "lock_store": {
            "total_acquires": metrics.events[events.ACQUIRED],
            "total_releases": metrics.events[events.RELEASED],
            "total_expirations": metrics.events[events.EXPIRED],
            "cache_hits": 0,  # never counted there, either
            "cache_misses": 0,
        },
        "memory_bytes": scrape.process.resident_bytes,
    }


def _by_endpoint(requests: dict[str, RequestCounts], *, only_its_own: bool) -> dict[str, RequestCounts]:
    """OctoStore's endpoints, which are always there, and those of dibs' operations that it does not have."""
    found = {name: RequestCounts() for name in dict.fromkeys(_ENDPOINTS.values())}
    for verb, counts in list(requests.items()):
        name = _ENDPOINTS.get(verb)
        if name is not None:
            found[name].include(counts)
        elif verb not in found and not only_its_own:
            found[verb] = counts
    return found


def _endpoint(counts: RequestCounts) -> dict[str, Any]:
    """Times in milliseconds, of which the least and the most are whole ones. Percentiles are the upper bounds of
    buckets."""
    durations, count = counts.durations, max(counts.count, 1)
    return {
        "count": counts.count,
        "errors": counts.errors,
        "avg_ms": _ms(durations.total / count),
        "min_ms": int(min(counts.min_s, counts.max_s) * 1000),
        "max_ms": int(counts.max_s * 1000),
        "p50_ms": _ms(durations.quantile(0.5)),
        "p95_ms": _ms(durations.quantile(0.95)),
        "p99_ms": _ms(durations.quantile(0.99)),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
