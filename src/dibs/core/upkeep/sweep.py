"""Sweeping: what is due on a record although nobody asks for it.

Every rule ends what is over in the records that it looks at. A sweep does the same for those that nobody looks at: it
ends holds, sessions, places and closures whose time is over, serves queues that an earlier decision left, writes later
deadlines after an outage, and forgets records that are idle.
"""

from __future__ import annotations

from dibs.core import commands, events, records
from dibs.core.claims.job_settings import end_closures
from dibs.core.claims.sessions import finish
from dibs.core.draft import Draft
from dibs.core.holds.expiry import deadline_ms, session_deadline_ms, session_over, ticket_deadline_ms, why_over
from dibs.core.lease_outcomes import Swept
from dibs.core.outcomes import Outcome
from dibs.core.waiting.queue import give_up, go_on, refresh

_SWEPT = (
    records.LOCK_PREFIX,
    records.SESSION_PREFIX,
    records.CREDENTIAL_PREFIX,
    records.TREE_PREFIX,
    "ticket/",
    records.META_KEY,
)


def is_swept(key: str) -> bool:
    """Return whether `sweep` knows this kind of record. A newer server may keep others, and sweeps them itself."""
    return key.startswith(_SWEPT)


def sweep(draft: Draft, command: commands.Sweep) -> Outcome:
    """Do what is due on one record. A sweep that comes too early, or twice, does nothing."""
    found = draft.get(command.key)
    if isinstance(found, records.LockRecord):
        return _sweep_lock(draft, command.key, found)
    if isinstance(found, records.SessionRecord):
        return _sweep_session(draft, command.key, found)
    if isinstance(found, records.Ticket):
        over = why_over(draft, found)
        if over is not None:
            give_up(draft, found, over)
        elif found.expires_ms < (deadline := ticket_deadline_ms(draft, found)):
            draft.put(found.replace(expires_ms=deadline))
    elif isinstance(found, records.Tree):
        go_on(draft, found.namespace())
    elif isinstance(found, records.Meta):
        end_closures(draft)
    elif command.key.startswith(records.CREDENTIAL_PREFIX):
        from dibs.core.service.credentials import forget_credential

        forget_credential(draft, command.key)
    return Swept(now_ms=draft.now_ms, key=command.key)


def _sweep_lock(draft: Draft, key: str, lock: records.LockRecord) -> Swept:
    if 0 < lock.delay_until_ms <= draft.now_ms:
        draft.put(lock.replace(delay_until_ms=0))  # it is over; otherwise the record would be due for ever
    lock = refresh(draft, lock.ns, lock.name)
    expired = len([event for event in draft.events if event.kind == events.EXPIRED])
    due_ms = lock.due_ms()
    if not lock.holders and not lock.line and due_ms is not None and due_ms <= draft.now_ms:
        _forget(draft, lock)
        return Swept(now_ms=draft.now_ms, key=key, expired=expired, forgotten=True)
    _write_credit(draft, lock)
    return Swept(now_ms=draft.now_ms, key=key, expired=expired)


def _write_credit(draft: Draft, lock: records.LockRecord) -> None:
    """Write the later deadline of a lease with outage credit: the store's index of due records needs it."""
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


def _forget(draft: Draft, lock: records.LockRecord) -> None:
    """Delete an idle record. The floor takes over its fencing token, so that the next one still rises."""
    meta = draft.meta()
    if lock.token > meta.token_floor:
        draft.put(meta.replace(token_floor=lock.token))
    draft.drop(lock)
    draft.emit(events.FORGOTTEN, lock.ns, lock.name, token=lock.token)


def _sweep_session(draft: Draft, key: str, session: records.SessionRecord) -> Swept:
    if session.ended_ms:
        if session.holds or session.waits:
            session = finish(draft, session, session.how or records.EXPIRED)
        elif (session.due_ms() or 0) <= draft.now_ms:
            draft.drop(session)
    elif session_over(draft, session):
        session = finish(draft, session, records.EXPIRED)
    elif session.expires_ms < (deadline := session_deadline_ms(draft, session)):
        draft.put(session.replace(expires_ms=deadline))
    return Swept(now_ms=draft.now_ms, key=key, unfinished=bool(session.ended_ms and session.holds))
