"""Upkeep: sweeping records that are due, and deleting old ones."""

from __future__ import annotations

from dibs.core import events
from dibs.core.events import Event
from dibs.core.expiry import (
    deadline_ms,
    session_deadline_ms,
    session_over,
    ticket_deadline_ms,
    ticket_over,
)
from dibs.core.keys import CREDENTIAL_PREFIX, LOCK_PREFIX, SESSION_PREFIX, TREE_PREFIX, split_lock_key
from dibs.core.queue import advance_all, go_on, refresh
from dibs.core.records import EXPIRED
from dibs.core.sessions import finish
from dibs.core.tickets import drop
from dibs.core.upkeep_outcomes import Identified, Raised, Swept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import Identify, RaiseFloor, Sweep
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import LockRecord


_SWEPT = (LOCK_PREFIX, SESSION_PREFIX, CREDENTIAL_PREFIX, TREE_PREFIX, "ticket/")


def is_swept(key: str) -> bool:
    """Whether `sweep` knows this kind of record. A server of a newer version beside this one may keep other kinds, and
    sweeps them itself."""
    return key.startswith(_SWEPT)


def sweep(draft: Draft, command: Sweep) -> Outcome:
    """Do what is due on one record. A sweep that comes too early, or twice, does nothing."""
    if command.key.startswith(LOCK_PREFIX):
        return _sweep_lock(draft, command.key)
    if command.key.startswith(SESSION_PREFIX):
        return _sweep_session(draft, command.key)
    if command.key.startswith(CREDENTIAL_PREFIX):
        from dibs.core.issuance import forget_credential

        forget_credential(draft, command.key)
    elif command.key.startswith(TREE_PREFIX):
        go_on(draft, command.key.removeprefix(TREE_PREFIX))
    else:
        _sweep_ticket(draft, command.key)
    return Swept(now_ms=draft.now_ms, key=command.key)


def _sweep_lock(draft: Draft, key: str) -> Swept:
    ns, name = split_lock_key(key)
    if not draft.knows(ns, name):
        return Swept(now_ms=draft.now_ms, key=key)
    lock = draft.lock(ns, name)
    if 0 < lock.delay_until_ms <= draft.now_ms:
        draft.put(lock.replace(delay_until_ms=0))  # it is over; otherwise the record would be due for ever
    lock = refresh(draft, ns, name)
    expired = len([event for event in draft.events if event.kind == events.EXPIRED])
    due_ms = lock.due_ms()
    if not lock.holders and not lock.line and due_ms is not None and due_ms <= draft.now_ms:
        _forget(draft, lock)
        return Swept(now_ms=draft.now_ms, key=key, expired=expired, forgotten=True)
    _write_credit(draft, lock)
    return Swept(now_ms=draft.now_ms, key=key, expired=expired)


def _write_credit(draft: Draft, lock: LockRecord) -> None:
    """Write a lease with outage credit back with its later deadline, so that the store's index of due records is
    right."""
    holders = tuple(
        [
            holder.replace(expires_ms=max(holder.expires_ms, deadline_ms(draft, holder)))
            if holder.ttl_ms and holder.expires_ms <= draft.now_ms
            else holder
            for holder in lock.holders
        ]
    )
    if holders != lock.holders:
        draft.put(lock.replace(holders=holders))


def _forget(draft: Draft, lock: LockRecord) -> None:
    """Delete an idle record. The floor is raised to its fencing token first, so that the job's next token still
    rises."""
    meta = draft.meta()
    if lock.token > meta.token_floor:
        draft.put(meta.replace(token_floor=lock.token))
    draft.drop(lock)
    draft.tell(Event(at_ms=draft.now_ms, kind=events.FORGOTTEN, ns=lock.ns, job=lock.name, token=lock.token))


def _sweep_session(draft: Draft, key: str) -> Swept:
    session = draft.session(key.removeprefix(SESSION_PREFIX))
    if session is None:
        return Swept(now_ms=draft.now_ms, key=key)
    if session.ended_ms:
        if session.holds or session.waits:
            session = finish(draft, session, session.how or EXPIRED)
        elif (session.due_ms() or 0) <= draft.now_ms:
            draft.drop(session)
    elif session_over(draft, session):
        session = finish(draft, session, EXPIRED)
    elif session.expires_ms < (deadline := session_deadline_ms(draft, session)):
        draft.put(session.replace(expires_ms=deadline))
    return Swept(now_ms=draft.now_ms, key=key, unfinished=bool(session.ended_ms and session.holds))


def _sweep_ticket(draft: Draft, key: str) -> None:
    _, ns, number, name = key.split("/", 3)
    ticket = draft.ticket(ns, name, int(number))
    if ticket is None:
        return
    if ticket_over(draft, ticket):
        drop(draft, ticket, "stopped asking")
        advance_all(draft, ticket)
    elif ticket.expires_ms < (deadline := ticket_deadline_ms(draft, ticket)):
        draft.put(ticket.replace(expires_ms=deadline))


def raise_floor(draft: Draft, command: RaiseFloor) -> Outcome:
    """Raise the floor, for a store that replaces another whose higher tokens were already seen."""
    meta = draft.meta()
    if command.floor > meta.token_floor:
        meta = meta.replace(token_floor=command.floor)
        draft.put(meta)
    return Raised(now_ms=draft.now_ms, floor=meta.token_floor)


def identify(draft: Draft, command: Identify) -> Outcome:
    """The permanent id of the store. The first server that starts on it sets it."""
    meta = draft.meta()
    if not meta.store_id:
        meta = meta.replace(store_id=command.fresh_id)
        draft.put(meta)
    return Identified(now_ms=draft.now_ms, store_id=meta.store_id)
