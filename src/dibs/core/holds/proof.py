"""Proof that a hold is the caller's. The promises `proof` and `excl:same-token` live here.

A lease id proves it, or the session or the request key of the claim. The credential alone does not: two workers with
one credential exclude each other. For an admin the lease id is enough, whoever took it.

A principal is a name in a namespace. A job is in one namespace, so for a hold the name is enough. A session belongs to
the namespace in which it was opened: a credential for another namespace has no access to it, even with the same name. A
credential for all namespaces is the same principal in each.
"""

from __future__ import annotations

from dibs.core.commands import AcquireAny, AcquireTerms
from dibs.core.draft import Draft
from dibs.core.holds.capacity import live_holders
from dibs.core.holds.expiry import session_over
from dibs.core.outcomes import NotCurrent, SessionOver, SessionUnknown
from dibs.core.records import Ending, Holder, LockRecord, SessionRecord


def own_claim(lock: LockRecord, ask: AcquireTerms) -> Holder | None:
    """The hold that this ask got or shows: by lease id or request key, by the ticket that became it, or because this
    same command was committed and its reply was lost. The same credential alone proves nothing (`excl:same-token`)."""
    proofs = (ask.lease_id, ask.ticket_id, ask.fresh_lease_id)
    for holder in lock.holders:
        if holder.principal == ask.principal and (
            holder.lease_id in proofs or same(holder.request_key, ask.request_key)
        ):
            return holder
    return None


def session_hold(lock: LockRecord, ask: AcquireTerms) -> Holder | None:
    """The hold of the caller's session, whichever of its asks got it. A claim of any of several jobs passes over it."""
    if ask.session is None or isinstance(ask, AcquireAny):
        return None
    return held_by(lock, None, ask.session, ask.principal)


def held_by(lock: LockRecord, lease_id: str | None, session: str | None, principal: str | None) -> Holder | None:
    """The hold of this proof. A lease id takes precedence over a session."""
    for holder in lock.holders:
        if principal is not None and holder.principal != principal:
            continue
        if holder.lease_id == lease_id if lease_id is not None else same(holder.session, session):
            return holder
    return None


def ended(lock: LockRecord, lease_id: str | None, session: str | None, principal: str | None) -> Ending | None:
    for ending in lock.endings:
        if principal is not None and ending.principal != principal:
            continue
        if ending.lease_id == lease_id if lease_id is not None else same(ending.session, session):
            return ending
    return None


def may_use(session: SessionRecord, principal: str | None, bound: str | None) -> bool:
    """True if a session is this caller's. `principal` None: an operator's question, `bound` None: of any namespace."""
    return principal in (None, session.principal) and bound in (None, session.ns)


def own_session(
    draft: Draft, session_id: str, principal: str | None, bound: str | None
) -> SessionRecord | SessionUnknown | SessionOver:
    session = draft.session(session_id)
    if session is None or not may_use(session, principal, bound):
        return SessionUnknown(now_ms=draft.now_ms, session=session_id)
    if session_over(draft, session):
        return SessionOver(now_ms=draft.now_ms, session=session)
    return session


def session_owner(draft: Draft, session_id: str | None) -> str:
    """The name that others see for a claim that gives none: its session's."""
    session = None if session_id is None else draft.session(session_id)
    return "" if session is None else session.owner


def same(one: str | None, other: str | None) -> bool:
    return one is not None and one == other


def not_current(draft: Draft, lock: LockRecord, ending: Ending | None) -> NotCurrent:
    holders = live_holders(draft, lock)
    return NotCurrent(now_ms=draft.now_ms, name=lock.name, holders=holders, ending=ending)
