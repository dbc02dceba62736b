"""Reading without deciding: the list of claimed jobs and a job's history. Nothing here writes."""

from __future__ import annotations

from dibs.core.expiry import settle
from dibs.core.limits import LIST_PAGE_MAX
from dibs.core.record import Record
from dibs.core.records import META_KEY, Lock, Meta, lock_key

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
    snapshot = store.read((META_KEY,))
    meta = snapshot.records[META_KEY].record
    outages = meta.outages if isinstance(meta, Meta) else ()
    found: list[Lock] = []
    key = lock_key(ns, after) if after else ""
    while True:
        # Jobs that are known but not held are skipped here, so a page of the store may be less than a page of ours.
        page = store.scan(lock_key(ns, prefix), key, limit + 1)
        for key, versioned in page:
            if isinstance(versioned.record, Lock):
                lock, _ = settle(versioned.record, snapshot.now_ms, outages)
                if lock.holders:
                    found.append(lock)
            if len(found) > limit:
                return Page(now_ms=snapshot.now_ms, locks=found[:limit], next_after=found[limit - 1].name)
        if len(page) <= limit:
            return Page(now_ms=snapshot.now_ms, locks=found, next_after=None)
