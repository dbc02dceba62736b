"""Documents for whoever looks at many jobs at once: the places in line, and the last hour."""

from __future__ import annotations

from dibs.core.tickets import names_of
from dibs.wire.parts import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.engine.activity import Hour
    from dibs.engine.tickets import TicketPage, TicketState

    Document = dict[str, Any]

SESSION_SHOWN = 8  # how much of a session's id everybody may see: it names the session and does not prove it


def short_session(session_id: str) -> str:
    return session_id[:SESSION_SHOWN] + "…"


def waiters_document(page: TicketPage) -> Document:
    return {
        "waiters": [waiter_document(state, page.now_ms) for state in page.tickets],
        "now": timestamp(page.now_ms),
        "next": page.next_after,
    }


def waiter_document(state: TicketState, now_ms: int) -> Document:
    """A place in line: no ticket, which is its proof."""
    ticket = state.ticket
    document: Document = {
        "name": ticket.name,
        "owner": ticket.owner,
        "position": state.position,
        "since": timestamp(ticket.since_ms),
        "waiting_ms": max(0, now_ms - ticket.since_ms),
        "mode": ticket.mode,
        "metadata": ticket.metadata,
        "holders": [
            {
                "name": blocker.name,
                "owner": blocker.holder.owner,
                "fencing_token": blocker.holder.token,
                "session": _session(blocker.holder.session),
            }
            for blocker in state.blockers
        ],
        "session": _session(ticket.session),
    }
    if ticket.whole:
        document["names"] = list(names_of(ticket))
    return document


def _session(session_id: str | None) -> str | None:
    return None if session_id is None else short_session(session_id)


def activity_document(hour: Hour, held: int) -> Document:
    return {
        "now": timestamp(hour.now_ms),
        "since": timestamp(hour.first_ms),
        "minutes": hour.counts,
        "held": held,
        "whole": hour.is_whole,
    }
