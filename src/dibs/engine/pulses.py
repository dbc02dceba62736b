"""The pulses in a store: which servers use it, and what they know about a time in which one of them was not there.

`core/upkeep/outages.py` has the rules about pulses. Here the records are read that these rules need.
"""

from __future__ import annotations

from collections.abc import Iterator

from dibs.core import limits
from dibs.core.commands import Beat
from dibs.core.draft import ALL_TIME_MS
from dibs.core.records import LOCK_PREFIX, PULSE_PREFIX, SESSION_PREFIX, LockRecord, Pulse, SessionRecord, Stored
from dibs.core.upkeep.outages import accounted_ms, gone_servers
from dibs.stores.port import RecordCorrupt, Store


def pulses_of(store: Store) -> list[Pulse]:
    found = store.scan(PULSE_PREFIX, limit=limits.LIST_PAGE_DEFAULT)
    return [versioned.record for _, versioned in found if isinstance(versioned.record, Pulse)]


def after_gap(store: Store, beat: Beat, ended_ms: int) -> Beat:
    """The beat of a server whose gap ended then, with what the store knows about that time."""
    others = [pulse for pulse in pulses_of(store) if pulse.server != beat.server]
    return beat.replace(
        alive_since_ms=ended_ms,
        heard_ms=accounted_ms(others),
        idle=is_idle(store, ended_ms),
        gone=gone_servers(others, ended_ms),
    )


def is_idle(store: Store, since_ms: int = ALL_TIME_MS) -> bool:
    """Return whether nobody who was there before that time holds anything, waits, or has a session. Servers write no
    pulse while nobody does, so a missing pulse means nothing then."""
    try:
        return not any(_is_somebody(record, since_ms) for record in _live_records(store))
    except RecordCorrupt:
        return False  # whoever has it may lose it


def _is_somebody(record: Stored | None, since_ms: int) -> bool:
    if isinstance(record, LockRecord):  # one that is parked is live, too; nobody can lose it
        return bool(record.line) or any(holder.since_ms < since_ms for holder in record.holders)
    return isinstance(record, SessionRecord) and record.since_ms < since_ms


def _live_records(store: Store) -> Iterator[Stored | None]:
    """Jobs, then sessions. The first pages are short: mostly one record is enough."""
    for prefix in (LOCK_PREFIX, SESSION_PREFIX):
        after, limit = "", 1
        while page := store.scan(prefix, after, limit, live=True):
            yield from [found.record for _, found in page]
            after, limit = page[-1][0], min(8 * limit, limits.LIST_PAGE_DEFAULT)
