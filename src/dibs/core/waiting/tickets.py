"""Places in a queue: making, recognising, keeping and removing them, and what is reported to owners about those who
wait. `queue.py` decides who is served when.

A repeat must find its place in a queue of any length without reading the tickets of others. So a lock keeps a mark of
eight characters for each place: a checksum of the name of its ask (`withdraw.py`). A mark proves nothing. It only says
which tickets to read; the ticket is the proof.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import AcquireTerms
from dibs.core.draft import Draft
from dibs.core.events import Event
from dibs.core.holds.capacity import own_hold
from dibs.core.holds.expiry import ticket_over
from dibs.core.holds.grants import swap
from dibs.core.holds.proof import may_use, same, session_owner
from dibs.core.holds.quota import WAITING, return_quota, take_quota
from dibs.core.limits import TICKET_MS, WANT_MS, WANTED_MAX
from dibs.core.names import in_tree
from dibs.core.outcomes import Blocker, Queued
from dibs.core.records import (
    SHARED,
    Holder,
    LockRecord,
    Part,
    SessionRecord,
    Ticket,
    TreeEntry,
    Wait,
    Want,
    lock_key,
    split_lock_key,
    terms_of,
    ticket_key,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.session_outcomes import WaitedFor


PEEK = 16  # how many tickets are loaded at once
_MARK_CHARS = 8


def join(draft: Draft, ask: AcquireTerms, names: tuple[str, ...]) -> Ticket:
    """Make a place at the end of the queue of each of `names`. Returns the ticket in the queue of the first."""
    locks = [draft.lock(ask.ns, name) for name in names]
    parts = _new_parts(draft, locks)
    draft.need(*[ticket_key(ask.ns, part.name, part.number) for part in parts])  # read what is written
    tickets = [_new_ticket(draft, ask, part, parts if len(parts) > 1 else ()) for part in parts]
    for lock, ticket in zip(locks, tickets, strict=True):
        draft.put(ticket)
        mark = _mark_of(ticket.principal, ticket.request_key or ticket.lease_id)
        line, marks = (*lock.line, ticket.number), lock.marks + mark
        draft.put(lock.replace(next_ticket=ticket.number + 1, line=line, marks=marks))
        if in_tree(lock.name):
            tree = draft.tree(lock.ns)
            entry = TreeEntry(name=lock.name, number=ticket.number, mode=ticket.mode)
            draft.put(tree.replace(line=(*tree.line, entry), next_ticket=ticket.number + 1))
        draft.events.append(ticket_event(draft, ticket, events.QUEUED))
    _note_wait(draft, tickets)
    return tickets[0]


def _new_parts(draft: Draft, locks: list[LockRecord]) -> tuple[Part, ...]:
    """A number for each job. In a tree it is higher than all numbers of the common queue, too."""
    parts, in_trees = [], 0
    for lock in locks:
        number = lock.next_ticket
        if in_tree(lock.name):
            number = in_trees = max(number, draft.tree(lock.ns).next_ticket, in_trees + 1)
        parts.append(Part(name=lock.name, number=number))
    return tuple(parts)


def recognised(draft: Draft, ask: AcquireTerms, names: tuple[str, ...]) -> Ticket | None:
    """The place of a caller that asked before: found by its request key, or because this same command was committed and
    its reply was lost. Only an ask without a key is known by its session: with one, it is another ask of the session.
    Reads only tickets that may be its own."""
    name = names[0]
    lock = draft.lock(ask.ns, name)
    session = draft.session(ask.session) if ask.session is not None else None
    numbers = marked(lock, ask.principal, ask.request_key or ask.fresh_lease_id)
    if ask.request_key is None:
        numbers = sorted({*numbers, *_waits(session, ask.ns, name)})  # a queue is sorted by number
    draft.need(*[ticket_key(ask.ns, name, number) for number in numbers])
    for number in numbers:
        ticket = draft.ticket(ask.ns, name, number)
        if ticket is None or (ticket.principal, ticket.mode) != (ask.principal, ask.mode):
            continue
        if names_of(ticket) != names:
            continue
        if ticket.lease_id == ask.fresh_lease_id:
            return ticket
        if ask.request_key is not None and ticket.request_key == ask.request_key:
            return ticket
        if same(ask.session, ticket.session) and ask.request_key is None and ticket.request_key is None:
            return ticket
    return None


def session_tickets(draft: Draft, session_id: str | None, ns: str, name: str) -> list[Ticket]:
    """The live places of a session in a job's own queue."""
    session = draft.session(session_id) if session_id is not None else None
    numbers = _waits(session, ns, name)
    draft.need(*[ticket_key(ns, name, number) for number in numbers])
    tickets = [draft.ticket(ns, name, number) for number in numbers]
    return [ticket for ticket in tickets if ticket is not None and not ticket_over(draft, ticket)]


def _waits(session: SessionRecord | None, ns: str, name: str) -> list[int]:
    waits = session.waits if session is not None else ()
    return [wait.number for wait in waits if (wait.ns, wait.name) == (ns, name)]


def names_of(ticket: Ticket) -> tuple[str, ...]:
    return tuple([part.name for part in parts_of(ticket)])


def marked(lock: LockRecord, principal: str, ask: str) -> list[int]:
    """The places in a job's queue that may be of this ask, by their marks."""
    if not lock.line:
        return []
    mark = _mark_of(principal, ask)
    if mark not in lock.marks:
        return []
    return [number for at, number in enumerate(lock.line) if lock.marks.startswith(mark, at * _MARK_CHARS)]


def _mark_of(principal: str, ask: str) -> str:
    from binascii import crc32  # imported here, because a claim without a queue does not need it

    return f"{crc32(f'{principal} {ask}'.encode('utf-8', 'surrogatepass')):08x}"


def parts_of(ticket: Ticket) -> tuple[Part, ...]:
    return ticket.whole or (Part(name=ticket.name, number=ticket.number),)


def needed_names(
    draft: Draft, claim: AcquireTerms | Ticket | Want, session: str | None, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Of the jobs that a session claims or waits for, those that it does not have. What it has is not judged again:
    such a job may be done, parked, closed or smaller meanwhile, and is its owner's all the same. The queue, closures
    and the graph of waits ask this; `judge` knows more of a newcomer, who may prove a hold without a session, too."""
    if session is None:
        return names
    return tuple([name for name in names if own_hold(draft, draft.lock(claim.ns, name), session, claim.mode) is None])


def needed_parts(draft: Draft, ticket: Ticket) -> tuple[Part, ...]:
    """The parts that a place still waits for."""
    parts = parts_of(ticket)
    needed = needed_names(draft, ticket, ticket.session, names_of(ticket))
    return parts if len(needed) == len(parts) else tuple([part for part in parts if part.name in needed])


def _new_ticket(draft: Draft, ask: AcquireTerms, part: Part, whole: tuple[Part, ...]) -> Ticket:
    return Ticket(
        **terms_of(ask) | {"owner": ask.owner or session_owner(draft, ask.session)},
        name=part.name,
        number=part.number,
        lease_id=ask.fresh_lease_id,
        since_ms=draft.now_ms,
        renewed_ms=draft.now_ms,
        expires_ms=draft.now_ms + TICKET_MS,
        acl=getattr(ask, "acl", None),
        whole=whole,
        charge=take_quota(draft, ask.payer, WAITING) if ask.payer is not None else None,
    )


def _note_wait(draft: Draft, tickets: list[Ticket]) -> None:
    if tickets[0].session is None:
        return
    session = draft.session(tickets[0].session)
    if session is not None:
        waits = [Wait(ns=ticket.ns, name=ticket.name, number=ticket.number) for ticket in tickets]
        draft.put(session.replace(waits=(*session.waits, *waits), want=None))


def keep(draft: Draft, ticket: Ticket, ask: AcquireTerms | None = None) -> Ticket:
    """Its owner asked again, or (None) is kept waiting by its server. It is written only from time to time, so that
    frequent polls are not frequent writes."""
    used = ticket.used
    if ask is not None and ticket.request_key is None and ticket.lease_id != ask.fresh_lease_id:
        used = True  # the server that made it does not know who waits at it
    if used != ticket.used or draft.now_ms - ticket.renewed_ms > TICKET_MS // 6:
        for part in parts_of(ticket):
            each = draft.ticket(ticket.ns, part.name, part.number)
            if each is not None:
                expires_ms = draft.now_ms + TICKET_MS
                draft.put(each.replace(renewed_ms=draft.now_ms, expires_ms=expires_ms, used=used))
    return ticket


def remove(draft: Draft, ticket: Ticket) -> tuple[Part, ...]:
    """Remove a ticket from all its queues, without an event, because it was granted. Returns the places that it had. Of
    a ticket of which only a part was stored, another may have a number meanwhile, also its own ask repeated: that one
    stays."""
    found = [(part, draft.ticket(ticket.ns, part.name, part.number)) for part in parts_of(ticket)]
    whole = (ticket.lease_id, ticket.whole)
    entries = [(part, each) for part, each in found if each is None or (each.lease_id, each.whole) == whole]
    for part, each in entries:
        remove_from_queue(draft, ticket.ns, part.name, part.number)
        if each is not None:
            draft.drop(each)
            if each.charge is not None:
                return_quota(draft, each.charge, WAITING)
    if ticket.session is not None:
        session = draft.session(ticket.session)
        if session is not None:
            gone = {(part.name, part.number) for part, _ in entries}
            waits = tuple([w for w in session.waits if w.ns != ticket.ns or (w.name, w.number) not in gone])
            draft.put(session.replace(waits=waits))
    return tuple([part for part, _ in entries])


def remove_from_queue(draft: Draft, ns: str, name: str, number: int) -> None:
    if in_tree(name):
        queue = draft.tree_queue(ns)
        if queue.remove(name, number):
            draft.put(draft.tree(ns).replace(line=queue.line))
    lock = draft.lock(ns, name)
    if number in lock.line:
        at = lock.line.index(number)
        marks = lock.marks[: at * _MARK_CHARS] + lock.marks[(at + 1) * _MARK_CHARS :]
        draft.put(lock.replace(line=lock.line[:at] + lock.line[at + 1 :], marks=marks))


def drop(draft: Draft, ticket: Ticket, reason: str, by: str | None = None) -> None:
    """Remove a ticket from its queues, with an event that says why."""
    for part in remove(draft, ticket):
        gone = ticket.replace(name=part.name, number=part.number)
        draft.events.append(ticket_event(draft, gone, events.LEFT, reason=reason, by=by))


def ticket_event(draft: Draft, ticket: Ticket, kind: str, reason: str | None = None, by: str | None = None) -> Event:
    return Event(
        at_ms=draft.now_ms,
        kind=kind,
        ns=ticket.ns,
        job=ticket.name,
        owner=ticket.owner,
        principal=ticket.principal,
        mode=ticket.mode,
        ticket=ticket.number,
        reason=reason,
        by=by,
    )


# What a session wants: a refused claim that counts as waiting, for `deadlock.py`. An agent that asks, is refused,
# thinks and asks again waits just like one in the queue. So the last refusal of a session that holds something counts
# until the session gets something, lets something go or asks for something else, and for WANT_MS at most. A reported
# deadlock is also a refusal: the others in the cycle must get it, too, when they ask again. So is a wait that was given
# up.


def note_want(draft: Draft, ask: AcquireTerms | Ticket, names: tuple[str, ...]) -> None:
    session = draft.session(ask.session) if ask.session is not None else None
    if session is not None and session.holds:
        want = Want(
            ns=ask.ns,
            name=names[0],
            until_ms=draft.now_ms + WANT_MS,
            mode=ask.mode,
            slots=ask.slots,
            units=ask.units,
            at_ms=draft.now_ms,
            more=names[1:],
        )
        draft.put(session.replace(want=want))


def forget_want(draft: Draft, ask: AcquireTerms) -> None:
    """The session got a final answer to a new request, so its earlier refusal does not count any more."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is not None and session.want is not None and may_use(session, ask.principal, ask.bound):
        draft.put(session.replace(want=None))


# Reports to an owner who waits for what it holds: the promise `queue:holder-told`.
#
# Each waiter is reported to an owner once. Tickets of a queue have rising numbers, so a hold remembers one number
# (`Holder.told`): the last ticket that was reported. It is stored by the write that renews the hold, so reporting costs
# no write.
#
# A heartbeat of a lease reads the job's own queue, which is in the same record, and the queue of a tree only if a
# waiter marked the hold (`wanted`). A heartbeat of a session mostly comes from a timer, and reads no queues: whoever
# begins to wait notes the job in the session, and it is reported when the worker itself asks (`active`).


def waiters(draft: Draft, lock: LockRecord, holder: Holder, *, whole: bool = False) -> tuple[int, int, int]:
    """Return how many wait for a hold, how many of them were not reported to its owner, and the number of the newest
    ticket. Places of the owner's own session do not count. A waiter that died counts until its place is seen to be
    over. `whole`: looks at the queue of a tree even if nothing says that somebody waits there."""
    if not lock.line and not (in_tree(lock.name) and (whole or holder.wanted)):
        return 0, 0, 0
    entries = _queue(draft, lock, holder.mode)
    session = draft.session(holder.session) if holder.session is not None else None
    if session is not None and session.waits:
        own = {(wait.name, wait.number) for wait in session.waits if wait.ns == lock.ns}
        entries = [entry for entry in entries if entry not in own]
    numbers = [number for _, number in entries]
    return len(numbers), sum([number > holder.told for number in numbers]), max(numbers, default=0)


def _queue(draft: Draft, lock: LockRecord, mode: str) -> list[tuple[str, int]]:
    if not in_tree(lock.name):
        return [(lock.name, number) for number in lock.line]
    return [
        (entry.name, entry.number)
        for entry in draft.tree_queue(lock.ns).of(lock.name)
        if not (mode == SHARED and entry.mode == SHARED)
    ]


def note_wanted(draft: Draft, queued: Queued) -> None:
    """Somebody begins to wait: mark the holds in the way whose owners could not see it otherwise."""
    for blocker in queued.blockers[:WANTED_MAX]:
        _mark_wanted(draft, queued.ns, blocker)


def _mark_wanted(draft: Draft, ns: str, blocker: Blocker) -> None:
    lock = draft.lock(ns, blocker.name)
    if in_tree(lock.name):
        for holder in lock.holders:
            if holder.lease_id == blocker.holder.lease_id and not holder.wanted:
                draft.put(swap(lock, holder.replace(wanted=True)))
    session = draft.session(blocker.holder.session) if blocker.holder.session is not None else None
    key = lock_key(ns, lock.name)
    if session is not None and key not in session.wanted and len(session.wanted) < WANTED_MAX:
        draft.put(session.replace(wanted=(*session.wanted, key)))


def report_waiters(draft: Draft, session: SessionRecord, bound: str | None) -> tuple[WaitedFor, ...]:
    """The jobs of a session with waiters that were not reported to it. From now on they count as reported."""
    from dibs.core.session_outcomes import WaitedFor  # no claim needs it

    keys = [key for key in session.wanted if bound in (None, split_lock_key(key)[0])]
    draft.need(*keys)
    found = []
    for ns, name in map(split_lock_key, keys):
        for holder in draft.lock(ns, name).holders:
            if holder.session == session.id:
                lock = draft.lock(ns, name)
                waiting, new, newest = waiters(draft, lock, holder, whole=True)
                still = waiting > 0 and in_tree(name)
                told = holder.replace(told=max(holder.told, newest), wanted=still)
                if told != holder:  # else nobody came since
                    draft.put(swap(lock, told))
                if new:
                    found.append(WaitedFor(ns=ns, name=name, waiting=waiting, new=new))
    draft.put(session.replace(wanted=tuple([key for key in session.wanted if key not in keys])))
    return tuple(found)
