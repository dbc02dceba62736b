"""Claiming, keeping and letting go: who owns a job. The promises `excl`, `proof`, `idem` and `token:rises` live here.

Can two owners overlap? Only `_grant` makes a holder, and `acquire` reaches it only past the line that answers `Held` to
everybody while anybody else holds the job. What proves "that was me" is decided in one place too: `_mine`.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import Acquire, Break, Inspect, Release, Renew, SetAcl
from dibs.core.events import Event
from dibs.core.expiry import end, event_of, settle
from dibs.core.outcomes import (
    AclDiffers,
    AclSet,
    AlreadyDone,
    Broken,
    Delayed,
    Forbidden,
    Granted,
    Held,
    KeySpent,
    NotCurrent,
    NotFound,
    QuotaExceeded,
    Released,
    Renewed,
    Status,
)
from dibs.core.records import BROKEN, RELEASED, Done, Ending, Holder, Lock, lock_key
from dibs.core.view import Decision, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored


def acquire(view: View, command: Acquire) -> Decision:
    """Claim a job: granted, or the reason why not. The order of the checks is the order of the lines."""
    stored = view.lock(command.ns, command.name) or Lock(ns=command.ns, name=command.name)
    meta = view.meta()
    lock, noticed = settle(stored, view.now_ms, meta.outages)
    now_ms, name = view.now_ms, command.name

    if lock.acl and not command.admin and not set(lock.acl).intersection(command.badges):
        return _answer(Forbidden(now_ms=now_ms, name=name), stored, lock, noticed)
    mine = _mine(lock, command)
    if mine is not None:
        return _regrant(view, command, stored, lock, mine, noticed)
    spent = _spent(lock, command)
    if spent is not None:
        return _answer(spent.replace(now_ms=now_ms), stored, lock, noticed)
    if lock.acl and command.acl is not None and set(command.acl) != set(lock.acl):
        return _answer(AclDiffers(now_ms=now_ms, name=name), stored, lock, noticed)
    if lock.holders:
        return _answer(Held(now_ms=now_ms, name=name, holders=lock.holders), stored, lock, noticed)
    if lock.done is not None and now_ms < lock.done.until_ms and not command.again:
        return _answer(AlreadyDone(now_ms=now_ms, name=name, done=lock.done), stored, lock, noticed)
    if now_ms < lock.delay_until_ms:
        return _answer(_delayed(lock, now_ms), stored, lock, noticed)
    if command.over_quota:
        return _answer(QuotaExceeded(now_ms=now_ms, name=name), stored, lock, noticed)
    return _grant(view, command, lock, noticed, floor=meta.token_floor)


def _mine(lock: Lock, command: Acquire) -> Holder | None:
    """The hold that this caller can prove to be its own: by lease id, by request key, or by being this very command
    whose commit went through and whose reply was lost. The same credential alone proves nothing (`excl:same-token`)."""
    for holder in lock.holders:
        if holder.principal != command.principal:
            continue
        if holder.lease_id in (command.lease_id, command.fresh_lease_id):
            return holder
        if command.request_key is not None and holder.request_key == command.request_key:
            return holder
    return None


def _spent(lock: Lock, command: Acquire) -> KeySpent | NotCurrent | None:
    """The caller shows proof of a hold that is over. Granting would turn a late repeat into a lease nobody knows of."""
    for ending in lock.endings:
        if ending.principal != command.principal:
            continue
        if command.request_key is not None and ending.request_key == command.request_key:
            return KeySpent(now_ms=0, name=lock.name, ending=ending)
        if command.lease_id == ending.lease_id:
            return NotCurrent(now_ms=0, name=lock.name, holders=lock.holders, ending=ending)
    if command.lease_id is not None:
        return NotCurrent(now_ms=0, name=lock.name, holders=lock.holders)
    return None


def _regrant(
    view: View, command: Acquire, stored: Lock, lock: Lock, mine: Holder, noticed: tuple[Event, ...]
) -> Decision:
    """Asking again for what one holds gives the same lease, never a shorter one."""
    expires_ms = max(mine.expires_ms, view.now_ms + command.ttl_ms)
    if expires_ms > mine.expires_ms:
        kept = mine.replace(renewed_ms=view.now_ms, ttl_ms=command.ttl_ms, expires_ms=expires_ms)
        lock = _swap(lock, kept)
    else:
        kept = mine
    granted = Granted(now_ms=view.now_ms, name=lock.name, lease=kept, previous=_previous(lock), again=True)
    return _answer(granted, stored, lock, noticed)


def _grant(view: View, command: Acquire, lock: Lock, noticed: tuple[Event, ...], *, floor: int) -> Decision:
    token = max(lock.token, floor) + 1
    lease = Holder(
        lease_id=command.fresh_lease_id,
        owner=command.owner,
        principal=command.principal,
        token=token,
        since_ms=view.now_ms,
        renewed_ms=view.now_ms,
        ttl_ms=command.ttl_ms,
        expires_ms=view.now_ms + command.ttl_ms,
        mode=command.mode,
        metadata=command.metadata,
        request_key=command.request_key,
        delay_ms=command.delay_ms,
        attempt=lock.failures + 1,
    )
    granted = Granted(now_ms=view.now_ms, name=lock.name, lease=lease, previous=_previous(lock))
    told = event_of(lock, lease, events.ACQUIRED, view.now_ms, metadata=lease.metadata, ttl_ms=lease.ttl_ms)
    lock = lock.replace(
        token=token,
        holders=(*lock.holders, lease),
        done=None,
        delay_until_ms=0,
        acl=command.acl if command.acl is not None and not lock.acl else lock.acl,
    )
    return Decision(outcome=granted, writes={lock_key(lock.ns, lock.name): lock}, events=(*noticed, told))


def renew(view: View, command: Renew) -> Decision:
    """Heartbeat: only the current lease may, and it starts its time anew."""
    stored, lock, noticed = _load(view, command.ns, command.name)
    mine = _held_by(lock, command.lease_id, command.principal)
    if mine is None:
        return _answer(_not_current(view, lock, command.lease_id, command.principal), stored, lock, noticed)
    ttl_ms = mine.ttl_ms if command.ttl_ms is None else command.ttl_ms
    kept = mine.replace(renewed_ms=view.now_ms, ttl_ms=ttl_ms, expires_ms=view.now_ms + ttl_ms)
    if command.metadata is not None:
        kept = kept.replace(metadata=command.metadata)
    if command.checkpoint is not None:
        kept = kept.replace(checkpoint=command.checkpoint, checkpoint_ms=view.now_ms)
    if (kept.metadata, kept.checkpoint) != (mine.metadata, mine.checkpoint):
        progress = event_of(
            lock, kept, events.PROGRESS, view.now_ms, metadata=kept.metadata, checkpoint=kept.checkpoint
        )
        noticed = (*noticed, progress)
    return _answer(
        Renewed(now_ms=view.now_ms, name=lock.name, lease=kept), stored, _swap(lock, kept), noticed
    )


def release(view: View, command: Release) -> Decision:
    """Let go. Releasing again what was released is fine; releasing what was lost says how it was lost."""
    stored, lock, noticed = _load(view, command.ns, command.name)
    mine = _held_by(lock, command.lease_id, command.principal)
    now_ms = view.now_ms
    if mine is None:
        ending = _ended(lock, command.lease_id, command.principal)
        if ending is not None and ending.how == RELEASED:
            again = Released(now_ms=now_ms, name=lock.name, ending=ending, again=True)
            return _answer(again, stored, lock, noticed)
        return _answer(_not_current(view, lock, command.lease_id, command.principal), stored, lock, noticed)
    lock = end(lock, mine, how=RELEASED, at_ms=now_ms, checkpoint=command.checkpoint)
    done = None
    if command.done_ms:
        done = Done(
            owner=mine.owner,
            token=mine.token,
            at_ms=now_ms,
            until_ms=now_ms + command.done_ms,
            result=command.result,
        )
        lock = lock.replace(done=done)
    told = event_of(
        lock,
        mine,
        events.RELEASED,
        now_ms,
        checkpoint=lock.endings[0].checkpoint,
        result=command.result,
        done_until_ms=done.until_ms if done else None,
    )
    released = Released(now_ms=now_ms, name=lock.name, ending=lock.endings[0])
    return _answer(released, stored, lock, (*noticed, told))


def break_(view: View, command: Break) -> Decision:
    """Take the job away from whoever has it. The old owner learns who did so and why when it next asks."""
    stored, lock, noticed = _load(view, command.ns, command.name)
    taken = lock.holders
    told = list(noticed)
    for holder in taken:
        lock = end(lock, holder, how=BROKEN, at_ms=view.now_ms, by=command.principal, reason=command.reason)
        told.append(
            event_of(lock, holder, events.BROKEN, view.now_ms, by=command.principal, reason=command.reason)
        )
    return _answer(Broken(now_ms=view.now_ms, name=lock.name, holders=taken), stored, lock, tuple(told))


def set_acl(view: View, command: SetAcl) -> Decision:
    """Replace a job's access list: for its current owner, or an admin."""
    if view.lock(command.ns, command.name) is None:
        return Decision(outcome=NotFound(now_ms=view.now_ms, name=command.name))
    stored, lock, noticed = _load(view, command.ns, command.name)
    if not command.admin and all(holder.principal != command.principal for holder in lock.holders):
        return _answer(Forbidden(now_ms=view.now_ms, name=lock.name), stored, lock, noticed)
    outcome = AclSet(now_ms=view.now_ms, name=lock.name, acl=command.acl)
    return _answer(outcome, stored, lock.replace(acl=command.acl), noticed)


def inspect(view: View, command: Inspect) -> Decision:
    """How the job stands, without writing even what it notices: looking must work on a store that cannot be written."""
    stored, lock, _ = _load(view, command.ns, command.name)
    seen = view.lock(command.ns, command.name) is not None
    return Decision(outcome=Status(now_ms=view.now_ms, name=command.name, lock=lock, seen=seen))


def _load(view: View, ns: str, name: str) -> tuple[Lock, Lock, tuple[Event, ...]]:
    """The lock as stored, as it stands now, and what was noticed in between."""
    stored = view.lock(ns, name) or Lock(ns=ns, name=name)
    lock, noticed = settle(stored, view.now_ms, view.meta().outages)
    return stored, lock, noticed


def _answer(outcome: Outcome, stored: Lock, lock: Lock, told: tuple[Event, ...]) -> Decision:
    """A decision that writes the lock only if it changed."""
    writes: dict[str, Stored | None] = {} if lock is stored else {lock_key(lock.ns, lock.name): lock}
    return Decision(outcome=outcome, writes=writes, events=told)


def _held_by(lock: Lock, lease_id: str, principal: str) -> Holder | None:
    for holder in lock.holders:
        if holder.lease_id == lease_id and holder.principal == principal:
            return holder
    return None


def _ended(lock: Lock, lease_id: str, principal: str) -> Ending | None:
    for ending in lock.endings:
        if ending.lease_id == lease_id and ending.principal == principal:
            return ending
    return None


def _not_current(view: View, lock: Lock, lease_id: str, principal: str) -> NotCurrent:
    ending = _ended(lock, lease_id, principal)
    return NotCurrent(now_ms=view.now_ms, name=lock.name, holders=lock.holders, ending=ending)


def _delayed(lock: Lock, now_ms: int) -> Delayed:
    lost_ms = lock.endings[0].at_ms if lock.endings else now_ms
    return Delayed(
        now_ms=now_ms, name=lock.name, until_ms=lock.delay_until_ms, delay_ms=lock.delay_until_ms - lost_ms
    )


def _previous(lock: Lock) -> Ending | None:
    return lock.endings[0] if lock.endings else None


def _swap(lock: Lock, kept: Holder) -> Lock:
    """`lock` with one hold replaced by its newer self."""
    return lock.replace(
        holders=tuple([kept if each.lease_id == kept.lease_id else each for each in lock.holders])
    )
