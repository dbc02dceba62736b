"""The reference store: dicts, a lock, and an injected clock. For tests, and to read beside the port."""

from __future__ import annotations

import threading
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
                if record is None:
                    self._records.pop(key, None)
                else:
                    self._records[key] = Versioned(version=self._revision, record=record)
            for event in events:
                self._last_seq += 1
                self._events.append(event.replace(seq=self._last_seq))
            self._changed.notify_all()
            return self._last_seq

    def at_once(self) -> threading.RLock:
        """Nobody keeps this lock for long."""
        return self._lock

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> port.Page:
        with self._lock:
            keys = sorted(
                key
                for key, found in self._records.items()
                if key.startswith(prefix)
                and key > after
                and not (live and found.record is not None and not found.record.is_live())
            )
            return [(key, self._records[key]) for key in keys[:limit]]

    def due(self, limit: int) -> Due:
        with self._lock:
            now_ms = self._clock()
            every = ((found.record.due_ms() if found.record else None, key) for key, found in self._records.items())
            dues = sorted((due_ms, key) for due_ms, key in every if due_ms is not None)
            keys = [key for due_ms, key in dues if due_ms <= now_ms][:limit]
            return Due(keys=keys, next_ms=dues[0][0] if dues else None)

    def events(self, after: int, limit: int, job: port.Job | None = None, *, newest: bool = False) -> list[Event]:
        with self._lock:
            found = [each for each in self._events if each.seq > after and job in (None, (each.ns, each.job))]
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
        self.now_ms, self._records, self._events = now_ms, records, events
