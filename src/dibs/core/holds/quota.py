"""Limits of a principal, and what it has. The promise `quota`. Each hold, place or session of such a principal is
charged to its usage record in the same decision. It carries the charge: which record, and which count of it. Every rule
that ends it gives the charge back. So the record is right, because no rule can do one without the other. A principal
without a limit costs nothing: its holds carry no charge, and no record is read for it. `recount.py` counts anew; a
charge of an older count gives nothing back.
"""

from __future__ import annotations

from dibs.core.commands import AcquireTerms, OpenSession
from dibs.core.draft import Draft
from dibs.core.outcomes import QuotaExceeded, TooMany
from dibs.core.records import USAGE_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.service.credentials import Usage


# What is counted of a principal.
HELD, WAITING, SESSIONS = "held", "waiting", "sessions"


def take_quota(draft: Draft, payer: str | None, what: str) -> str | None:
    """Count one more of HELD, WAITING or SESSIONS. Returns the `charge` to keep."""
    if payer is None:
        return None
    usage = usage_of(draft, payer)
    draft.write(USAGE_PREFIX + payer, _counted(usage, what, 1))
    return f"{usage.count}/{payer}"


def return_quota(draft: Draft, quota: str | None, what: str) -> None:
    if quota is None:
        return
    count, _, payer = quota.partition("/")
    usage = usage_of(draft, payer)
    left = _counted(usage, what, -1)
    if str(usage.count) == count and left != usage:
        draft.write(USAGE_PREFIX + payer, left)


def _counted(usage: Usage, what: str, more: int) -> Usage:
    """The counts with one more or one less; none is less than 0."""
    if what == HELD:
        return usage.replace(held=max(0, usage.held + more))
    if what == WAITING:
        return usage.replace(waiting=max(0, usage.waiting + more))
    return usage.replace(sessions=max(0, usage.sessions + more))


def payer_of(quota: str | None) -> str | None:
    """The principal of a `charge`: "namespace/principal", without a namespace for a credential that may use any."""
    return None if quota is None else quota.partition("/")[2]


def is_current(draft: Draft, quota: str | None, payer: str) -> bool:
    return quota == f"{usage_of(draft, payer).count}/{payer}"


def retake_quota(draft: Draft, quota: str | None, payer: str, what: str) -> str | None:
    """Count anew what was taken before its principal had a limit, or with another of its credentials."""
    return_quota(draft, quota, what)
    return take_quota(draft, payer, what)


def usage_of(draft: Draft, payer: str) -> Usage:
    """The record, or a new one: no two counts of one record have the same number."""
    from dibs.core.service.credentials import Usage  # most principals have no limit

    found = draft.get(USAGE_PREFIX + payer)
    return found if isinstance(found, Usage) else Usage(count=draft.now_ms)


def over_held(draft: Draft, ask: AcquireTerms, name: str, jobs: int = 1) -> QuotaExceeded | None:
    """Return the refusal if `jobs` more are too many. Tickets count as jobs, because they become jobs."""
    if ask.payer is not None and ask.held_max:
        usage = usage_of(draft, ask.payer)
        if usage.held + usage.waiting + jobs > ask.held_max:
            return QuotaExceeded(now_ms=draft.now_ms, name=name, most=ask.held_max)
    return QuotaExceeded(now_ms=draft.now_ms, name=name) if ask.over_quota else None


def over_waiting(draft: Draft, ask: AcquireTerms, name: str, tickets: int = 1) -> QuotaExceeded | TooMany | None:
    most = ask.waiting_max
    if ask.payer is not None and most and usage_of(draft, ask.payer).waiting + tickets > most:
        return TooMany(now_ms=draft.now_ms, name=name, what="places in line", most=most)
    return over_held(draft, ask, name, tickets)


def over_sessions(draft: Draft, command: OpenSession) -> TooMany | None:
    if command.payer is None or not command.sessions_max:
        return None
    if usage_of(draft, command.payer).sessions < command.sessions_max:
        return None
    return TooMany(now_ms=draft.now_ms, name="", what="open sessions", most=command.sessions_max)
