"""Places in a line: taking one, being recognised in it, keeping it, giving it up. Who is served when is `line.py`."""

from __future__ import annotations

from dibs.core import events
from dibs.core.events import Event
from dibs.core.limits import TICKET_MS
from dibs.core.names import in_tree
from dibs.core.records import Part, Ticket, TreePlace, Wait, ticket_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import Ask
    from dibs.core.draft import Draft

PEEK = 16  # how many tickets are loaded at once


def join(draft: Draft, ask: Ask, names: tuple[str, ...]) -> Ticket:
    """Take a place at the end of the line of each of `names`. Returns the ticket of the first."""
    locks = [draft.lock(ask.ns, name) for name in names]
    parts = tuple([Part(name=lock.name, number=lock.next_ticket) for lock in locks])
    draft.need(*[ticket_key(ask.ns, part.name, part.number) for part in parts])  # what is written was read
    tickets = [_new_ticket(draft, ask, part, parts if len(parts) > 1 else ()) for part in parts]
    for lock, ticket in zip(locks, tickets, strict=True):
        draft.put(ticket)
        draft.put(lock.replace(next_ticket=ticket.number + 1, line=(*lock.line, ticket.number)))
        if in_tree(lock.name):
            tree = draft.tree(lock.ns)
            place = TreePlace(name=lock.name, number=ticket.number, mode=ticket.mode)
            draft.put(tree.replace(line=(*tree.line, place)))
        draft.tell(ticket_event(draft, ticket, events.QUEUED))
    _note_wait(draft, tickets)
    return tickets[0]


def recognised(draft: Draft, ask: Ask, name: str) -> Ticket | None:
    """By key or session anywhere in the line. This very command, whose commit went through and whose reply was lost, is
    repeated at once: its place is among the last."""
    line = draft.lock(ask.ns, name).line
    if ask.request_key is None and ask.session is None:
        line = line[-PEEK:]
    draft.need(*[ticket_key(ask.ns, name, number) for number in line])
    for number in line:
        ticket = draft.ticket(ask.ns, name, number)
        if ticket is None or (ticket.principal, ticket.mode) != (ask.principal, ask.mode):
            continue
        if ticket.lease_id == ask.fresh_lease_id:
            return ticket
        if ask.request_key is not None and ticket.request_key == ask.request_key:
            return ticket
        if ask.session is not None and ticket.session == ask.session and ticket.request_key is None:
            return ticket
    return None


def parts_of(ticket: Ticket) -> tuple[Part, ...]:
    """The places that a ticket stands for: one, or one in the line of each job it wants."""
    return ticket.whole or (Part(name=ticket.name, number=ticket.number),)


def _new_ticket(draft: Draft, ask: Ask, part: Part, whole: tuple[Part, ...]) -> Ticket:
    return Ticket(
        ns=ask.ns,
        name=part.name,
        number=part.number,
        lease_id=ask.fresh_lease_id,
        owner=ask.owner,
        principal=ask.principal,
        ttl_ms=ask.ttl_ms,
        since_ms=draft.now_ms,
        renewed_ms=draft.now_ms,
        expires_ms=draft.now_ms + TICKET_MS,
        mode=ask.mode,
        slots=ask.slots,
        session=ask.session,
        ephemeral=ask.ephemeral,
        metadata=ask.metadata,
        request_key=ask.request_key,
        delay_ms=ask.delay_ms,
        again=ask.again,
        max_attempts=ask.max_attempts,
        acl=getattr(ask, "acl", None),
        badges=ask.badges,
        admin=ask.admin,
        whole=whole,
    )


def _note_wait(draft: Draft, tickets: list[Ticket]) -> None:
    if tickets[0].session is None:
        return
    session = draft.session(tickets[0].session)
    if session is not None:
        waits = [Wait(ns=ticket.ns, name=ticket.name, number=ticket.number) for ticket in tickets]
        draft.put(session.replace(waits=(*session.waits, *waits), want=None))


def keep(draft: Draft, ticket: Ticket) -> None:
    """Its owner asked again. Written only now and then: a poll every second need not be a write every second."""
    for part in parts_of(ticket):
        each = draft.ticket(ticket.ns, part.name, part.number)
        if each is not None and draft.now_ms - each.renewed_ms > TICKET_MS // 6:
            draft.put(each.replace(renewed_ms=draft.now_ms, expires_ms=draft.now_ms + TICKET_MS))


def remove(draft: Draft, ticket: Ticket) -> None:
    """Take a ticket, with all its parts, out of every line. Says nothing: being granted is no leaving."""
    for part in parts_of(ticket):
        each = draft.ticket(ticket.ns, part.name, part.number)
        remove_place(draft, ticket.ns, part.name, part.number)
        if each is not None:
            draft.drop(each)
    if ticket.session is not None:
        session = draft.session(ticket.session)
        if session is not None:
            gone = {(part.name, part.number) for part in ticket.whole} or {(ticket.name, ticket.number)}
            waits = tuple([w for w in session.waits if w.ns != ticket.ns or (w.name, w.number) not in gone])
            draft.put(session.replace(waits=waits))


def remove_place(draft: Draft, ns: str, name: str, number: int) -> None:
    if in_tree(name):
        tree = draft.tree(ns)
        kept = tuple([place for place in tree.line if (place.name, place.number) != (name, number)])
        if len(kept) != len(tree.line):
            draft.put(tree.replace(line=kept))
    lock = draft.lock(ns, name)
    if lock.line and lock.line[0] == number:
        draft.put(lock.replace(line=lock.line[1:]))
    elif number in lock.line:
        draft.put(lock.replace(line=tuple([each for each in lock.line if each != number])))


def drop(draft: Draft, ticket: Ticket, reason: str) -> None:
    """Take a ticket out of the line and say why."""
    remove(draft, ticket)
    for part in parts_of(ticket):
        gone = ticket.replace(name=part.name, number=part.number)
        draft.tell(ticket_event(draft, gone, events.LEFT, reason=reason))


def ticket_event(draft: Draft, ticket: Ticket, kind: str, reason: str | None = None) -> Event:
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
    )
