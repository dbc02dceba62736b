"""Expiry: when a hold, a session or a place in a queue is over. The promise `lease:never-early`.

A hold ends when the store's clock reaches its deadline, not before. The deadline is one TTL after the last renewal.
Outages move it later (`outage_credit.py`). The same rule applies to sessions and places in a queue. A hold also ends
with its session.

A hold may have a ceiling, which no renewal, session or credit goes past (`max_hold.py`).

An outage is known only once it is recorded. Until then nobody vouches for the time since it began, and a deadline in
that time counts as not reached: every comparison here is with `draft.vouched_ms`, not with the time.

`end_expired` is the first step of every rule. How a hold ends is in `endings.py`.
"""

from __future__ import annotations

from dibs.core.draft import Draft
from dibs.core.holds.endings import end_hold
from dibs.core.holds.max_hold import capped_ms, is_reached, reason_of
from dibs.core.holds.outage_credit import credited_ms
from dibs.core.limits import TICKET_MS
from dibs.core.records import BROKEN, EXPIRED, RELEASED, Holder, LockRecord, SessionRecord, Ticket, session_key

STOPPED_ASKING, SESSION_ENDED = "stopped asking", "session ended"  # why a place in a queue is over


def session_deadline_ms(draft: Draft, session: SessionRecord) -> int:
    """The deadline of a session: when it ended, or one TTL after its last renewal."""
    if session.ended_ms:
        return session.ended_ms
    return credited_ms(session.expires_ms, session.renewed_ms, session.ttl_ms, draft.meta().outages)


def session_over(draft: Draft, session: SessionRecord | None) -> bool:
    """An end that is on record needs nobody who vouches for the time."""
    if session is None or session.ended_ms:
        return True
    return draft.vouched_ms >= session_deadline_ms(draft, session)


def ticket_deadline_ms(draft: Draft, ticket: Ticket) -> int:
    """Return when a waiter that does not ask again loses its place."""
    return credited_ms(ticket.expires_ms, ticket.renewed_ms, TICKET_MS, draft.meta().outages)


def why_over(draft: Draft, ticket: Ticket) -> str | None:
    """Return why a waiter must not be given the job any more, as its event says it: its session has ended, or it
    stopped asking."""
    if ticket.session is not None and session_over(draft, draft.session(ticket.session)):
        return SESSION_ENDED
    return STOPPED_ASKING if draft.vouched_ms >= ticket_deadline_ms(draft, ticket) else None


def ticket_over(draft: Draft, ticket: Ticket) -> bool:
    return why_over(draft, ticket) is not None


def deadline_ms(draft: Draft, holder: Holder) -> int:
    """Return when `holder` may be replaced."""
    deadline = own_deadline_ms(draft, holder) if holder.ttl_ms else None
    if holder.session is not None and (holder.ephemeral or holder.relied):
        session = draft.session(holder.session)
        ends_ms = session_deadline_ms(draft, session) if session is not None else 0
        if holder.relied:
            deadline = max(deadline or 0, ends_ms)
        else:
            deadline = ends_ms if deadline is None else min(deadline, ends_ms)
    if deadline is None:
        deadline = holder.expires_ms
    return capped_ms(deadline, holder.ends_ms) if holder.ends_ms else deadline


def own_deadline_ms(draft: Draft, holder: Holder) -> int:
    """The deadline of a hold with its own TTL, if its session lives that long."""
    outages, deadline = draft.meta().outages, holder.expires_ms
    if outages:
        deadline = credited_ms(deadline, holder.renewed_ms, holder.ttl_ms, outages)
    return capped_ms(deadline, holder.ends_ms) if holder.ends_ms else deadline


def may_go_on(draft: Draft, holder: Holder) -> bool:
    """Return whether a heartbeat may still renew this hold, as far as is written: its session has not ended."""
    if holder.session is None or not holder.ephemeral:
        return True
    session = draft.session(holder.session)
    return session is not None and not session.ended_ms


def shown(draft: Draft, holder: Holder) -> Holder:
    """`holder` with its effective deadline, and its session's sign of life, for display."""
    deadline = deadline_ms(draft, holder)
    session = draft.session(holder.session) if holder.session is not None and holder.ephemeral else None
    if session is not None and (session.active_ms or session.renewed_ms > holder.renewed_ms):
        return holder.replace(expires_ms=deadline, heard_ms=session.renewed_ms, active_ms=session.active_ms)
    return holder if deadline == holder.expires_ms else holder.replace(expires_ms=deadline)


def need_sessions(draft: Draft, *locks: LockRecord) -> None:
    keys = [session_key(holder.session) for lock in locks for holder in lock.holders if holder.session]
    if keys:
        draft.need(*keys)


def live_now(draft: Draft, lock: LockRecord) -> list[Holder]:
    """The holds that are not over, with their effective deadlines."""
    holders = [shown(draft, holder) for holder in lock.holders]
    return [holder for holder in holders if not _is_over(draft, holder, holder.expires_ms)]


def _is_over(draft: Draft, holder: Holder, deadline: int) -> bool:
    if draft.vouched_ms >= deadline or (holder.ends_ms and is_reached(holder.ends_ms, draft.now_ms)):
        return True
    return holder.session is not None and not may_go_on(draft, holder)


def end_expired(draft: Draft, lock: LockRecord) -> LockRecord:
    """End the expired holds of a stored lock, with events; `queue.advance` gives the job to a waiter."""
    if not lock.holders:
        return lock
    known = draft.owners.get(id(lock.holders))
    if known is not None and len(known.live) == len(lock.holders):
        return lock
    if len(lock.holders) > 1:  # all at once; a single one is loaded when it is asked for
        need_sessions(draft, lock)
    for holder in lock.holders:
        over_ms = deadline_ms(draft, holder)
        if _is_over(draft, holder, over_ms):
            lock = _end_over(draft, lock, holder, over_ms or draft.now_ms)
    return lock


def _end_over(draft: Draft, lock: LockRecord, holder: Holder, at_ms: int) -> LockRecord:
    """A hold whose session ended first ended as the session did; every other hold was lost."""
    session = draft.session(holder.session) if holder.session is not None and holder.ephemeral else None
    own_ms = own_deadline_ms(draft, holder) if holder.ttl_ms else holder.ends_ms
    if session is None or not session.ended_ms or not session.how or 0 < own_ms <= session.ended_ms:
        return end_hold(draft, lock, holder, how=EXPIRED, at_ms=at_ms, reason=reason_of(holder.ends_ms, at_ms))
    by, reason = (session.by, session.reason) if session.how == BROKEN else (None, None)
    # The end of a session does not say how the work ended: its command may have failed, its connection closed.
    uncounted = session.how == RELEASED
    return end_hold(draft, lock, holder, how=session.how, at_ms=at_ms, by=by, reason=reason, uncounted=uncounted)
