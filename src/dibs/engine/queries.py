"""Questions about many records: jobs, sessions, places in the queue; and the count of what a principal has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from dibs.base.cheap import TypeVar
from dibs.base.jsontext import Document
from dibs.base.record import Record
from dibs.core import limits, records
from dibs.core.claims.inspect import state_of
from dibs.core.commands import BeginCount, CountUsage, InspectSession
from dibs.core.decide import decide
from dibs.core.draft import Draft, Missing, View
from dibs.core.events import Event
from dibs.core.holds.capacity import live_holders
from dibs.core.holds.closures import closure_of, longest
from dibs.core.holds.exclusion import blockers
from dibs.core.holds.expiry import ticket_over
from dibs.core.holds.proof import may_use
from dibs.core.holds.quota import payer_of
from dibs.core.lease_outcomes import Frozen, TicketPage, TicketState
from dibs.core.records import Stored
from dibs.core.service.credentials import Usage
from dibs.core.session_outcomes import SessionState
from dibs.core.successes import LastRun, Success, success_in, success_of
from dibs.core.waiting.queue import ahead
from dibs.engine.coordinator import run_all, run_one
from dibs.engine.event_log import fitting
from dibs.stores.port import RecordCorrupt, Store
from dibs.wire.agent_documents import agents_document, listed_agents, page_of
from dibs.wire.documents import failed

Answer = TypeVar("Answer")


def why_frozen(meta: Stored | None) -> str | None:
    """Return why nothing can be claimed in the store with this record, and what to do. None: it is not frozen."""
    mark = meta.frozen if isinstance(meta, records.Meta) else None
    if mark is None:
        return None
    if mark.incomplete:
        return "an import is not complete, so nothing can be claimed. Repeat the import"
    return (
        "dibs export froze it, so nothing can be claimed. If its copy is not in use, run: dibs export --unfreeze STORE"
    )


def begun(store: Store) -> tuple[int, records.Meta]:
    """The time and the store's own record, where a list begins, and whatever else reads records without a command. It
    is refused, as every look, while an import is not complete: a job that is not there yet would look free, and as if
    it had never run, and a token or webhook would be unknown."""
    found = store.read((records.META_KEY,))
    meta = found.records[records.META_KEY].record
    meta = meta if isinstance(meta, records.Meta) else records.Meta()
    if meta.frozen is not None and meta.frozen.incomplete:
        raise failed(Frozen(now_ms=found.now_ms, mark=meta.frozen))
    return found.now_ms, meta


# Read-only queries about queues: who waits for which job, at which position, and who is in the way.

TICKETS_AT_ONCE = 200  # each needs its job, its session and the sessions in the way


def live_tickets(store: Store, ns: str, prefix: str, after: str, limit: int) -> TicketPage:
    """Up to `limit` tickets for jobs whose name begins with `prefix`. `after` is a mark to continue from, and says
    nothing. LIST_LOOKS_MAX tickets are looked at in one call, and long ones fill a page: then it may be short."""
    found: list[TicketState] = []
    (now_ms, _), looked = begun(store), 0
    key = records.ticket_prefix(ns) + after if after else ""
    while True:
        step = min(TICKETS_AT_ONCE, limit - len(found))
        page = store.scan(records.ticket_prefix(ns), key, step)
        tickets = [versioned.record for _, versioned in page if isinstance(versioned.record, records.Ticket)]
        at_ms, live = _live(store, [ticket for ticket in tickets if ticket.name.startswith(prefix)])
        now_ms = max(now_ms, at_ms)
        found += live
        if len(page) < step:
            return TicketPage(now_ms=now_ms, tickets=tuple(found), next_after=None)
        key = page[-1][0]
        looked += step
        is_full = fitting([len(each.ticket.metadata or "") for each in found]) < len(found)
        if len(found) >= limit or is_full or looked >= limits.LIST_LOOKS_MAX:
            return TicketPage(
                now_ms=now_ms, tickets=tuple(found), next_after=key.removeprefix(records.ticket_prefix(ns))
            )


def _live(store: Store, tickets: list[records.Ticket]) -> tuple[int, list[TicketState]]:
    """Those that still wait, all of one moment. If a record cannot be read, each is looked at alone."""
    keys: set[str] = set()
    for ticket in tickets:
        keys |= {records.ticket_key(ticket.ns, ticket.name, ticket.number), records.lock_key(ticket.ns, ticket.name)}
        if ticket.session is not None:
            keys.add(records.session_key(ticket.session))
    now_ms, found = _decided(store, {"": keys}, lambda view, _: [_state(Draft(view), ticket) for ticket in tickets])
    if "" not in found and len(tickets) > 1:
        each_alone = [_live(store, [ticket]) for ticket in tickets]
        return max(at_ms for at_ms, _ in each_alone), [state for _, states in each_alone for state in states]
    return now_ms, [state for state in found.get("", ()) if state is not None]


def _state(draft: Draft, listed: records.Ticket) -> TicketState | None:
    ticket = draft.ticket(listed.ns, listed.name, listed.number)
    if ticket is None or ticket_over(draft, ticket):
        return None
    lock = draft.lock(ticket.ns, ticket.name)
    most = limits.OWNERS_NAMED_MAX  # a waiter for a whole tree may have ten thousand in its way
    in_the_way = blockers(draft, lock, ticket.mode, ticket.slots, ticket.session, ticket.units, most=most)[:most]
    position = ahead(draft, lock, ticket.number, ticket.mode) + 1
    closed = closure_of(draft, ticket.ns, ticket.name)
    present = lock.replace(holders=live_holders(draft, lock)) if lock.holders else lock
    state = state_of(present, draft.now_ms, closed, frozen=draft.meta().frozen is not None)
    return TicketState(ticket=ticket, position=position, blockers=in_the_way, state=state, closure=closed)


# Counts again what principals with a limit have. The rules keep these records right (`core/holds/quota.py`). This is
# needed when a limit is set for somebody who already holds something. It counts record by record while others work;
# what is taken or ended meanwhile is counted correctly. Until it has finished, the count is too low.

_TICKET_PREFIX = "ticket/"


def recount(store: Store, payer: str) -> None:
    run_one(store, BeginCount(payer=payer))
    principal = payer.partition("/")[2]
    keys = [key for key, record in _records(store) if any(each[0] == principal for each in _quotas(record))]
    for start in range(0, len(keys), limits.SWEEP_BATCH_MAX):
        batch = [CountUsage(key=key, payer=payer) for key in keys[start : start + limits.SWEEP_BATCH_MAX]]
        for outcome in run_all(store, batch):
            if isinstance(outcome, BaseException):
                raise outcome


def disagreeing(store: Store) -> list[str]:
    """Find principals whose usage record does not say what their records hold, in whichever count. One that changes at
    this moment may be among them."""
    counted: Counter[tuple[str | None, str]] = Counter()
    for _, record in _records(store):
        for _, quota, what in _quotas(record):
            counted[payer_of(quota), what] += 1
    wrong = []
    for key, record in scan_records(store, records.USAGE_PREFIX):
        payer = key.removeprefix(records.USAGE_PREFIX)
        if isinstance(record, Usage):
            found = [counted[payer, what] for what in ("held", "waiting", "sessions")]
            if found != [record.held, record.waiting, record.sessions]:
                wrong.append(payer)
    return wrong


def _records(store: Store) -> Iterator[tuple[str, Stored]]:
    yield from scan_records(store, records.LOCK_PREFIX, live=True)
    yield from scan_records(store, _TICKET_PREFIX)
    yield from scan_records(store, records.SESSION_PREFIX, live=True)


def scan_records(store: Store, prefix: str, *, live: bool = False) -> Iterator[tuple[str, Stored]]:
    after = ""
    while page := store.scan(prefix, after, limits.LIST_PAGE_DEFAULT, live=live):
        for key, found in page:
            if found.record is not None:
                yield key, found.record
        after = page[-1][0]


def _quotas(record: Stored) -> list[tuple[str, str | None, str]]:
    """The principal, the field `charge`, and what it counts as."""
    if isinstance(record, records.LockRecord):
        return [(each.principal, each.charge, "held") for each in record.holders]
    if isinstance(record, records.Ticket):
        return [(record.principal, record.charge, "waiting")]
    if isinstance(record, records.SessionRecord) and not record.ended_ms:
        return [(record.principal, record.charge, "sessions")]
    return []


SESSIONS_AT_ONCE = 100  # each may hold many jobs


class Page(Record):
    """Jobs in the order of their names. `next_after` is None on the last page."""

    now_ms: int
    locks: list[records.LockRecord]
    next_after: str | None
    closures: tuple[records.Closure, ...] = ()  # of the namespace, in effect
    frozen: bool = False  # the store is


def claimed(
    store: Store,
    ns: str,
    prefix: str = "",
    after: str = "",
    limit: int = limits.LIST_PAGE_MAX,
    states: Sequence[str] = (records.HELD,),
    ended: Sequence[str] = (),
    *,
    pools: bool = False,
) -> Page:
    """Up to `limit` jobs in these states now, whose name begins with `prefix` and comes after `after`; with `ended`,
    only those whose last hold ended in one of these ways. `pools`: only pools, in any state. Held and parked jobs and
    pools, paused or not, cost only what is returned. For other states every job on record is looked at, LIST_LOOKS_MAX
    of them in one call: then the page may be short, even empty, and `next_after` says where to continue. The store is
    asked for few at a time."""
    now_ms, meta = begun(store)
    frozen = meta.frozen is not None
    closures = tuple([each for each in meta.closures if each.ns == ns and now_ms < each.until_ms])
    found: list[records.LockRecord] = []

    def is_wanted(lock: records.LockRecord) -> bool:
        if pools:
            return lock.pooled
        closed = longest(closures, ns, lock.name, now_ms) if closures else None
        return state_of(lock, now_ms, closed, frozen=frozen) in states

    def a_page(locks: list[records.LockRecord], after: str | None) -> Page:
        return Page(now_ms=now_ms, locks=locks, next_after=after, closures=closures, frozen=frozen)

    key = records.lock_key(ns, after) if after else ""
    live = pools or set(states) <= {records.HELD, records.PARKED, records.PAUSED}
    looked, step = 0, min(limit + 1, limits.LIST_PAGE_DEFAULT)
    while True:
        # Jobs in other states are skipped here, so a page of the store may give less than one of ours.
        page = store.scan(records.lock_key(ns, prefix), key, step, live=live)
        locks = [versioned.record for _, versioned in page if isinstance(versioned.record, records.LockRecord)]
        at_ms, live_ones = with_live_owners(store, locks)
        now_ms = max(now_ms, at_ms)
        live_ones = [lock for lock in live_ones if is_wanted(lock)]
        found += [lock for lock in live_ones if not ended or (lock.endings and lock.endings[0].how in ended)]
        most = min(limit, fitting(map(_text_of, found)))
        if len(found) > most:
            return a_page(found[:most], found[most - 1].name)
        if len(page) < step:
            return a_page(found, None)
        key = page[-1][0]
        looked += step
        if looked >= max(limits.LIST_LOOKS_MAX, limit + 1):
            return a_page(found, key.removeprefix(records.lock_key(ns, "")))
        step = min(2 * step, limits.LIST_PAGE_DEFAULT)


def _text_of(lock: records.LockRecord) -> int:
    """Return the length of the texts of callers in an answer about the job."""
    held = sum([len(each.metadata or "") + len(each.checkpoint or "") for each in lock.holders])
    left = lock.endings[0].checkpoint if lock.endings else None
    return held + len(left or "") + len(lock.done.result or "" if lock.done is not None else "")


def with_live_owners(store: Store, locks: list[records.LockRecord]) -> tuple[int, list[records.LockRecord]]:
    """The locks with their live holds only, and the time of that state. Whether a hold is live depends on the lock, its
    owner's session, the outages and the time together, so each lock is read again with them."""
    listed = {records.lock_key(lock.ns, lock.name): lock for lock in locks}
    needs = {
        key: {key, *[records.session_key(each.session) for each in lock.holders if each.session]}
        for key, lock in listed.items()
        if lock.holders
    }

    def present(view: View, key: str) -> records.LockRecord | None:
        lock = view.records[key]
        return lock.replace(holders=live_holders(Draft(view), lock)) if isinstance(lock, records.LockRecord) else None

    now_ms, found = _decided(store, needs, present)
    locks_now = [found.get(key, lock) for key, lock in listed.items()]
    return now_ms, [lock for lock in locks_now if lock is not None]


def _decided(
    store: Store, needs: dict[str, set[str]], ask: Callable[[View, str], Answer]
) -> tuple[int, dict[str, Answer]]:
    """Return the time of the last read, and the answer of `ask` for each of `needs`. What is known to be needed is read
    at once, and again with what a rule asked for in addition: each answer is of one moment, and many cost few reads.
    There is no answer where a record cannot be read."""
    now_ms = 0
    found: dict[str, Answer] = {}
    todo = {each: keys for each, keys in needs.items() if keys}
    while todo:
        try:
            snapshot = store.read({records.META_KEY, *[key for keys in todo.values() for key in keys]})
        except RecordCorrupt as error:
            sound = {each: keys for each, keys in todo.items() if error.key not in keys}
            if len(sound) == len(todo):
                raise
            todo = sound
            continue
        now_ms = snapshot.now_ms
        view = View(now_ms, {key: versioned.record for key, versioned in snapshot.records.items()})
        meta = view.records[records.META_KEY]
        if isinstance(meta, records.Meta) and meta.frozen is not None:
            view.vouched_ms = meta.frozen.at_ms  # nothing expires while it is frozen
        for each in list(todo):
            try:
                found[each] = ask(view, each)
            except Missing as missing:
                todo[each] |= set(missing.keys)
            else:
                del todo[each]
    return now_ms, found


def open_sessions(store: Store, principal: str | None, bound: str | None = None) -> list[SessionState]:
    """The live sessions, of one principal or all; with `bound` only those of that namespace."""
    begun(store)
    sessions = [
        each
        for _, each in scan_records(store, records.SESSION_PREFIX, live=True)
        if isinstance(each, records.SessionRecord)
    ]
    sessions = [each for each in sessions if may_use(each, principal, bound)]
    states = _session_states(store, sessions, principal, bound)
    return [each for session in sessions if (each := states.get(session.id)) is not None and each.live]


def _session_states(
    store: Store, sessions: Sequence[records.SessionRecord], principal: str | None, bound: str | None
) -> dict[str, SessionState]:
    """The states of these sessions now, by their ids."""
    asked = InspectSession(session="", principal=principal, bound=bound)
    found: dict[str, SessionState] = {}
    for first in range(0, len(sessions), SESSIONS_AT_ONCE):
        some = sessions[first : first + SESSIONS_AT_ONCE]
        needs = {session.id: {records.session_key(session.id), *session.holds} for session in some}
        states = _decided(store, needs, lambda view, each: decide(view, asked.replace(session=each)).outcome)[1]
        found |= {session: state for session, state in states.items() if isinstance(state, SessionState)}
    return found


def agents_page(
    store: Store,
    principal: str | None,
    bound: str | None,
    is_gone: Callable[[str | None], bool],
    *,
    after: str = "",
    limit: int = limits.AGENTS_PAGE_DEFAULT,
    ended: bool = False,
) -> Document:
    """The agents that a caller may see, as one document. All sessions are looked at in one scan; the claims of those on
    the page are read together."""
    found = scan_records(store, records.SESSION_PREFIX)
    sessions = [
        each for _, each in found if isinstance(each, records.SessionRecord) and may_use(each, principal, bound)
    ]
    now_ms, _ = begun(store)
    page, next_after = page_of(listed_agents(sessions, now_ms, is_gone, ended=ended), after, limit)
    shown = [session for agent in page for session in (agent.session, *agent.parts)]
    states = _session_states(store, shown, principal, bound)
    return agents_document(page, states.get, now_ms, next_after)


# What jobs did: their events, and their last successes, which are kept up to date for a few that metrics name.


def history(store: Store, ns: str, name: str, limit: int, after: int | None = None) -> list[Event]:
    """The newest events of a job; with `after`, those that follow this one."""
    begun(store)
    return store.events(after or 0, limit, (ns, name), newest=after is None)


def last_run(store: Store, ns: str, name: str) -> LastRun:
    """The last success of a job."""
    begun(store)
    return _last_run(store, ns, name)


def _last_run(store: Store, ns: str, name: str) -> LastRun:
    """The last success: in the job's record, which keeps a few holds, else in HISTORY_PAGE_MAX events."""
    key = records.lock_key(ns, name)
    read = store.read((key,))
    found, now_ms = read.records[key].record, read.now_ms
    run = LastRun(now_ms=now_ms, name=name)
    if isinstance(found, records.LockRecord):
        at_ms, (lock,) = with_live_owners(store, [found]) if found.holders else (now_ms, [found])
        run = run.replace(now_ms=max(now_ms, at_ms), success=success_in(lock))
        if lock.holders:
            run = run.replace(owner=lock.holders[0].owner, held_since_ms=lock.holders[0].since_ms)
    known = run.success
    if known is None or (known.done and known.result is None):  # the mark with its result may be gone
        older = _in_history(store, ns, name)
        if older is not None and (known is None or older.at_ms >= known.at_ms):
            run = run.replace(success=older)
    if run.success is None:
        first = store.events(0, 1)
        run = run.replace(since_ms=first[0].at_ms if first else None)
    return run


def _in_history(store: Store, ns: str, name: str) -> Success | None:
    for most in (limits.HISTORY_PAGE_DEFAULT, limits.HISTORY_PAGE_MAX):
        events = store.events(0, most, (ns, name), newest=True)
        for event in reversed(events):
            success = success_of(event)
            if success is not None:
                return success
        if len(events) < most:
            return None
    return None


class Successes:
    """The time of the last success of each of these jobs (namespace, name); 0: none is on record."""

    def __init__(self, jobs: Iterable[tuple[str, str]]) -> None:
        self.at_ms = dict.fromkeys(jobs, 0)

    def begin(self, store: Store) -> None:
        for job in self.at_ms:
            success = _last_run(store, *job).success  # a server begins, whatever is imported
            if success is not None:
                self._note(job, success.at_ms)

    def heard(self, events: Sequence[Event]) -> None:
        """Take note of what a commit wrote, here or elsewhere. Hearing of it twice does no harm."""
        for event in events:
            if (event.ns, event.job) in self.at_ms and success_of(event) is not None:
                self._note((event.ns, event.job), event.at_ms)

    def _note(self, job: tuple[str, str], at_ms: int) -> None:
        self.at_ms[job] = max(self.at_ms[job], at_ms)
