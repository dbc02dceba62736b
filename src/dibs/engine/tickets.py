"""Read-only queries about lines: who waits for which job, at which place, and who is in the way."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.draft import Draft
from dibs.core.exclusion import blockers
from dibs.core.expiry import ticket_over
from dibs.core.keys import META_KEY, lock_key, session_key, ticket_key, ticket_prefix
from dibs.core.limits import LIST_LOOKS_MAX
from dibs.core.outcomes import Blocker
from dibs.core.queue import ahead
from dibs.core.records import Ticket
from dibs.core.view import Missing, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Store

TICKETS_AT_ONCE = 200  # each needs its job, its session and the sessions in the way


class TicketState(Record):
    """Somebody who waits now. `blockers` is empty if nobody holds the job: then it rests, or waits for its first in
    line."""

    ticket: Ticket
    position: int
    blockers: tuple[Blocker, ...]


class TicketPage(Record):
    """Tickets in no useful order. `next_after` is None on the last page."""

    now_ms: int
    tickets: list[TicketState]
    next_after: str | None


def live_tickets(store: Store, ns: str, prefix: str, after: str, limit: int) -> TicketPage:
    """Up to `limit` tickets for jobs whose name begins with `prefix`. The order of the records is that of
    their numbers as text, so `after` is a mark to continue from and says nothing. LIST_LOOKS_MAX tickets are looked
    at in one call: then the page may be short."""
    found: list[TicketState] = []
    now_ms, looked = store.read(()).now_ms, 0
    key = ticket_prefix(ns) + after if after else ""
    while True:
        step = min(TICKETS_AT_ONCE, limit - len(found))
        page = store.scan(ticket_prefix(ns), key, step)
        tickets = [versioned.record for _, versioned in page if isinstance(versioned.record, Ticket)]
        at_ms, live = _live(store, [ticket for ticket in tickets if ticket.name.startswith(prefix)])
        now_ms = max(now_ms, at_ms)
        found += live
        if len(page) < step:
            return TicketPage(now_ms=now_ms, tickets=found, next_after=None)
        key = page[-1][0]
        looked += step
        if len(found) >= limit or looked >= LIST_LOOKS_MAX:
            return TicketPage(now_ms=now_ms, tickets=found, next_after=key.removeprefix(ticket_prefix(ns)))


def _live(store: Store, tickets: list[Ticket]) -> tuple[int, list[TicketState]]:
    """Those that still wait, all of one moment. What the rules ask for besides is read as they ask."""
    if not tickets:
        return 0, []
    keys = {META_KEY}
    for ticket in tickets:
        keys |= {ticket_key(ticket.ns, ticket.name, ticket.number), lock_key(ticket.ns, ticket.name)}
        if ticket.session is not None:
            keys.add(session_key(ticket.session))
    while True:
        snapshot = store.read(keys)
        draft = Draft(View(snapshot.now_ms, {key: each.record for key, each in snapshot.records.items()}))
        try:
            found = [_state(draft, ticket) for ticket in tickets]
        except Missing as missing:
            keys |= set(missing.keys)
        else:
            return snapshot.now_ms, [state for state in found if state is not None]


def _state(draft: Draft, listed: Ticket) -> TicketState | None:
    ticket = draft.ticket(listed.ns, listed.name, listed.number)
    if ticket is None or ticket_over(draft, ticket):
        return None
    lock = draft.lock(ticket.ns, ticket.name)
    in_the_way = blockers(draft, lock, ticket.mode, ticket.slots, ticket.session)
    position = ahead(draft, lock, ticket.number, ticket.mode) + 1
    return TicketState(ticket=ticket, position=position, blockers=in_the_way)
