"""Reading without deciding: the list of claimed jobs and a job's history. Nothing here writes."""

from __future__ import annotations

from dibs.core.commands import InspectSession
from dibs.core.draft import Draft
from dibs.core.exclusion import live_holders
from dibs.core.limits import LIST_PAGE_MAX
from dibs.core.outcomes import SessionState
from dibs.core.record import Record
from dibs.core.records import META_KEY, SESSION_PREFIX, Lock, Session, lock_key, session_key
from dibs.core.sessions import inspect_session
from dibs.core.view import Missing, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Store


class Page(Record):
    """Held jobs in the order of their names. `next_after` is None on the last page."""

    now_ms: int
    locks: list[Lock]
    next_after: str | None


def claimed(store: Store, ns: str, prefix: str = "", after: str = "", limit: int = LIST_PAGE_MAX) -> Page:
    """Up to `limit` jobs that are held right now, whose name begins with `prefix` and comes after `after`."""
    now_ms = store.read(()).now_ms
    found: list[Lock] = []
    key = lock_key(ns, after) if after else ""
    while True:
        # Jobs that are known but not held are skipped here, so a page of the store may be less than a page of ours.
        page = store.scan(lock_key(ns, prefix), key, limit + 1)
        locks = [versioned.record for _, versioned in page if isinstance(versioned.record, Lock)]
        draft = Draft(_view_of(store, locks))
        now_ms = max(now_ms, draft.now_ms)
        for lock in locks:
            live = live_holders(draft, lock)
            if live:
                found.append(lock.replace(holders=live))
            if len(found) > limit:
                return Page(now_ms=now_ms, locks=found[:limit], next_after=found[limit - 1].name)
        if len(page) <= limit:
            return Page(now_ms=now_ms, locks=found, next_after=None)
        key = page[-1][0]


def _view_of(store: Store, locks: list[Lock]) -> View:
    """What it takes to tell which of these locks' holds are live: the sessions of their owners, and the outages."""
    sessions = {session_key(holder.session) for lock in locks for holder in lock.holders if holder.session}
    snapshot = store.read([META_KEY, *sessions])
    return View(snapshot.now_ms, {key: found.record for key, found in snapshot.records.items()})


def open_sessions(store: Store, principal: str | None) -> list[SessionState]:
    """The live sessions, of one principal or of all."""
    found: list[SessionState] = []
    after = ""
    while True:
        page = store.scan(SESSION_PREFIX, after, 1_000)
        for _, versioned in page:
            session = versioned.record
            if (
                isinstance(session, Session)
                and principal in (None, session.principal)
                and not session.ended_ms
            ):
                state = inspect_one(store, session.id)
                if isinstance(state, SessionState) and state.live:
                    found.append(state)
        if len(page) < 1_000:
            return found
        after = page[-1][0]


def inspect_one(store: Store, session_id: str) -> object:
    """Look at one session, whosever it is, without a coordinator: nothing is decided, nothing is written."""
    view = View(now_ms=store.read(()).now_ms)
    while True:
        try:
            return inspect_session(Draft(view), InspectSession(session=session_id, principal=None))
        except Missing as missing:
            snapshot = store.read(missing.keys)
            view.now_ms = max(view.now_ms, snapshot.now_ms)
            view.records.update({key: found.record for key, found in snapshot.records.items()})
