"""Sessions: one run of one worker. The promise `session`.

The end of a session frees the holds with its id, and nothing else: not what it held earlier, not what others took
after it. That is checked on the lock itself; the session's list only says where to look.
"""

from __future__ import annotations

from dibs.core import events, records
from dibs.core.commands import EndSession, InspectSession, KeepSession, OpenSession
from dibs.core.draft import Draft
from dibs.core.holds.capacity import live_holders
from dibs.core.holds.expiry import SESSION_ENDED, end_expired, need_sessions, session_deadline_ms, session_over
from dibs.core.holds.proof import may_use, own_session
from dibs.core.holds.quota import SESSIONS, is_current, over_sessions, retake_quota, return_quota, take_quota
from dibs.core.limits import FREED_MAX
from dibs.core.outcomes import Outcome, SessionOver, SessionUnknown
from dibs.core.session_outcomes import SessionLease, SessionState
from dibs.core.waiting.queue import advance, give_up
from dibs.core.waiting.tickets import report_waiters, waiters


def open_session(draft: Draft, command: OpenSession) -> Outcome:
    """Open a session under an id by which a repeat of the same caller finds it, and nobody else."""
    found = draft.session(command.fresh_id)
    if found is not None and not may_use(found, command.principal, command.bound):
        return SessionUnknown(now_ms=draft.now_ms, session=command.fresh_id)
    if found is not None and session_over(draft, found):
        return SessionOver(now_ms=draft.now_ms, session=found)
    if found is None:
        if command.parent is not None:
            parent = own_session(draft, command.parent, command.principal, command.bound)
            if not isinstance(parent, records.SessionRecord):
                return parent
        over = over_sessions(draft, command)
        if over is not None:
            return over
        found = records.SessionRecord(
            id=command.fresh_id,
            principal=command.principal,
            owner=command.owner,
            ttl_ms=command.ttl_ms,
            since_ms=draft.now_ms,
            renewed_ms=draft.now_ms,
            expires_ms=draft.now_ms + command.ttl_ms,
            process=command.process,
            metadata=command.metadata,
            ns=command.ns,
            charge=take_quota(draft, command.payer, SESSIONS),
            parent=command.parent,
        )
        draft.put(found)
        mark = events.session_mark(found.id)
        draft.emit(events.SESSION_OPENED, owner=found.owner, principal=found.principal, session=mark)
    return SessionState(now_ms=draft.now_ms, session=found)


def keep_session(draft: Draft, command: KeepSession) -> Outcome:
    """Renew a session. A session that has ended stays ended."""
    session = own_session(draft, command.session, command.principal, command.bound)
    if not isinstance(session, records.SessionRecord):
        return session
    ttl_ms = session.ttl_ms if command.ttl_ms is None else command.ttl_ms
    kept = session.replace(
        renewed_ms=draft.now_ms,
        ttl_ms=ttl_ms,
        expires_ms=draft.now_ms + ttl_ms,
        process=session.process if command.process is None else command.process or None,
        metadata=session.metadata if command.metadata is None else command.metadata or None,
        active_ms=draft.now_ms if command.active else session.active_ms,
    )
    if command.payer is not None and not is_current(draft, kept.charge, command.payer):
        kept = kept.replace(charge=retake_quota(draft, kept.charge, command.payer, SESSIONS))
    draft.put(kept)
    wanted = report_waiters(draft, kept, command.bound) if command.active and kept.wanted else ()
    return SessionState(now_ms=draft.now_ms, session=kept, wanted=wanted)


def end_session(draft: Draft, command: EndSession) -> Outcome:
    """End a session. If its worker is finished, its jobs are released without a result; if it was found dead, they are
    lost; if an operator ends it, they are broken. Ending it again succeeds, because the first reply may have been
    lost. A worker that was found dead may have gone on in another process since: then its session goes on, too."""
    session = draft.session(command.session)
    if session is None or not may_use(session, command.principal, command.bound):
        return SessionUnknown(now_ms=draft.now_ms, session=command.session)
    broken = session.how == records.BROKEN and command.by is not None
    if session.ended_ms and (broken or (session.how == records.RELEASED and not command.dead)):
        return SessionState(now_ms=draft.now_ms, session=session, live=False)
    if session.ended_ms:
        return SessionOver(now_ms=draft.now_ms, session=session)
    if command.process not in (None, session.process):
        return SessionState(now_ms=draft.now_ms, session=session)
    how = records.EXPIRED if command.dead or session_over(draft, session) else records.RELEASED
    if command.by is not None and how == records.RELEASED:
        how = records.BROKEN
        session = session.replace(by=command.by, reason=command.reason)
    ended = finish(draft, session, how)
    return SessionState(now_ms=draft.now_ms, session=ended, live=False)


def finish(draft: Draft, session: records.SessionRecord, how: str) -> records.SessionRecord:
    """End a session, or continue ending it: mark it as ended, leave its queues, free its holds."""
    if not session.ended_ms:
        ended_ms = min(draft.now_ms, session_deadline_ms(draft, session))
        return_quota(draft, session.charge, SESSIONS)
        session = session.replace(ended_ms=ended_ms, how=how, want=None, charge=None)
        draft.put(session)
        draft.owners.clear()  # what it holds is over
        draft.emit(
            events.SESSION_ENDED,
            owner=session.owner,
            principal=session.principal,
            by=session.by,
            reason=session.reason or how,
            began_ms=session.since_ms,
            session=events.session_mark(session.id),
        )
    _leave_queues(draft, session)
    _free_holds(draft, session)
    return draft.session(session.id) or session


def _leave_queues(draft: Draft, session: records.SessionRecord) -> None:
    if not session.waits:
        return
    keys = [records.ticket_key(wait.ns, wait.name, wait.number) for wait in session.waits]
    draft.need(*keys, *[records.lock_key(wait.ns, wait.name) for wait in session.waits])
    draft.put(session.replace(waits=()))  # all at once: each ticket would copy what is left
    for wait in session.waits:
        ticket = draft.ticket(wait.ns, wait.name, wait.number)
        if ticket is not None:
            give_up(draft, ticket, SESSION_ENDED)


def _free_holds(draft: Draft, session: records.SessionRecord) -> None:
    """Free the holds of a session that has ended. Of very many, sweeps free the rest."""
    keys = session.holds[:FREED_MAX]
    _need_jobs(draft, keys)
    for key in keys:
        ns, name = records.split_lock_key(key)
        end_expired(draft, draft.lock(ns, name))
        advance(draft, ns, (name,))
    now = draft.session(session.id)
    if now is not None and now.holds:
        freed = set(keys)
        left = tuple([key for key in now.holds if key not in freed])
        draft.put(now.replace(holds=left))


def _need_jobs(draft: Draft, keys: tuple[str, ...]) -> None:
    """Load these jobs, and what handing them over looks at, in a few reads for all of them."""
    draft.need(*keys)
    locks = [draft.lock(*records.split_lock_key(key)) for key in keys]
    need_sessions(draft, *locks)
    heads = [(lock.ns, lock.name, number) for lock in locks for number in lock.line[:2]]
    draft.need(*[records.ticket_key(*head) for head in heads])
    tickets = [draft.ticket(*head) for head in heads]
    draft.need(*[records.session_key(each.session) for each in tickets if each is not None and each.session])


def inspect_session(draft: Draft, command: InspectSession) -> Outcome:
    """The state of a session and its present holds. Writes nothing."""
    session = draft.session(command.session)
    if session is None or not may_use(session, command.principal, command.bound):
        return SessionUnknown(now_ms=draft.now_ms, session=command.session)
    keys = [key for key in session.holds if command.bound in (None, records.split_lock_key(key)[0])]
    draft.need(*keys)
    holds = [
        SessionLease(ns=lock.ns, name=lock.name, holder=holder, waiting=waiters(draft, lock, holder, whole=True)[0])
        for lock in [draft.lock(*records.split_lock_key(key)) for key in keys]
        for holder in live_holders(draft, lock)
        if holder.session == session.id
    ]
    live = not session_over(draft, session)
    deadline_ms = session_deadline_ms(draft, session)
    waits = tuple([wait for wait in session.waits if command.bound in (None, wait.ns)])
    session = session.replace(expires_ms=deadline_ms, waits=waits)
    return SessionState(now_ms=draft.now_ms, session=session, holds=tuple(holds), live=live)
