"""The end of a hold, whatever the cause: released, failed, transferred, broken, expired, or with its session.

`end_hold` is the only function that ends a hold, as `grants.grant` is the only one that makes an owner. It takes the
holder out, remembers how its hold ended, counts attempts and parks the job, and begins a delay. Who is next is said
by `waiting/queue.py`. When a hold is over is in `expiry.py`.
"""

from __future__ import annotations

from dibs.base.cheap import TypeVar
from dibs.core import events
from dibs.core.draft import Draft
from dibs.core.holds.quota import HELD, return_quota
from dibs.core.limits import REMEMBERED_MAX, REMEMBERED_MS
from dibs.core.names import in_tree, is_resource
from dibs.core.records import (
    EXCLUSIVE,
    FAILED,
    RELEASED,
    TRANSFERRED,
    UNSUCCESSFUL,
    Ending,
    Holder,
    LockRecord,
    WithdrawnAsk,
    lock_key,
)

Over = TypeVar("Over", bound="Ending | WithdrawnAsk")


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
    lock = lock.replace(
        holders=tuple([each for each in lock.holders if each.lease_id != holder.lease_id]),
        endings=(ending, *_older(lock, at_ms)),
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
    return_quota(draft, holder.charge, HELD)
    _forget_in_session(draft, lock, holder)
    if in_tree(lock.name) and how != TRANSFERRED:  # then the next owner's claim takes its place
        from dibs.core.holds.path_claims import note_claims  # most jobs are in no tree

        note_claims(draft, lock)
    return lock


def _older(lock: LockRecord, now_ms: int) -> tuple[Ending, ...]:
    """The earlier endings that are still remembered. Only the newest ending of a job keeps its texts, of which one may
    be 4 KiB: successors see no other."""
    older = tuple(remembered(lock.endings[: REMEMBERED_MAX - 1], now_ms))
    if older and (older[0].checkpoint is not None or older[0].metadata is not None):
        older = (older[0].replace(checkpoint=None, metadata=None), *older[1:])
    return older


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
