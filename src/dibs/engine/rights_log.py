"""Reads, for an admin, what changed about who may do what: tokens, webhooks and access lists. Writes nothing."""

from __future__ import annotations

from dibs.core.events import RIGHTS_CHANGES
from dibs.core.limits import LIST_LOOKS_MAX, LIST_PAGE_DEFAULT
from dibs.engine.event_log import read_page
from dibs.wire.lease_documents import gap_document, named_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.events import Event
    from dibs.stores.port import Store


def rights_page(store: Store, bound: str | None, after: int, limit: int) -> dict[str, Any]:
    """The first such events after a position; with `bound` those of one namespace. There is no index of them, so one
    page looks at LIST_LOOKS_MAX events and says in `next` where it stopped; null: at the end."""
    found: list[Event] = []
    at, oldest, looked, is_last = after, None, 0, False
    while len(found) < limit and looked < LIST_LOOKS_MAX and not is_last:
        page = read_page(store, at, LIST_PAGE_DEFAULT)
        taken = [event for event in page.events if event.kind in RIGHTS_CHANGES and bound in (None, event.ns)]
        at, is_last, looked = page.upto, page.is_last, looked + LIST_PAGE_DEFAULT
        if len(found) + len(taken) > limit:
            taken = taken[: limit - len(found)]
            at, is_last = taken[-1].seq, False
        found += taken
        oldest = page.oldest if oldest is None else oldest
    return {
        "events": [{**named_event(event), "user_id": event.principal or event.by} for event in found],
        "next": None if is_last else at,
        "gap": None if oldest is None else gap_document(after, oldest),
    }
