"""The reference store: dicts, sorted lists of their keys, a lock, and an injected clock. For tests, and to read beside
the port."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence

from dibs.base import clock
from dibs.core.events import Event
from dibs.stores import port
from dibs.stores.codec import names_no_store
from dibs.stores.port import ABSENT, Capabilities, Conflict, Due, Maintenance, Snapshot, Store, StoreMoment, Versioned


class MemoryStore(Store, Maintenance):
    capabilities = Capabilities(
        name="memory",
        clock="injected",
        reach="process",
        watch="direct",
        durable=False,
        cannot=("survive the end of its process",),
    )

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        # Entering a Condition is not safe: an interrupt may come after it took its lock. Entering the lock is.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._records: dict[str, Versioned] = {}
        self._keys: list[str] = []  # theirs, sorted
        self._dues: list[tuple[int, str]] = []  # those that are due at some time, sorted by it
        self._events: list[Event] = []
        self._revision = 0
        self._last_seq = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        with self._lock:
            return Snapshot(now_ms=self._clock(), records={key: self._records.get(key, ABSENT) for key in keys})

    def commit(self, expect: Mapping[str, int], puts: port.Puts, events: Sequence[Event]) -> int:
        with self._lock:
            for key, version in expect.items():
                if self._records.get(key, ABSENT).version != version:
                    raise Conflict
            self._revision += 1
            for key, record in puts.items():
                self._put(key, None if record is None else Versioned(version=self._revision, record=record))
            for event in events:
                self._last_seq += 1
                self._events.append(event.replace(seq=self._last_seq))
            self._changed.notify_all()
            return self._last_seq

    def _put(self, key: str, found: Versioned | None) -> None:
        before, now = (_due_ms(each) for each in (self._records.get(key), found))
        if found is not None:
            if key not in self._records:
                insort(self._keys, key)
            self._records[key] = found
        elif self._records.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]
        if before is not None:
            del self._dues[bisect_left(self._dues, (before, key))]
        if now is not None:
            insort(self._dues, (now, key))

    def at_once(self) -> threading.RLock:
        """Nobody keeps this lock for long."""
        return self._lock

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> port.Page:
        with self._lock:
            page: port.Page = []
            for key in self._keys[max(bisect_left(self._keys, prefix), bisect_right(self._keys, after)) :]:
                if not key.startswith(prefix) or len(page) >= limit:
                    break
                found = self._records[key]
                if not live or found.record is None or found.record.is_live():
                    page.append((key, found))
            return page

    def due(self, limit: int) -> Due:
        with self._lock:
            over = bisect_left(self._dues, (self._clock() + 1,))
            keys = [key for _, key in self._dues[: min(over, limit)]]
            return Due(keys=keys, next_ms=self._dues[0][0] if self._dues else None)

    def events(self, after: int, limit: int, job: port.Job | None = None, *, newest: bool = False) -> list[Event]:
        with self._lock:
            found = self._events[bisect_right(self._events, after, key=lambda event: event.seq) :]
            if job is not None:
                found = [each for each in found if (each.ns, each.job) == job]
            return found[max(0, len(found) - limit) :] if newest else found[:limit]

    def newest_seq(self) -> int:
        return self._last_seq

    def watch(self, after: int, timeout_ms: int) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: self._last_seq > after, timeout_ms / 1000)

    def prune(self, *, keep: int, before_ms: int) -> int:
        with self._lock:
            count = len(self._events)
            kept = [event for event in self._events if event.at_ms >= before_ms]
            self._events = kept[max(0, len(kept) - keep) :]
            return count - len(self._events)

    def number_from(self, seq: int) -> None:
        with self._lock:
            self._last_seq = max(self._last_seq, seq)

    def size_bytes(self) -> int:
        with self._lock:
            return sum(len(repr(found.record)) for found in self._records.values())

    def moment(self) -> MemoryMoment:
        with self._lock:
            return MemoryMoment(self._clock(), dict(self._records), list(self._events))

    def close(self) -> None:
        """Nothing to let go of."""


def _due_ms(found: Versioned | None) -> int | None:
    return None if found is None or found.record is None else found.record.due_ms()


def open_url(url: str, opening: port.Opening) -> MemoryStore:
    """A new store with every call. Its clock starts at wall time and then is steady."""
    if url != "memory://":
        raise names_no_store(url)
    offset_ms = clock.wall_ms() - clock.steady_ms()
    return MemoryStore(lambda: offset_ms + clock.steady_ms())


class MemoryMoment(MemoryStore, StoreMoment):
    """A copy, which nobody writes to."""

    def __init__(self, now_ms: int, records: dict[str, Versioned], events: list[Event]) -> None:
        super().__init__(lambda: now_ms)
        self.now_ms, self._records, self._keys, self._events = now_ms, records, sorted(records), events
