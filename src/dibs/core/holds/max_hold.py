"""The ceiling of a hold, which nothing moves: the promise `max-hold`.

A claim may say how long its hold may last at most (`max_hold`), and so may its token and its server: the least of them
counts. The ceiling (`Holder.ends_ms`, 0 without one) is set when the job is granted and stays. No renewal, repeated
claim, session or outage credit goes past it. A transfer keeps it: who may hold for two hours cannot go on by handing
the job to itself. It is compared with the time itself and not with what servers vouch for (`expiry.py`), because no
renewal that was missed could have moved it.
"""

from __future__ import annotations

from dibs.core.caller_rights import Caller
from dibs.core.records import MAX_HOLD


def max_hold_ms(caller: Caller, asked_ms: int = 0) -> int:
    """The least of the ceilings of a claim: its own, its token's, and its server's. 0: there is none."""
    ceilings = (asked_ms, caller.limits.hold_seconds * 1000, caller.max_hold_ms)
    return min([each for each in ceilings if each], default=0)


def ends_at_ms(max_ms: int, now_ms: int) -> int:
    """The ceiling of a hold that is granted now."""
    return now_ms + max_ms if max_ms else 0


def capped_ms(deadline: int, ends_ms: int) -> int:
    """A deadline that does not go past the ceiling."""
    return min(deadline, ends_ms) if ends_ms else deadline


def is_reached(ends_ms: int, at_ms: int) -> bool:
    return 0 < ends_ms <= at_ms


def reason_of(ends_ms: int, at_ms: int) -> str | None:
    """The word in the history for a hold that was lost at its ceiling. None: nobody renewed it."""
    return MAX_HOLD if is_reached(ends_ms, at_ms) else None
