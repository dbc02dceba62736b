"""Claiming, keeping and letting go: who owns a job. The promises `excl`, `proof`, `idem` and `token:rises` live here.

Can two owners overlap? Only `line.grant` makes a holder (and `transfer` replaces one by another). A newcomer reaches it
through `judge`, past the lines that answer everybody while anything stands in the way; a waiter through `line.advance`,
which asks the same question. What proves "that was me" is decided in one place too: `_mine`.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.deadlock import find_cycle, find_own_cycle
from dibs.core.exclusion import blockers, covered, live_holders
from dibs.core.expiry import end_hold, event_of, own_deadline_ms, session_over, settle, shown, ticket_over
from dibs.core.limits import TTL_MS_DEFAULT, WANT_MS
from dibs.core.line import (
    advance,
    ahead,
    drop,
    grant,
    join,
    keep,
    note_hold,
    place_of,
    refresh,
    serve_own,
    settled,
)
from dibs.core.outcomes import (
    AclDiffers,
    AclSet,
    AlreadyDone,
    Broken,
    Deadlock,
    Delayed,
    Differs,
    Forbidden,
    Freed,
    Granted,
    Held,
    KeySpent,
    NotCurrent,
    NotFound,
    Parked,
    Queued,
    QuotaExceeded,
    Released,
    Renewed,
    SessionOver,
    SessionUnknown,
    Status,
    Transferred,
)
from dibs.core.records import BROKEN, EXCLUSIVE, RELEASED, TRANSFERRED, Done, Holder, Lock, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import Acquire, Ask, Break, Free, Inspect, Release, Renew, SetAcl, Transfer
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Ending, Ticket


def acquire(draft: Draft, command: Acquire) -> Outcome:
    """Claim a job: granted, in line, or the reason why not."""
    refused = check_session(draft, command.session, command.principal)
    if refused is not None:
        return refused
    lock = refresh(draft, command.ns, command.name, command.mode)
    ticket = place_of(draft, command, (command.name,))
    lock = draft.lock(command.ns, command.name)
    verdict = judge(draft, command, lock, command.ticket_id, command.lease_id)
    if ticket is not None:
        if isinstance(verdict, Held | Delayed):
            keep(draft, ticket)
            return queued(draft, lock, ticket)
        drop(draft, ticket, "answered")  # the answer is final: waiting on would give the job to nobody
        advance(draft, command.ns, command.name)
    if isinstance(verdict, Granted):
        return verdict
    if isinstance(verdict, Forbidden | KeySpent | NotCurrent):
        return verdict
    if lock.acl and command.acl is not None and set(command.acl) != set(lock.acl):
        return AclDiffers(now_ms=draft.now_ms, name=lock.name)
    if verdict is None:
        granted = grant(draft, command, command.name, command.fresh_lease_id)
        if command.acl is not None:
            draft.put(draft.lock(command.ns, command.name).replace(acl=command.acl))
        serve_own(draft, command.ns, command.session)
        return granted
    if not isinstance(verdict, Held | Delayed):
        return verdict
    differs = waits_otherwise(draft, command, command.name)
    if differs is not None:
        return differs
    cycle = find_cycle(draft, command, (command.name,))
    if cycle:
        return Deadlock(now_ms=draft.now_ms, name=command.name, cycle=cycle)
    if not command.wait:
        note_want(draft, command, command.name)
        return verdict
    return queued(draft, lock, join(draft, command, (command.name,)))


def check_session(
    draft: Draft, session_id: str | None, principal: str
) -> SessionUnknown | SessionOver | None:
    """A session that is not the caller's, or is over, may claim nothing."""
    if session_id is None:
        return None
    session = draft.session(session_id)
    if session is None or session.principal != principal:
        return SessionUnknown(now_ms=draft.now_ms, session=session_id)
    if session_over(draft, session):
        return SessionOver(now_ms=draft.now_ms, session=session)
    return None


def judge(
    draft: Draft,
    ask: Ask,
    lock: Lock,
    ticket_id: str | None = None,
    lease_id: str | None = None,
    *,
    by_session: bool = True,
) -> Outcome | None:
    """What a newcomer asking for a refreshed lock is told; None when it can be granted now.

    The order of the checks is the order of the lines. `Granted` when it is the caller's already."""
    now_ms, name = draft.now_ms, lock.name
    mine = _mine(lock, ask, ticket_id, lease_id, ask.session if by_session else None)
    if mine is not None:
        return _regrant(draft, ask, lock, mine, ticket_id)
    if lock.acl and not ask.admin and not set(lock.acl).intersection(ask.badges):
        return Forbidden(now_ms=now_ms, name=name)
    spent = _spent(draft, lock, ask, lease_id)
    if spent is not None:
        return spent
    if lock.parked:
        return Parked(now_ms=now_ms, name=name, failures=lock.failures, ending=_previous(lock))
    if lock.holders and lock.slots != ask.slots and ask.mode == EXCLUSIVE == lock.holders[0].mode:
        return Differs(now_ms=now_ms, name=name, what="slots", has=str(lock.slots), asked=str(ask.slots))
    if lock.done is not None and now_ms < lock.done.until_ms and not ask.again:
        return AlreadyDone(now_ms=now_ms, name=name, done=lock.done)
    in_way = blockers(draft, lock, ask.mode, ask.slots, ask.session)
    waiting = ahead(draft, lock, 0, ask.mode)
    if waiting and not in_way and covered(draft, lock, ask.mode, ask.session):
        waiting = waiting if _waits_for(draft, ask, name) else 0
    if in_way or (lock.holders and waiting):
        return Held(now_ms=now_ms, name=name, blockers=in_way, waiting=waiting)
    if now_ms < lock.delay_until_ms:
        return _delayed(lock, now_ms)
    if waiting:
        return Held(now_ms=now_ms, name=name, waiting=waiting)
    if ask.over_quota:
        return QuotaExceeded(now_ms=now_ms, name=name)
    return None


def _mine(
    lock: Lock, ask: Ask, ticket_id: str | None, lease_id: str | None, session: str | None
) -> Holder | None:
    """The hold that this caller can prove to be its own: by lease id, session or request key, by the ticket that became
    it, or by being this very command whose commit went through and whose reply was lost.

    The same credential alone proves nothing (`excl:same-token`)."""
    proofs = (lease_id, ticket_id, ask.fresh_lease_id)
    for holder in lock.holders:
        if holder.principal != ask.principal:
            continue
        if holder.lease_id in proofs:
            return holder
        if _same(holder.session, session):
            return holder
        if ask.request_key is not None and holder.request_key == ask.request_key:
            return holder
    return None


def _spent(draft: Draft, lock: Lock, ask: Ask, lease_id: str | None) -> KeySpent | NotCurrent | None:
    """The caller shows proof of a hold that is over. Granting would turn a late repeat into a lease nobody knows of."""
    for ending in lock.endings:
        if ending.principal != ask.principal:
            continue
        if ask.request_key is not None and ending.request_key == ask.request_key:
            return KeySpent(now_ms=draft.now_ms, name=lock.name, ending=ending)
        if ending.lease_id == ask.fresh_lease_id:
            return _not_current(draft, lock, ending)
    if lease_id is not None:
        return _not_current(draft, lock, _ended(lock, lease_id, None, ask.principal))
    return None


def _regrant(draft: Draft, ask: Ask, lock: Lock, mine: Holder, ticket_id: str | None) -> Outcome:
    """Asking again for what one holds gives the same lease, never a shorter one, never in another mode."""
    if mine.mode != ask.mode:
        return Differs(now_ms=draft.now_ms, name=lock.name, what="mode", has=mine.mode, asked=ask.mode)
    kept = shown(draft, mine)
    expires_ms = draft.now_ms + ask.ttl_ms
    if mine.ttl_ms and ask.ttl_ms and expires_ms > own_deadline_ms(draft, mine):
        longer = mine.replace(renewed_ms=draft.now_ms, ttl_ms=ask.ttl_ms, expires_ms=expires_ms)
        draft.put(_swap(lock, longer))
        kept = shown(draft, longer)
    again = mine.lease_id not in (ask.fresh_lease_id, ticket_id)
    return Granted(now_ms=draft.now_ms, name=lock.name, lease=kept, previous=_previous(lock), again=again)


def queued(draft: Draft, lock: Lock, ticket: Ticket) -> Queued:
    lock = draft.lock(lock.ns, lock.name)
    return Queued(
        now_ms=draft.now_ms,
        ns=lock.ns,
        name=lock.name,
        ticket=ticket.number,
        ticket_id=ticket.lease_id,
        position=ahead(draft, lock, ticket.number, ticket.mode) + 1,
        blockers=blockers(draft, lock, ticket.mode, ticket.slots, ticket.session),
        delay_until_ms=lock.delay_until_ms,
    )


def waits_otherwise(draft: Draft, ask: Ask, name: str) -> Differs | None:
    """A session that waits for a job in one mode cannot have it in the other: it would wait for itself."""
    for ticket in _waits_for(draft, ask, name):
        if ticket.mode != ask.mode:
            return Differs(now_ms=draft.now_ms, name=name, what="mode", has=ticket.mode, asked=ask.mode)
    return None


def _waits_for(draft: Draft, ask: Ask, name: str) -> list[Ticket]:
    """The places that the session has in the job's own line."""
    session = draft.session(ask.session) if ask.session is not None else None
    waits = [wait for wait in session.waits if (wait.ns, wait.name) == (ask.ns, name)] if session else []
    tickets = [draft.ticket(wait.ns, wait.name, wait.number) for wait in waits]
    return [ticket for ticket in tickets if ticket is not None and not ticket_over(draft, ticket)]


def note_want(draft: Draft, ask: Ask, name: str) -> None:
    """A refused poll by a session that holds something counts as waiting, for a moment. Only the last one counts:
    whoever asks for another job has moved on from this one."""
    if ask.session is None:
        return
    session = draft.session(ask.session)
    if session is not None and session.holds:
        until_ms = draft.now_ms + WANT_MS
        want = Want(ns=ask.ns, name=name, until_ms=until_ms, mode=ask.mode, slots=ask.slots)
        draft.put(session.replace(want=want))


def renew(draft: Draft, command: Renew) -> Outcome:
    """Heartbeat: only the current lease may, and it starts its time anew."""
    lock = settled(draft, command.ns, command.name)
    mine = _held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        ending = _ended(lock, command.lease_id, command.session, command.principal)
        return _not_current(draft, lock, ending)
    ttl_ms = mine.ttl_ms if command.ttl_ms is None else command.ttl_ms
    kept = mine.replace(
        renewed_ms=draft.now_ms,
        ttl_ms=ttl_ms,
        expires_ms=draft.now_ms + ttl_ms if ttl_ms else mine.expires_ms,
        metadata=mine.metadata if command.metadata is None else command.metadata,
        checkpoint=mine.checkpoint if command.checkpoint is None else command.checkpoint,
        checkpoint_ms=mine.checkpoint_ms if command.checkpoint is None else draft.now_ms,
    )
    draft.put(_swap(lock, kept))
    if (kept.metadata, kept.checkpoint) != (mine.metadata, mine.checkpoint):
        draft.tell(
            event_of(
                lock,
                kept,
                events.PROGRESS,
                draft.now_ms,
                metadata=kept.metadata,
                checkpoint=kept.checkpoint,
            )
        )
    return Renewed(now_ms=draft.now_ms, name=lock.name, lease=shown(draft, kept))


def release(draft: Draft, command: Release) -> Outcome:
    """Let go. Releasing again what was released is fine; releasing what was lost says how it was lost."""
    lock = settled(draft, command.ns, command.name)
    now_ms = draft.now_ms
    mine = _held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        ending = _ended(lock, command.lease_id, command.session, command.principal)
        if ending is not None and ending.how == RELEASED:
            return Released(now_ms=now_ms, name=lock.name, ending=ending, again=True)
        return _not_current(draft, lock, ending)
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
        how=RELEASED,
        at_ms=now_ms,
        checkpoint=command.checkpoint,
        result=command.result,
        done_until_ms=done.until_ms if done is not None else None,
    )
    released = Released(now_ms=now_ms, name=lock.name, ending=lock.endings[0])
    advance(draft, command.ns, command.name)
    return released


def transfer(draft: Draft, command: Transfer) -> Outcome:
    """Hand the job to another owner: a new lease id, a higher token, the same attempt, metadata and checkpoint."""
    lock = settled(draft, command.ns, command.name)
    handed = _held_by(lock, command.fresh_lease_id, None, None)
    if handed is not None:  # this very command went through before and its reply was lost
        return Transferred(now_ms=draft.now_ms, name=lock.name, lease=shown(draft, handed))
    mine = _held_by(lock, command.lease_id, command.session, command.principal)
    if mine is None:
        ending = _ended(lock, command.lease_id, command.session, command.principal)
        return _not_current(draft, lock, ending)
    heir = draft.session(command.to_session) if command.to_session is not None else None
    if command.to_session is not None and (heir is None or session_over(draft, heir)):
        return SessionUnknown(now_ms=draft.now_ms, session=command.to_session)
    token = max(lock.token, draft.meta().token_floor) + 1
    ttl_ms = mine.ttl_ms if command.ttl_ms is None else command.ttl_ms
    if heir is None and not ttl_ms:
        ttl_ms = TTL_MS_DEFAULT  # it lived by its session; without one it needs a time of its own
    lease = mine.replace(
        lease_id=command.fresh_lease_id,
        owner=command.to_owner or (heir.owner if heir is not None else mine.owner),
        principal=heir.principal if heir is not None else mine.principal,
        token=token,
        session=heir.id if heir is not None else None,
        since_ms=draft.now_ms,
        renewed_ms=draft.now_ms,
        ttl_ms=ttl_ms,
        expires_ms=draft.now_ms + ttl_ms if ttl_ms or heir is None else heir.expires_ms,
        request_key=None,
        checkpoint=mine.checkpoint if command.checkpoint is None else command.checkpoint,
    )
    lock = end_hold(
        draft, lock, mine, how=TRANSFERRED, at_ms=draft.now_ms, by=lease.owner, checkpoint=lease.checkpoint
    )
    lock = lock.replace(token=token, holders=(*lock.holders, lease))
    draft.put(lock)
    draft.tell(
        event_of(
            lock,
            lease,
            events.ACQUIRED,
            draft.now_ms,
            metadata=lease.metadata,
            checkpoint=lease.checkpoint,
            ttl_ms=lease.ttl_ms,
        )
    )
    note_hold(draft, lock, lease)
    stops = _stops_transfer(draft, lock, lease)
    if stops is not None:
        draft.discard()
        return stops
    serve_own(draft, lock.ns, lease.session)
    return Transferred(now_ms=draft.now_ms, name=lock.name, lease=shown(draft, lease))


def _stops_transfer(draft: Draft, lock: Lock, lease: Holder) -> Held | Deadlock | None:
    """Claims of one session may overlap, so the giver may keep one that the heir's would overlap; and the heir may wait
    for somebody who waits for this job."""
    in_way = blockers(draft, lock, lease.mode, lock.slots, lease.session)
    others = tuple([blocker for blocker in in_way if blocker.name != lock.name])
    if others:
        return Held(now_ms=draft.now_ms, name=lock.name, blockers=others)
    cycle = find_own_cycle(draft, lease.session)
    return Deadlock(now_ms=draft.now_ms, name=lock.name, cycle=cycle) if cycle else None


def break_(draft: Draft, command: Break) -> Outcome:
    """Take the job away from whoever has it. The old owner learns who did so and why when it next asks."""
    lock = settled(draft, command.ns, command.name)
    taken = lock.holders
    for holder in taken:
        lock = end_hold(
            draft,
            lock,
            holder,
            how=BROKEN,
            at_ms=draft.now_ms,
            by=command.principal,
            reason=command.reason,
        )
    if taken:
        advance(draft, command.ns, command.name)
    return Broken(now_ms=draft.now_ms, name=lock.name, holders=taken)


def free(draft: Draft, command: Free) -> Outcome:
    """Let a parked job be claimed again, with its count of failures at nought."""
    lock = settled(draft, command.ns, command.name)
    if lock.parked:
        lock = lock.replace(parked=False, failures=0)
        draft.put(lock)
        draft.tell(
            events.Event(
                at_ms=draft.now_ms, kind=events.FREED, ns=lock.ns, job=lock.name, by=command.principal
            )
        )
        return Freed(now_ms=draft.now_ms, name=lock.name, was_parked=True)
    return Freed(now_ms=draft.now_ms, name=lock.name, was_parked=False)


def set_acl(draft: Draft, command: SetAcl) -> Outcome:
    """Replace a job's access list: for its current owner, or an admin."""
    if not draft.knows(command.ns, command.name):
        return NotFound(now_ms=draft.now_ms, name=command.name)
    lock = settled(draft, command.ns, command.name)
    if not command.admin and all(holder.principal != command.principal for holder in lock.holders):
        return Forbidden(now_ms=draft.now_ms, name=lock.name)
    if command.acl != lock.acl:
        draft.put(lock.replace(acl=command.acl))
    return AclSet(now_ms=draft.now_ms, name=lock.name, acl=command.acl)


def inspect(draft: Draft, command: Inspect) -> Outcome:
    """How the job stands, writing nothing: looking must work on a store that cannot be written.

    What is over is shown as over, as the next command would find it; nothing of that is kept."""
    seen = draft.knows(command.ns, command.name)
    lock = settle(draft, command.ns, command.name)
    in_way = blockers(draft, lock, EXCLUSIVE, 1, None)
    draft.discard()
    return Status(
        now_ms=draft.now_ms,
        name=command.name,
        lock=lock.replace(holders=live_holders(draft, lock)),
        seen=seen,
        waiting=ahead(draft, lock, 0, EXCLUSIVE),
        overlapping=tuple([blocker for blocker in in_way if blocker.name != lock.name]),
    )


def _held_by(lock: Lock, lease_id: str | None, session: str | None, principal: str | None) -> Holder | None:
    """The hold that this proof proves. A lease id counts before a session."""
    for holder in lock.holders:
        if principal is not None and holder.principal != principal:
            continue
        if holder.lease_id == lease_id if lease_id is not None else _same(holder.session, session):
            return holder
    return None


def _ended(lock: Lock, lease_id: str | None, session: str | None, principal: str | None) -> Ending | None:
    for ending in lock.endings:
        if principal is not None and ending.principal != principal:
            continue
        if ending.lease_id == lease_id if lease_id is not None else _same(ending.session, session):
            return ending
    return None


def _same(one: str | None, other: str | None) -> bool:
    return one is not None and one == other


def _not_current(draft: Draft, lock: Lock, ending: Ending | None) -> NotCurrent:
    holders = live_holders(draft, lock)
    return NotCurrent(now_ms=draft.now_ms, name=lock.name, holders=holders, ending=ending)


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
