"""Keeping a job and letting it go: heartbeat, release, transfer, break. Claiming is in `acquire.py`."""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import Break, Release, Renew, Transfer
from dibs.core.draft import Draft
from dibs.core.holds.endings import end_hold
from dibs.core.holds.exclusion import blockers, named
from dibs.core.holds.expiry import own_deadline_ms, session_over, shown
from dibs.core.holds.grants import check_room, put_hold, swap
from dibs.core.holds.max_hold import capped_ms
from dibs.core.holds.path_claims import note_claims
from dibs.core.holds.proof import ended, held_by, not_current
from dibs.core.holds.quota import HELD, is_current, payer_of, retake_quota, take_quota
from dibs.core.lease_outcomes import (
    Broken,
    EffectRefused,
    Failed,
    NotAJob,
    Released,
    Renewed,
    Transferred,
)
from dibs.core.limits import TTL_MS_DEFAULT
from dibs.core.names import in_tree, is_resource
from dibs.core.outcomes import Blocker, Deadlock, Differs, Held, Outcome, SessionUnknown
from dibs.core.records import (
    BROKEN,
    EXCLUSIVE,
    FAILED,
    RELEASED,
    TRANSFERRED,
    Done,
    Ending,
    Holder,
    LockRecord,
    SessionRecord,
)
from dibs.core.waiting.queue import advance, present_lock, serve_own
from dibs.core.waiting.tickets import waiters


def transfer(draft: Draft, command: Transfer) -> Outcome:
    """Hand the job to another owner: a new lease id, a higher token, the same attempt, metadata and checkpoint. A
    ceiling stays where it is, and a closed job may be handed over: it stays in use."""
    lock = present_lock(draft, command.ns, command.name)
    handed = held_by(lock, command.fresh_lease_id, None, None)
    if handed is not None:  # this command was committed before, and its reply was lost
        return Transferred(now_ms=draft.now_ms, name=lock.name, lease=shown(draft, handed))
    mine = held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        return not_current(draft, lock, ended(lock, command.lease_id, command.session, command.principal))
    heir = draft.session(command.to_session) if command.to_session is not None else None
    if command.to_session is not None and (
        heir is None or heir.ns not in (None, command.ns) or session_over(draft, heir)
    ):
        return SessionUnknown(now_ms=draft.now_ms, session=command.to_session)
    too_long = check_room(draft, lock, mine, command.checkpoint)
    if too_long is not None:
        return too_long
    lease = _heirs_lease(draft, command, mine, heir, token=max(lock.token, draft.meta().token_floor) + 1)
    lock = end_hold(draft, lock, mine, how=TRANSFERRED, at_ms=draft.now_ms, by=lease.owner, checkpoint=lease.checkpoint)
    lock = lock.replace(token=lease.token, holders=(*lock.holders, lease))
    put_hold(draft, lock, lease)
    stops = _stops_transfer(draft, lock, lease)
    if stops is not None:
        draft.discard()
        return stops
    if lease.session is not None:
        serve_own(draft, lock.ns, lease.session)
        advance(draft, lock.ns, (lock.name,))  # the heir does not exclude its parent and its children
    return Transferred(now_ms=draft.now_ms, name=lock.name, lease=shown(draft, lease))


def _heirs_lease(draft: Draft, command: Transfer, mine: Holder, heir: SessionRecord | None, *, token: int) -> Holder:
    ttl_ms = mine.ttl_ms if command.ttl_ms is None else command.ttl_ms
    if heir is None and not ttl_ms:
        ttl_ms = TTL_MS_DEFAULT  # its TTL was that of its session; without a session it needs its own
    payer = mine if heir is None or heir.principal == mine.principal else heir
    return mine.replace(
        lease_id=command.fresh_lease_id,
        owner=command.to_owner or (heir.owner if heir is not None else mine.owner),
        principal=heir.principal if heir is not None else mine.principal,
        token=token,
        session=heir.id if heir is not None else None,
        since_ms=draft.now_ms,
        renewed_ms=draft.now_ms,
        ttl_ms=ttl_ms,
        expires_ms=capped_ms(draft.now_ms + ttl_ms if ttl_ms or heir is None else heir.expires_ms, mine.ends_ms),
        request_key=None,
        checkpoint=mine.checkpoint if command.checkpoint is None else command.checkpoint,
        # It counts for who gets it, and is never refused for that: the owner decides who goes on.
        charge=take_quota(draft, payer_of(payer.charge), HELD),
        wanted=mine.wanted or mine.told > 0,  # those who wait already are reported to the new owner
        told=0,
        relied=False,
        used=False,
    )


def _stops_transfer(draft: Draft, lock: LockRecord, lease: Holder) -> Held | Deadlock | None:
    """Return why a transfer must be refused: the giver keeps a claim that overlaps the job, the giver's parent or child
    has the job, too, or the new owner waits for somebody who waits for this job."""
    rest = lock.replace(holders=tuple([each for each in lock.holders if each is not lease]))
    if lock.pooled and not lease.slot_numbers:  # an owner from before the pool has the job alone, or shares it
        rest = rest.replace(pooled=False, slots=1)
    units = len(lease.slot_numbers) or 1
    in_way: tuple[Blocker, ...] = ()
    if not (lease.slot_numbers and (lock.pooled or lock.slots == 1)):  # the slots of a pool, or of one that was removed
        in_way = blockers(draft, rest, lease.mode, rest.slots, lease.session, units)
    if in_way:
        few = named(in_way)
        return Held(now_ms=draft.now_ms, name=lock.name, blockers=few, unnamed=len(in_way) - len(few))
    heir = draft.session(lease.session) if lease.session is not None else None
    if heir is None or not heir.waits:
        return None
    from dibs.core.waiting.deadlock import find_own_cycle  # rare

    cycle = find_own_cycle(draft, heir)
    return Deadlock(now_ms=draft.now_ms, name=lock.name, cycle=cycle) if cycle else None


def break_(draft: Draft, command: Break) -> Outcome:
    """Take the job from its owners, or from one of them. The answer to the old owner's next request says who did so,
    and why. A token that no owner has is that of a hold which has ended: nothing is left to take."""
    lock = present_lock(draft, command.ns, command.name)
    taken = tuple([holder for holder in lock.holders if command.token in (None, holder.token)])
    for holder in taken:
        by, reason = command.principal, command.reason
        lock = end_hold(draft, lock, holder, how=BROKEN, at_ms=draft.now_ms, by=by, reason=reason)
    if taken:
        advance(draft, command.ns, (command.name,))
    return Broken(now_ms=draft.now_ms, name=lock.name, holders=taken)


def renew(draft: Draft, command: Renew) -> Outcome:
    """Heartbeat: renews the current lease, and refuses every other."""
    lock = present_lock(draft, command.ns, command.name)
    mine = held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        return not_current(draft, lock, ended(lock, command.lease_id, command.session, command.principal))
    waiting, new, newest = waiters(draft, lock, mine)
    too_long = check_room(draft, lock, mine, command.checkpoint, command.metadata)
    if too_long is not None:
        return too_long
    mode = mine.mode if command.mode is None else command.mode
    if mode != mine.mode and (mode == EXCLUSIVE or lock.slots > 1 or lock.pooled or mine.slot_numbers):
        has = mine.mode if lock.slots == 1 and not lock.pooled else f"{mine.mode} in {lock.slots} slots"
        return Differs(now_ms=draft.now_ms, name=lock.name, what="mode", has=has, asked=mode)
    effects, effect = lock.effects, None
    if command.effect is not None:  # the last that can refuse: a note is an event
        from dibs.core.claims.effects import note_effect  # few heartbeats bring one

        noted = note_effect(draft, lock, mine, command.effect)
        if isinstance(noted, EffectRefused):
            return noted
        effects, effect = noted
    ttl_ms = mine.ttl_ms if command.ttl_ms is None else command.ttl_ms
    expires_ms = draft.now_ms + ttl_ms if ttl_ms else mine.expires_ms
    if command.ttl_ms is not None and mine.session is not None and mine.used:  # others may rely on its time
        ttl_ms = ttl_ms if mine.ttl_ms else 0
        expires_ms = max(expires_ms, own_deadline_ms(draft, mine)) if ttl_ms else mine.expires_ms
    kept = mine.replace(
        renewed_ms=draft.now_ms,
        ttl_ms=ttl_ms,
        expires_ms=capped_ms(expires_ms, mine.ends_ms),
        told=max(mine.told, newest),
        # By the lease id of a claim with a key it is the ask itself, or who got the id from it.
        used=mine.used or effect is not None or command.lease_id is None or mine.request_key is None,
        wanted=waiting > 0 and in_tree(lock.name),
    )
    if mode != mine.mode:
        kept = kept.replace(mode=mode)
    if command.metadata is not None:
        kept = kept.replace(metadata=command.metadata)
    if command.checkpoint is not None:
        kept = kept.replace(checkpoint=command.checkpoint, checkpoint_ms=draft.now_ms)
    if command.payer is not None and not is_current(draft, mine.charge, command.payer):
        kept = kept.replace(charge=retake_quota(draft, mine.charge, command.payer, HELD))
    draft.put(swap(lock, kept) if effect is None else swap(lock, kept).replace(effects=effects))
    lease = shown(draft, kept)
    brings = kept.metadata != mine.metadata or kept.checkpoint != mine.checkpoint
    if command.audited and not brings:
        until_ms = None if ttl_ms and not lease.ends_ms else lease.expires_ms
        draft.emit_for_hold(events.RENEWED, lock, kept, ttl_ms=ttl_ms, until_ms=until_ms)
    if brings:
        metadata, checkpoint, until_ms = kept.metadata, kept.checkpoint, lease.expires_ms
        draft.emit_for_hold(events.PROGRESS, lock, kept, metadata=metadata, checkpoint=checkpoint, until_ms=until_ms)
    if mode != mine.mode:
        waiting = _share(draft, lock, kept, lease.expires_ms)
        new = min(new, waiting)
    return Renewed(now_ms=draft.now_ms, name=lock.name, lease=lease, waiting=waiting, new=new, effect=effect)


def _share(draft: Draft, lock: LockRecord, kept: Holder, until_ms: int) -> int:
    """The hold is shared from now on, without a gap in which somebody could have the job alone. Those first in the
    queue who can share it get it in the same decision. Returns how many wait for it then."""
    draft.emit_for_hold(events.SHARED, lock, kept, until_ms=until_ms)
    if in_tree(lock.name):
        note_claims(draft, draft.lock(lock.ns, lock.name))
    advance(draft, lock.ns, (lock.name,))
    return waiters(draft, draft.lock(lock.ns, lock.name), kept, whole=True)[0]


def release(draft: Draft, command: Release) -> Outcome:
    """Release. A repeated release succeeds, and the first one counts. Releasing a lost lease says how it was lost. So
    does a repeat that alone would mark the job as done: its caller must not take it for done."""
    if (command.done_ms or command.failed) and is_resource(command.name):
        return NotAJob(now_ms=draft.now_ms, name=command.name, what="failed" if command.failed else "done")
    lock = present_lock(draft, command.ns, command.name)
    now_ms = draft.now_ms
    mine = held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        ending = ended(lock, command.lease_id, command.session, command.principal)
        if ending is not None and ending.how in (RELEASED, FAILED) and (ending.done or not command.done_ms):
            return _let_go(draft, lock, ending, again=True)
        return not_current(draft, lock, ending)
    done = None
    if command.done_ms:
        done = Done(
            owner=mine.owner, token=mine.token, at_ms=now_ms, until_ms=now_ms + command.done_ms, result=command.result
        )
        lock = lock.replace(done=done)
    lock = end_hold(
        draft,
        lock,
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
    outcome = _let_go(draft, lock, lock.endings[0])
    advance(draft, command.ns, (command.name,))
    return outcome


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
