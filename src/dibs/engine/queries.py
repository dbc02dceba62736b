"""Read-only queries: the list of jobs and of sessions. Nothing here writes."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.commands import InspectSession
from dibs.core.decide import decide
from dibs.core.draft import Draft
from dibs.core.exclusion import live_holders
from dibs.core.keys import META_KEY, SESSION_PREFIX, lock_key, session_key
from dibs.core.lease_outcomes import SessionState
from dibs.core.limits import LIST_LOOKS_MAX, LIST_PAGE_DEFAULT, LIST_PAGE_MAX
from dibs.core.proof import may_use
from dibs.core.records import HELD, PARKED, LockRecord, SessionRecord
from dibs.core.state import state_of
from dibs.core.view import Missing, View
from dibs.engine.coordinator import Coordinator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Store


SESSIONS_AT_ONCE = 100  # each may hold many jobs


class Page(Record):
    """Jobs in the order of their names. `next_after` is None on the last page."""

    now_ms: int
    locks: list[LockRecord]
    next_after: str | None


def claimed(
    store: Store,
    ns: str,
    prefix: str = "",
    after: str = "",
    limit: int = LIST_PAGE_MAX,
    states: Sequence[str] = (HELD,),
    ended: Sequence[str] = (),
) -> Page:
    """Up to `limit` jobs in these states now, whose name begins with `prefix` and comes after `after`; with `ended`,
    only those whose last hold ended in one of these ways. Held and parked
    jobs cost only what is returned. For other states every job on record is looked at, LIST_LOOKS_MAX of them in one
    call: then the page may be short, even empty, and `next_after` says where to continue. The store is asked for a few
    at a time, because it has other callers."""
    now_ms = store.read(()).now_ms
    found: list[LockRecord] = []
    key = lock_key(ns, after) if after else ""
    live = set(states) <= {HELD, PARKED}
    looked, step = 0, min(limit + 1, LIST_PAGE_DEFAULT)
    while True:
        # Jobs in other states are skipped here, so a page of the store may give less than one of ours.
        page = store.scan(lock_key(ns, prefix), key, step, live=live)
        locks = [versioned.record for _, versioned in page if isinstance(versioned.record, LockRecord)]
        at_ms, settled = _settled(store, locks)
        now_ms = max(now_ms, at_ms)
        found += [lock for lock in settled if state_of(lock, now_ms) in states and _ended_so(lock, ended)]
        if len(found) > limit:
            return Page(now_ms=now_ms, locks=found[:limit], next_after=found[limit - 1].name)
        if len(page) < step:
            return Page(now_ms=now_ms, locks=found, next_after=None)
        key = page[-1][0]
        looked += step
        if looked >= max(LIST_LOOKS_MAX, limit + 1):
            return Page(now_ms=now_ms, locks=found, next_after=key.removeprefix(lock_key(ns, "")))
        step = min(2 * step, LIST_PAGE_DEFAULT)


def _ended_so(lock: LockRecord, ended: Sequence[str]) -> bool:
    return not ended or bool(lock.endings and lock.endings[0].how in ended)


def _settled(store: Store, locks: list[LockRecord]) -> tuple[int, list[LockRecord]]:
    """The locks with their live holds only, and the time of that state. Whether a hold is live depends on the lock, its
    owner's session, the outages and the time together, so each lock is read again with them. A lock that got another
    owner meanwhile is read once more, with the other session."""
    now_ms = 0
    settled: dict[str, LockRecord] = {lock_key(lock.ns, lock.name): lock for lock in locks}
    todo = {key: lock for key, lock in settled.items() if lock.holders}
    while todo:
        sessions = {
            session_key(each.session) for lock in todo.values() for each in lock.holders if each.session
        }
        snapshot = store.read([META_KEY, *todo, *sessions])
        now_ms = max(now_ms, snapshot.now_ms)
        draft = Draft(View(snapshot.now_ms, {key: found.record for key, found in snapshot.records.items()}))
        changed = {}
        for key in todo:
            lock = snapshot.records[key].record
            if not isinstance(lock, LockRecord):
                del settled[key]
                continue
            try:
                settled[key] = lock.replace(holders=live_holders(draft, lock))
            except Missing:
                changed[key] = lock
        todo = changed
    return now_ms, list(settled.values())


def open_sessions(store: Store, principal: str | None, bound: str | None = None) -> list[SessionState]:
    """The live sessions, of one principal or of all; for a credential with a namespace, only those of that
    namespace."""
    found: list[SessionState] = []
    after = ""
    while True:
        page = store.scan(SESSION_PREFIX, after, 1_000, live=True)
        sessions = [
            session
            for session in (versioned.record for _, versioned in page)
            if isinstance(session, SessionRecord) and may_use(session, principal, bound)
        ]
        for first in range(0, len(sessions), SESSIONS_AT_ONCE):
            found += _live_states(store, sessions[first : first + SESSIONS_AT_ONCE], principal, bound)
        if len(page) < 1_000:
            return found
        after = page[-1][0]


def _live_states(
    store: Store, sessions: list[SessionRecord], principal: str | None, bound: str | None
) -> list[SessionState]:
    """The states of these sessions. All records that are known to be needed are read at once, and once more with those
    that were missing. So each answer is of one moment, and many sessions cost hardly more reads than one."""
    found: dict[str, Outcome] = {}
    needed = {session.id: {session_key(session.id), *session.holds} for session in sessions}
    while needed:
        snapshot = store.read({META_KEY, *[key for keys in needed.values() for key in keys]})
        view = View(snapshot.now_ms, {key: versioned.record for key, versioned in snapshot.records.items()})
        for session_id in list(needed):
            command = InspectSession(session=session_id, principal=principal, bound=bound)
            try:
                found[session_id] = decide(view, command).outcome
            except Missing as missing:
                needed[session_id] |= set(missing.keys)
            else:
                del needed[session_id]
    states = [found[session.id] for session in sessions]
    return [state for state in states if isinstance(state, SessionState) and state.live]


def inspect_one(
    store: Store, session_id: str, principal: str | None = None, bound: str | None = None
) -> Outcome:
    """One session and what it holds, all of one moment. Without a principal, a session of any principal."""
    return Coordinator(store).one(InspectSession(session=session_id, principal=principal, bound=bound))
