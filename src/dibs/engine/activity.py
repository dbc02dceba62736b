"""The last hour by minutes, counted from the store's events.

The counts are kept, so that the next question reads only newer events. The events are the truth.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import Counter

from dibs.base.record import Record
from dibs.core import events as kinds
from dibs.core import limits
from dibs.core.events import Event
from dibs.engine.event_log import position_at, read_on
from dibs.stores.port import Store

MINUTE_MS = 60_000
MINUTES = 60
COUNTED = (kinds.ACQUIRED, kinds.RELEASED, kinds.FAILED, kinds.EXPIRED, kinds.BROKEN, kinds.TRANSFERRED)


class Hour(Record):
    """`counts`: of one minute each, oldest first, the last is the present one. `is_whole` false: ask again."""

    now_ms: int
    first_ms: int
    counts: dict[str, list[int]]
    is_whole: bool


class Activity:
    """For one store. Any thread may ask."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = allocate_lock()
        self._at: int | None = None
        self._known: Event | None = None  # the event that was read last
        self._minutes: dict[int, Counter[tuple[str, str]]] = {}  # by minute; then by namespace and kind

    def hour(self, ns: str) -> Hour:
        with self._mutex:
            now_ms = self._store.read(()).now_ms
            first = now_ms // MINUTE_MS - MINUTES + 1
            is_whole = self._read(first * MINUTE_MS)
            for minute in [each for each in self._minutes if each < first]:
                del self._minutes[minute]
            minutes = [self._minutes.get(first + offset, Counter()) for offset in range(MINUTES)]
            counts = {kind: [minute[ns, kind] for minute in minutes] for kind in COUNTED}
            return Hour(now_ms=now_ms, first_ms=first * MINUTE_MS, counts=counts, is_whole=is_whole)

    def _read(self, from_ms: int) -> bool:
        """Count what came since the last time; whether that was everything."""
        for _ in range(limits.LIST_LOOKS_MAX // limits.LIST_PAGE_DEFAULT):
            if self._at is None:
                self._minutes.clear()
                self._at, self._known = position_at(self._store, from_ms), None
            page = read_on(self._store, self._at, limits.LIST_PAGE_DEFAULT, self._known)
            if page.upto < self._at or (page.oldest is not None and page.oldest <= self._at):
                self._at = None  # the store was replaced by a copy
                continue
            self._at = page.upto
            self._known = page.events[-1] if page.events else self._known
            for event in page.events:
                if event.kind in COUNTED:
                    self._minutes.setdefault(event.at_ms // MINUTE_MS, Counter())[event.ns, event.kind] += 1
            if page.is_last:
                return True
        return False
