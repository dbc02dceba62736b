"""The end of a hold: when it comes, and what happens then. The promise `lease:never-early`.

A hold ends when the store's clock reaches its deadline, not before. The deadline is one TTL after the last renewal.
Outages move it later (`outage_credit.py`). The same rule applies to sessions and places in a queue. A hold also ends
with its session.

A hold may have a ceiling, which no renewal, session or credit goes past (`max_hold.py`).

An outage is known only once it is recorded. Until then nobody vouches for the time since it began, and a deadline in
that time counts as not reached: every comparison here is with `draft.vouched_ms`, not with the time.

`end_expired` is the first step of every rule. `end_hold` is the only function that ends a hold, whatever the cause.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.draft import Draft
from dibs.core.holds.max_hold import capped_ms, is_reached, reason_of
from dibs.core.holds.outage_credit import credited_ms
from dibs.core.holds.quota import return_quota
from dibs.core.limits import REMEMBERED_MAX, REMEMBERED_MS, TICKET_MS
from dibs.core.names import in_tree, is_resource
from dibs.core.records import (
    BROKEN,
    EXCLUSIVE,
    EXPIRED,
    FAILED,
    RELEASED,
    TRANSFERRED,
    UNSUCCESSFUL,
    Ending,
    Holder,
    LockRecord,
    SessionRecord,
    Ticket,
    lock_key,
    session_key,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from dibs.core.records import WithdrawnAsk

    Over = TypeVar("Over", bound=Ending | WithdrawnAsk)


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


def ticket_over(draft: Draft, ticket: Ticket) -> bool:
    """Return whether a waiter stopped asking, or its session has ended. It must not be given the job."""
    if ticket.session is not None and session_over(draft, draft.session(ticket.session)):
        return True
    return draft.vouched_ms >= ticket_deadline_ms(draft, ticket)


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


def end_hold(
    draft: Draft,
    lock: LockRecord,
    holder: Holder,
    *,
    how: str,
    at_ms: int,
    checkpoint: str | None = None,
    by: str | None = None,
    reason: str | None = None,
    retry_ms: int = 0,
    uncounted: bool = False,
    result: str | None = None,
    done_until_ms: int | None = None,
) -> LockRecord:
    """`lock` without `holder`. A failure or a loss counts as an attempt and may park the job; a loss starts the lock
    delay, a failure its own. A clean release resets the count, unless the hold was `uncounted`."""
    if checkpoint is None:
        checkpoint = _left_behind(lock, holder, uncounted or how in UNSUCCESSFUL)
    ending = Ending(
        lease_id=holder.lease_id,
        owner=holder.owner,
        principal=holder.principal,
        token=holder.token,
        how=how,
        at_ms=at_ms,
        checkpoint=checkpoint,
        request_key=holder.request_key,
        session=holder.session,
        by=by,
        reason=reason,
        attempt=holder.attempt,
        done=done_until_ms is not None,
        uncounted=uncounted,
        metadata=holder.metadata,
    )
    # Only the newest keeps its texts, of which one may be 4 KiB: successors see no other.
    older = tuple(remembered(lock.endings[: REMEMBERED_MAX - 1], at_ms))
    if older and (older[0].checkpoint is not None or older[0].metadata is not None):
        older = (older[0].replace(checkpoint=None, metadata=None), *older[1:])
    lock = lock.replace(
        holders=tuple([each for each in lock.holders if each.lease_id != holder.lease_id]), endings=(ending, *older)
    )
    rests = (how in UNSUCCESSFUL and not uncounted) or (how == RELEASED and holder.delays_release)
    # An owner that reports a failure writes no more, and says itself for how long nobody should try.
    rest_ms = 0 if not rests else retry_ms if how == FAILED else holder.delay_ms
    draft.emit_for_hold(
        how,  # an ending and its event have the same word
        lock,
        holder,
        checkpoint=checkpoint,
        by=by,
        reason=reason,
        retry_ms=rest_ms or None,
        result=result,
        done_until_ms=done_until_ms,
        began_ms=holder.since_ms,
        uncounted=uncounted,
    )
    if rest_ms:
        lock = lock.replace(delay_until_ms=max(lock.delay_until_ms, at_ms + rest_ms))
    if not uncounted:
        lock = _count(draft, lock, holder, how)
    draft.put(lock)
    return_quota(draft, holder.charge, "held")
    _forget_in_session(draft, lock, holder)
    if in_tree(lock.name) and how != TRANSFERRED:  # then the next owner's claim takes its place
        from dibs.core.holds.path_claims import note_claims  # most jobs are in no tree

        note_claims(draft, lock)
    return lock


def _left_behind(lock: LockRecord, holder: Holder, passes_on: bool) -> str | None:
    """The checkpoint for the next owner. An owner that fails or is lost without a checkpoint passes on the one it got,
    unless that belongs to finished work. With several owners at once there is none, because it could be anybody's."""
    if holder.checkpoint is not None or not passes_on or not lock.endings:
        return holder.checkpoint
    previous = lock.endings[0]
    return previous.checkpoint if holder.mode == EXCLUSIVE and lock.slots == 1 and not previous.done else None


def _count(draft: Draft, lock: LockRecord, holder: Holder, how: str) -> LockRecord:
    if how == RELEASED:
        if not (lock.failures or lock.effects) or is_resource(lock.name):
            return lock
        # Work that others go on with is not over: a child may release what its parent has.
        goes_on = bool(lock.holders) or lock.endings[0].done
        return lock.replace(failures=0, effects=lock.effects if goes_on else ())
    if how not in UNSUCCESSFUL or is_resource(lock.name):
        return lock
    lock = lock.replace(failures=lock.failures + 1)
    if lock.max_attempts and lock.failures >= lock.max_attempts:
        draft.emit_for_hold(events.PARKED, lock, holder)
        lock = lock.replace(parked=True)
    return lock


def _forget_in_session(draft: Draft, lock: LockRecord, holder: Holder) -> None:
    """Remove a lock from its session's list, which may name too many, never too few; and a want: it is not stuck."""
    if holder.session is None:
        return
    session = draft.session(holder.session)
    if session is None:
        return
    key = lock_key(lock.ns, lock.name)
    still = any(each.session == holder.session for each in lock.holders)
    if (key in session.holds and not still) or session.want is not None:
        holds = session.holds if still else tuple([each for each in session.holds if each != key])
        draft.put(session.replace(holds=holds, want=None))


def remembered(over: tuple[Over, ...], now_ms: int) -> list[Over]:
    """Of ends or withdrawn asks, newest first, those that still answer late copies and repeats (`withdraw.py`)."""
    return [each for each in over[:REMEMBERED_MAX] if now_ms - each.at_ms < REMEMBERED_MS]


def was_withdrawn(draft: Draft, lock: LockRecord, principal: str, ask: str) -> bool:
    """Return whether the ask of this name is a late copy of one that was withdrawn."""
    if not lock.withdrawn:
        return False
    return (principal, ask) in [(each.principal, each.request_key) for each in remembered(lock.withdrawn, draft.now_ms)]
