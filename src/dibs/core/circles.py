"""Circles that a loss closes. With `deadlock.py`, the promise `deadlock`.

A place of a session waits for nothing in the line of a job that the session holds, and for nothing but the session's
own earlier place in a line where it has one: when that place is served, the session has the job. When the session loses
this hold or this earlier place, however that happens, the place waits for everybody ahead of it. So a loss can close a
circle, as a new wait (`claims.py`, `several.py`) and a transfer (`transfer.py`) can. Those two are refused. All other
changes only take away what somebody waits for.

The place that closes the circle is given up in the same decision. Its owner asks again, and is told of the deadlock.
"""

from __future__ import annotations

from dibs.core.deadlock import closes_circle
from dibs.core.exclusion import own_hold
from dibs.core.expiry import ticket_over
from dibs.core.keys import ticket_key
from dibs.core.queue import advance_all
from dibs.core.tickets import drop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.draft import Draft
    from dibs.core.records import Ticket


def leave_circles(draft: Draft) -> None:
    """Look at every loss of this decision. A place that is given up is a loss, too."""
    while draft.losses:
        session_id, ns, name = draft.losses.pop()
        for ticket in _places(draft, session_id, ns, name):
            if closes_circle(draft, ticket):
                drop(draft, ticket, "deadlock")
                advance_all(draft, ticket)


def _places(draft: Draft, session_id: str, ns: str, name: str) -> list[Ticket]:
    """The places of the session for the job, if they wait for it."""
    session = draft.session(session_id)
    waits = session.waits if session is not None else ()
    numbers = [wait.number for wait in waits if (wait.ns, wait.name) == (ns, name)]
    draft.need(*[ticket_key(ns, name, number) for number in numbers])
    found = [draft.ticket(ns, name, number) for number in numbers]
    live = [ticket for ticket in found if ticket is not None and not ticket_over(draft, ticket)]
    lock = draft.lock(ns, name)
    return [ticket for ticket in live if own_hold(draft, lock, session_id, ticket.mode) is None]
