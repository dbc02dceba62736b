"""Heartbeat and release. Claiming is in `claims.py`."""

from __future__ import annotations

from dibs.core import events
from dibs.core.attention import waiters
from dibs.core.expiry import end_hold, event_of, shown
from dibs.core.grants import swap
from dibs.core.lease_outcomes import Failed, Released, Renewed
from dibs.core.names import in_tree
from dibs.core.notes import check_room
from dibs.core.proof import ended, held_by, not_current
from dibs.core.queue import advance, settled
from dibs.core.quota import is_current, recharged
from dibs.core.records import FAILED, RELEASED, Done
from dibs.core.tickets import NOBODY, has_seat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import Release, Renew
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Ending, LockRecord


def renew(draft: Draft, command: Renew) -> Outcome:
    """Heartbeat: renews the current lease, and refuses every other."""
    lock = settled(draft, command.ns, command.name)
    mine = held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        ending = ended(lock, command.lease_id, command.session, command.principal)
        return not_current(draft, lock, ending)
    waiting, new, newest = waiters(draft, lock, mine)
    if not has_seat(mine, command.seat):
        return Renewed(now_ms=draft.now_ms, name=lock.name, lease=shown(draft, mine), waiting=waiting)
    too_long = check_room(draft, lock, mine, command.checkpoint, command.metadata)
    if too_long is not None:
        return too_long
    ttl_ms = mine.ttl_ms if command.ttl_ms is None else command.ttl_ms
    kept = mine.replace(
        renewed_ms=draft.now_ms,
        ttl_ms=ttl_ms,
        expires_ms=draft.now_ms + ttl_ms if ttl_ms else mine.expires_ms,
        metadata=mine.metadata if command.metadata is None else command.metadata,
        checkpoint=mine.checkpoint if command.checkpoint is None else command.checkpoint,
        checkpoint_ms=mine.checkpoint_ms if command.checkpoint is None else draft.now_ms,
        told=max(mine.told, newest),
        seat=mine.seat if command.seat is not None else NOBODY,  # its owner knows of it
        wanted=waiting > 0 and in_tree(lock.name),
    )
    if command.payer is not None and not is_current(draft, mine.charge, command.payer):
        kept = kept.replace(charge=recharged(draft, mine.charge, command.payer, "held"))
    draft.put(swap(lock, kept))
    lease = shown(draft, kept)
    brings = (kept.metadata, kept.checkpoint) != (mine.metadata, mine.checkpoint)
    if command.audited and not brings:
        until_ms = None if ttl_ms else lease.expires_ms
        draft.tell(event_of(lock, kept, events.RENEWED, draft.now_ms, ttl_ms=ttl_ms, until_ms=until_ms))
    if brings:
        draft.tell(
            event_of(
                lock,
                kept,
                events.PROGRESS,
                draft.now_ms,
                metadata=kept.metadata,
                checkpoint=kept.checkpoint,
                until_ms=lease.expires_ms,
            )
        )
    return Renewed(now_ms=draft.now_ms, name=lock.name, lease=lease, waiting=waiting, new=new)


def release(draft: Draft, command: Release) -> Outcome:
    """Release. A repeated release succeeds, and the first one counts. Releasing a lost lease says how it was lost."""
    lock = settled(draft, command.ns, command.name)
    now_ms = draft.now_ms
    mine = held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        ending = ended(lock, command.lease_id, command.session, command.principal)
        if ending is not None and ending.how in (RELEASED, FAILED):
            return _let_go(draft, lock, ending, again=True)
        return not_current(draft, lock, ending)
    if not has_seat(mine, command.seat):
        return not_current(draft, lock, None)
    done = None
    if command.done_ms:
        done = Done(
            owner=mine.owner,
            token=mine.token,
            at_ms=now_ms,
            until_ms=now_ms + command.done_ms,
            result=command.result,
        )
    lock = end_hold(
        draft,
        lock.replace(done=done if done is not None else lock.done),
        mine,
        how=FAILED if command.failed else RELEASED,
        at_ms=now_ms,
        checkpoint=command.checkpoint,
        reason=command.reason,
        retry_ms=command.retry_ms,
        uncounted=command.uncounted,
        result=command.result,
        done_until_ms=done.until_ms if done is not None else None,
    )
    told = _let_go(draft, lock, lock.endings[0])
    advance(draft, command.ns, command.name)
    return told


def _let_go(draft: Draft, lock: LockRecord, ending: Ending, *, again: bool = False) -> Released | Failed:
    if ending.how == RELEASED:
        return Released(now_ms=draft.now_ms, name=lock.name, ending=ending, again=again)
    return Failed(
        now_ms=draft.now_ms,
        name=lock.name,
        ending=ending,
        failures=lock.failures,
        parked=lock.parked,
        until_ms=lock.delay_until_ms,
        again=again,
    )
