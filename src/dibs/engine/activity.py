"""How much happened in each minute of the last hour, counted from the store's events.

What was counted is kept, so that the next question reads only newer events. It can be thrown away at any time: the
events are the truth.
"""

from __future__ import annotations

import threading

from dibs.base.record import Record
from dibs.core import events as kinds
from dibs.core.limits import LIST_LOOKS_MAX, LIST_PAGE_DEFAULT
from dibs.engine.event_log import position_at, read_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.events import Event
    from dibs.stores.port import Store

MINUTE_MS = 60_000
MINUTES = 60
COUNTED = (kinds.ACQUIRED, kinds.RELEASED, kinds.FAILED, kinds.EXPIRED, kinds.BROKEN, kinds.TRANSFERRED)


class Hour(Record):
    """`counts` are those of one minute each, the oldest first; the last minute is the present one. `is_whole` is false
    while older events are still to be read: ask again."""

    now_ms: int
    first_ms: int
    counts: dict[str, list[int]]
    is_whole: bool


class Activity:
    """For one store. Any thread may ask."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._at: int | None = None
        self._minutes: dict[int, dict[tuple[str, str], int]] = {}  # by minute; then by namespace and kind

    def hour(self, ns: str) -> Hour:
        """The last hour in one namespace."""
        with self._mutex:
            now_ms = self._store.read(()).now_ms
            first = now_ms // MINUTE_MS - MINUTES + 1
            is_whole = self._read(first * MINUTE_MS)
            for minute in [each for each in self._minutes if each < first]:
                del self._minutes[minute]
            minutes = [self._minutes.get(first + offset, {}) for offset in range(MINUTES)]
            counts = {kind: [minute.get((ns, kind), 0) for minute in minutes] for kind in COUNTED}
            return Hour(now_ms=now_ms, first_ms=first * MINUTE_MS, counts=counts, is_whole=is_whole)

    def _read(self, from_ms: int) -> bool:
        """Count what came since the last time; whether that was everything."""
        if self._at is None:
            self._at = position_at(self._store, from_ms)
        for _ in range(LIST_LOOKS_MAX // LIST_PAGE_DEFAULT):
            page = read_page(self._store, self._at, LIST_PAGE_DEFAULT)
            if page.upto < self._at:  # an older copy of the store was put back
                self._minutes.clear()
            self._at = page.upto
            for event in page.events:
                self._count(event)
            if page.is_last:
                return True
        return False

    def _count(self, event: Event) -> None:
        if event.kind in COUNTED:
            minute = self._minutes.setdefault(event.at_ms // MINUTE_MS, {})
            key = (event.ns, event.kind)
            minute[key] = minute.get(key, 0) + 1
