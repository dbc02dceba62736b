"""Waiting in line: the promises `queue:fifo`, `queue:no-dead-grant` and `queue:one-wake`.

A place in a job's line is a ticket. The lock keeps the order (numbers only, so that a thousand waiters cost a few
bytes each), each ticket is a record of its own. `advance` is the only function that gives a job to a waiter. Every
rule that frees something calls it in the same decision, so a job is never free while a live waiter wants it, and no
newcomer can take it in between.

All names of a tree share one line, in which a place waits for the claims and for the earlier places that overlap it. A
ticket for several jobs is in all their lines at once and holds nothing. A job in whose line it is first is reserved
for it until the others are free, too. Its places were made in one commit, so two such tickets have the same order in
all lines and cannot wait for each other.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.access import allowed, put_list
from dibs.core.exclusion import blockers, own_hold, tree_neighbours
from dibs.core.expiry import settle, ticket_over
from dibs.core.grants import grant
from dibs.core.keys import lock_key, ticket_key
from dibs.core.names import in_tree, overlaps
from dibs.core.outcomes import Granted, GrantedAll, Left, PlacesKept
from dibs.core.records import EXCLUSIVE, SHARED, Part, Ticket
from dibs.core.tickets import (
    NOBODY,
    PEEK,
    drop,
    has_seat,
    keep,
    may_wait,
    names_of,
    parts_of,
    recognised,
    remove,
    remove_place,
    ticket_event,
)
from dibs.core.view import HandedOver
from dibs.core.wants import note_want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import Acquire, AcquireAll, KeepPlaces, Leave
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import LockRecord, TreePlace


def place_of(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> Ticket | None:
    """The caller's present place in the line: of its ticket, or of its request key or session, because a repeat after
    a lost reply must not get a second place. A lost place does not count."""
    ticket = None
    if ask.ticket_id is not None:
        ticket = draft.ticket(ask.ns, names[0], ask.ticket)
        if ticket is not None and (ticket.lease_id, ticket.principal) != (ask.ticket_id, ask.principal):
            ticket = None
        if ticket is not None and names_of(ticket) != names:
            ticket = None
    if ticket is None and may_wait(ask):
        ticket = recognised(draft, ask, names)
    if ticket is None:
        return None
    if ticket_over(draft, ticket):
        drop(draft, ticket, "stopped asking")
        advance_all(draft, ticket)
        return None
    return ticket


def advance_all(draft: Draft, ticket: Ticket) -> None:
    """After a ticket for several jobs left: each of its lines may advance."""
    for part in parts_of(ticket):
        advance(draft, ticket.ns, part.name)


def advance(draft: Draft, ns: str, name: str) -> None:
    """Give the job to the head of its line, and to the next ones as long as they fit. A ticket for several jobs that
    is served or dropped advances its other lines, too, after this one."""
    lines = [name]
    while lines:
        name = lines.pop()
        if in_tree(name):
            _advance_tree(draft, ns, lines)
        else:
            _advance_line(draft, ns, name, lines)


def _advance_line(draft: Draft, ns: str, name: str, lines: list[str]) -> None:
    # Mostly one is served and the next one waits, so two are enough; a line of dead tickets is loaded in larger
    # chunks.
    peek, loaded = 2, 0
    while True:
        lock = draft.lock(ns, name)
        if not lock.line:
            return
        if not loaded:
            draft.need(*[ticket_key(ns, name, number) for number in lock.line[:peek]])
            peek, loaded = PEEK, peek
        loaded -= 1
        if not _step(draft, ns, name, lock.line[0], lines):
            return


def _advance_tree(draft: Draft, ns: str, lines: list[str]) -> None:
    """Walk along the line once: a place is served if no hold and no earlier place overlaps it."""
    line = draft.tree(ns).line
    draft.need(*[ticket_key(ns, place.name, place.number) for place in line])
    for place in line:
        # A ticket for several jobs may have removed its other places.
        while place in draft.tree(ns).line and _step(draft, ns, place.name, place.number, lines):
            pass


def _step(draft: Draft, ns: str, name: str, number: int, lines: list[str]) -> bool:
    """Serve one place whose turn it is. False if it must wait longer. Adds the other lines that may advance to
    `lines`."""
    ticket = draft.ticket(ns, name, number)
    if ticket is None:
        remove_place(draft, ns, name, number)
        return True
    reason = _pointless(draft, ticket)
    if reason is None:
        if not _ready(draft, ticket):
            return False
        if _settle_parts(draft, ticket):
            return True  # an expiry that was just noticed may have delayed or parked the job: look again
        _hand_over(draft, ticket)
        if ticket.session is not None:
            lines += _serve_own(draft, ns, ticket.session)
    else:
        drop(draft, ticket, reason)
    lines += [part.name for part in ticket.whole if part.name != name]
    return True


def _pointless(draft: Draft, ticket: Ticket) -> str | None:
    """Why a ticket must not be served: its owner is gone or not allowed, or the job is done."""
    if ticket_over(draft, ticket):
        return "stopped asking"
    for part in parts_of(ticket):
        lock = draft.lock(ticket.ns, part.name)
        if not allowed(draft, lock, ticket):
            return "forbidden"
        if lock.parked:
            return "parked"
        if lock.done is not None and draft.now_ms < lock.done.until_ms and not ticket.again:
            return "done"
    return None


def drop_forbidden(draft: Draft, ns: str, name: str) -> None:
    """After a job's access list changed: drop the waiters that it no longer allows."""
    numbers = draft.lock(ns, name).line
    draft.need(*[ticket_key(ns, name, number) for number in numbers])
    for number in numbers:
        ticket = draft.ticket(ns, name, number)
        if ticket is not None and not allowed(draft, draft.lock(ns, name), ticket):
            drop(draft, ticket, "forbidden")
            advance_all(draft, ticket)


def _ready(draft: Draft, ticket: Ticket) -> bool:
    """Whether all jobs of the ticket are free or held by its owner, and it is first in every line."""
    for part in parts_of(ticket):
        lock = draft.lock(ticket.ns, part.name)
        if own_hold(draft, lock, ticket.session, ticket.mode) is not None:
            continue
        if draft.now_ms < lock.delay_until_ms or ahead(draft, lock, part.number, ticket.mode):
            return False
        if blockers(draft, lock, ticket.mode, ticket.slots, ticket.session):
            return False
    return True


def ahead(draft: Draft, lock: LockRecord, number: int, mode: str) -> int:
    """How many come before this place (number 0: a newcomer)."""
    if not in_tree(lock.name):
        return lock.line.index(number) if number in lock.line else len(lock.line)
    return len(_tree_ahead(draft, lock, number, mode))


def _tree_ahead(draft: Draft, lock: LockRecord, number: int, mode: str) -> list[TreePlace]:
    found = []
    for place in draft.tree(lock.ns).line:
        if (place.name, place.number) == (lock.name, number):
            break
        if overlaps(place.name, lock.name) and not (mode == SHARED and place.mode == SHARED):
            found.append(place)
    return found


def first_ahead(draft: Draft, lock: LockRecord, mode: str) -> Ticket | None:
    """The first place in the line, ahead of a newcomer."""
    if not in_tree(lock.name):
        return draft.ticket(lock.ns, lock.name, lock.line[0]) if lock.line else None
    places = _tree_ahead(draft, lock, 0, mode)
    return draft.ticket(lock.ns, places[0].name, places[0].number) if places else None


def settled(draft: Draft, ns: str, name: str) -> LockRecord:
    """The present lock, for commands of its owner: expired holds are ended, and the job goes to the next waiter."""
    before = draft.lock(ns, name)
    if settle(draft, ns, name) is not before:
        advance(draft, ns, name)
    return draft.lock(ns, name)


def refresh(draft: Draft, ns: str, name: str, mode: str = EXCLUSIVE) -> LockRecord:
    """The present lock, for claims: expired holds that block it are ended, and its line advances. The line advances
    even if nothing ended: its head may have stopped asking, or a lock delay may be over."""
    before = len(draft.events)
    lock = _settle_all(draft, ns, name, mode)
    if lock.line or len(draft.events) > before or (in_tree(name) and draft.tree(ns).line):
        advance(draft, ns, name)
    return draft.lock(ns, name)


def _settle_all(draft: Draft, ns: str, name: str, mode: str) -> LockRecord:
    lock = settle(draft, ns, name)
    if in_tree(name):
        neighbours = list(tree_neighbours(draft, ns, name, mode))
        draft.need(*[lock_key(ns, each) for each in neighbours])
        for each in neighbours:
            settle(draft, ns, each)
    return lock


def serve_own(draft: Draft, ns: str, session_id: str | None) -> None:
    """After a session got a job in another way: it may now have everything that another of its tickets waits for."""
    if session_id is not None:
        for name in _serve_own(draft, ns, session_id):
            advance(draft, ns, name)


def _serve_own(draft: Draft, ns: str, session_id: str) -> list[str]:
    """Serve the tickets of a session that now holds all their jobs. Returns the lines that may advance."""
    session = draft.session(session_id)
    waits = [wait for wait in session.waits if wait.ns == ns] if session is not None else []
    draft.need(*[ticket_key(ns, wait.name, wait.number) for wait in waits])
    for wait in waits:
        ticket = draft.ticket(ns, wait.name, wait.number)
        if ticket is not None and not ticket_over(draft, ticket):
            locks = [draft.lock(ns, part.name) for part in parts_of(ticket)]
            if all(own_hold(draft, lock, ticket.session, ticket.mode) is not None for lock in locks):
                _hand_over(draft, ticket)
    return [wait.name for wait in waits]


def _settle_parts(draft: Draft, ticket: Ticket) -> bool:
    """End unnoticed expired holds that block a ticket. Returns whether there were any."""
    before = len(draft.events)
    for part in parts_of(ticket):
        _settle_all(draft, ticket.ns, part.name, ticket.mode)
    return len(draft.events) > before


def _hand_over(draft: Draft, ticket: Ticket) -> None:
    remove(draft, ticket)
    parts = parts_of(ticket)
    grants = tuple([_grant_part(draft, ticket, part) for part in parts])
    outcome = GrantedAll(now_ms=draft.now_ms, grants=grants) if ticket.whole else grants[0]
    draft.handed.append(HandedOver(ns=ticket.ns, name=parts[0].name, number=parts[0].number, outcome=outcome))


def _grant_part(draft: Draft, ticket: Ticket, part: Part) -> Granted:
    lock = draft.lock(ticket.ns, part.name)
    own = own_hold(draft, lock, ticket.session, ticket.mode)
    if own is not None:
        gone = ticket.replace(name=part.name, number=part.number)
        draft.tell(ticket_event(draft, gone, events.LEFT, reason="granted otherwise"))
        # From now on two asks know of it.
        held = [each.replace(seat=NOBODY) if each.lease_id == own.lease_id else each for each in lock.holders]
        draft.put(lock.replace(holders=tuple(held)))
        return Granted(now_ms=draft.now_ms, name=part.name, lease=own, again=True)
    granted = grant(draft, ticket, part.name, ticket.lease_id, part.number)
    if ticket.acl is not None and not lock.acl:
        put_list(draft, draft.lock(ticket.ns, part.name), ticket.acl)
    return granted


def leave(draft: Draft, command: Leave) -> Outcome:
    """Give up a place. Repeating it succeeds. A place that was served already is not given up by this."""
    ticket = draft.ticket(command.ns, command.name, command.ticket)
    if ticket is None or (ticket.lease_id, ticket.principal) != (command.ticket_id, command.principal):
        return Left(now_ms=draft.now_ms, name=command.name, was_in=False)
    if has_seat(ticket, command.seat):
        drop(draft, ticket, "left")
        note_want(draft, ticket, names_of(ticket))
        advance_all(draft, ticket)
    return Left(now_ms=draft.now_ms, name=command.name, was_in=True)


def keep_places(draft: Draft, command: KeepPlaces) -> Outcome:
    """Keep the places of callers that wait at a server. Returns the places that are gone, so that their callers can be
    told."""
    draft.need(*[ticket_key(ns, name, number) for ns, name, number in command.places])
    gone = []
    for ns, name, number in command.places:
        ticket = draft.ticket(ns, name, number)
        if ticket is None or ticket_over(draft, ticket):
            gone.append((ns, name, number))
        else:
            keep(draft, ticket)
    return PlacesKept(now_ms=draft.now_ms, gone=tuple(gone))
