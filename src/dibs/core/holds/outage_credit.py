"""Credit for outages: how much later a deadline is. The promise `lease:outage-credit`.

Each outage that began while a hold was live, and ended before its owner was heard again, moves its deadline later,
because nobody could renew in that time. After such an outage the owner has one chance to renew, of min(ttl,
OUTAGE_CREDIT_MS_MAX). There is one chance, not one per outage. The whole credit since the last renewal is that chance,
plus the longest outage, plus at most OUTAGE_CREDIT_MS_MAX for all other outages. So a dead owner's job is late by a
bounded time, however often the server stalls.

How an outage is noticed and recorded is in `upkeep/outages.py`.
"""

from __future__ import annotations

from dibs.core.limits import OUTAGE_CREDIT_MS_MAX
from dibs.core.records import Outage


def credited_ms(expires_ms: int, renewed_ms: int, span_ms: int, outages: tuple[Outage, ...]) -> int:
    """The effective deadline of something renewed for `span_ms`, given the outages. Never before `expires_ms`. Credit
    is computed from the renewal and not from `expires_ms`, which may include earlier credit."""
    if not outages:
        return expires_ms
    due_ms = deadline_ms = renewed_ms + span_ms
    chance_ms = min(span_ms, OUTAGE_CREDIT_MS_MAX)
    lost_ms = longest_ms = 0
    for outage in outages:
        if renewed_ms < outage.ended_ms and outage.began_ms < deadline_ms:
            here_ms = min(outage.lost(), outage.ended_ms - renewed_ms)
            lost_ms += here_ms
            longest_ms = max(longest_ms, min(outage.longest(), here_ms))
            credit_ms = min(lost_ms, longest_ms + OUTAGE_CREDIT_MS_MAX)
            deadline_ms = max(deadline_ms, min(outage.ended_ms, due_ms + credit_ms) + chance_ms)
    return max(expires_ms, deadline_ms)
