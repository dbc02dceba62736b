"""Running counts from events: how many jobs each principal holds, how many are held, waited for, parked, failed and
resting, how often things happened.

The counts follow the store's events in their order, each exactly once. Events of our own commits need not be read back,
as long as the numbers show that nobody else wrote in between. If somebody did, or if the store's numbers have gaps, all
events are read from the store (and `on_read` gets them, for callers who wait for what others do). One thread counts
pages (`engine/sweeper.py`), any thread may read events, report a commit, or read the counts.

Jobs that exist at the start are counted a page at a time, beside the batches, so that a server with a million leases
answers at once. Until that is finished its numbers are too small. Events that come meanwhile are reported at once, and
counted after the pages. The same happens when numbers of a gapless store show that events are missing, or that it was
replaced by a copy (`event_log.py`).
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from sys import intern
from typing import Any

from dibs.core import events as kinds
from dibs.core.events import Event
from dibs.core.limits import LIST_PAGE_DEFAULT, TALLY_PAGE
from dibs.core.records import (
    FAILED,
    LOCK_PREFIX,
    PARKED,
    SESSION_PREFIX,
    SHARED,
    UNSUCCESSFUL,
    Holder,
    LockRecord,
    SessionRecord,
    Stored,
)
from dibs.engine.event_log import is_same
from dibs.stores.port import Store

_MOVES = frozenset((kinds.PARKED, kinds.FREED, kinds.FORGOTTEN))  # of a job that nobody holds


class Tally:
    def __init__(
        self, on_read: Callable[[Sequence[Event]], None] = lambda events: None, *, gapless: bool = True
    ) -> None:
        self.live = 0
        self._open: set[int] = set()  # sessions, by the hash of their mark, owner and beginning
        self.kinds: Counter[str] = Counter()
        self._on_read = on_read
        self._gapless = gapless
        self._tickets: set[tuple[str, str, int]] = set()
        # Whose credential, by the hash of namespace, job and token: a million leases keep a third of what the names
        # themselves would take. Of 10**6 leases two share a hash once in 10**7 servers; a count would be off by one.
        self._claims: dict[int, str] = {}
        self._by_principal: dict[tuple[str, str | None], int] = {}  # and namespace; None: all of them
        # By namespace, the hashes of the jobs: parked; or nobody holds it, and its last hold failed or was lost.
        self._parked: dict[str, set[int]] = {}
        self._failed: dict[str, set[int]] = {}
        self._resting: dict[int, int] = {}  # until when nobody is granted it, on the store's clock
        self._rests: list[tuple[int, int]] = []  # the same as a heap; some of it may be out of date
        self._several: dict[int, int] = {}  # how many hold a job that several may hold
        self._seen_seq = 0  # what is counted
        self.reported_seq = 0  # the last event that is known here; ahead of what is counted while pages are counted
        self._known: Event | None = None  # the last event that was counted or read
        self._uncounted: list[tuple[str, bool]] = []  # what pages are left of: a prefix, and whether of live records
        self._after = ""  # the last key that was counted of the first of them
        self._lock = allocate_lock()
        self._reading = allocate_lock()  # whoever reads events has it
        self.is_counting = False
        self.page = TALLY_PAGE  # how many records, and events, are read at a time
        self.events_page = LIST_PAGE_DEFAULT

    @property
    def sessions(self) -> int:
        """Return how many are open."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Return how many places in queues are taken, at all servers."""
        return len(self._tickets)

    def states(self, now_ms: int) -> dict[str, int]:
        """Return how many jobs are parked, failed and resting. A resting one may be one of the others, too."""
        with self._lock:
            while self._rests and self._rests[0][0] <= now_ms:
                until_ms, job = heappop(self._rests)
                if self._resting.get(job) == until_ms:
                    del self._resting[job]
            parked, failed = (sum(map(len, each.values())) for each in (self._parked, self._failed))
            return {PARKED: parked, FAILED: failed, "resting": len(self._resting)}

    def live_of(self, principal: str, namespace: str | None = None) -> int:
        """Return how many jobs a principal's credentials hold. One name for two namespaces is two principals."""
        return self._by_principal.get((principal, namespace), 0)

    def live_in(self, namespace: str) -> int:
        counts = self._by_principal.copy()  # another thread may change it
        return sum(count for (_, where), count in counts.items() if where == namespace)

    def stuck_in(self, namespace: str) -> dict[str, int]:
        return {PARKED: len(self._parked.get(namespace, ())), FAILED: len(self._failed.get(namespace, ()))}

    def begin(self, store: Store) -> None:
        """Follow events from here on; `count_page` counts the jobs, waiters and open sessions from before. Events are
        applied by token or mark, so that an event whose effect a page shows already is not counted twice."""
        newest = store.events(0, 1, newest=True)
        self.reported_seq = newest[-1].seq if newest else 0
        self._begin(self.reported_seq)

    def _begin(self, seen_seq: int) -> None:
        counted: tuple[dict[Any, Any] | set[Any] | list[Any], ...] = (self._open, self._tickets)
        counted += (self._claims, self._by_principal, self._parked, self._failed)
        counted += (self._resting, self._rests, self._several)
        with self._lock:
            for each in counted:
                each.clear()
            self.live = 0
            self._seen_seq = seen_seq
            # What quotas need comes first. Failed jobs are in no index of live records, so all records are read for
            # them. That also finds those that are damaged (`Store.damaged`).
            self._after, self._uncounted = "", [(SESSION_PREFIX, True), (LOCK_PREFIX, True), ("", False)]
            self.is_counting = True

    def count_page(self, store: Store) -> None:
        """Count the next page; after the last, the events since. After a failure, a call goes on where it was."""
        while self._uncounted:
            prefix, live = self._uncounted[0]
            page = store.scan(prefix, self._after, self.page, live=live)
            for _, found in page:
                if live:
                    self._count(found.record)
                elif isinstance(found.record, LockRecord):
                    self._count_state(found.record)
            if len(page) == self.page:
                self._after = page[-1][0]
                return
            self._after = ""
            del self._uncounted[0]
        with self._reading:
            self.is_counting = False
        self.catch_up(store)

    def committed(self, events: Sequence[Event], last_seq: int) -> None:
        """Our own commit wrote `events`, and the last event of the store is now `last_seq`."""
        with self._lock:
            if not self._gapless or self.is_counting or last_seq - len(events) != self._seen_seq:
                return  # others wrote before us, or may have written; `catch_up` reads all events in order
            self._seen_seq = self.reported_seq = last_seq
            for event in events:
                self._fold(event)
            if events:
                self._known = events[-1].replace(seq=last_seq)

    def catch_up(self, store: Store) -> None:
        with self._reading:
            is_all = False
            while not is_all:
                with self._lock:
                    at = self.reported_seq if self.is_counting else self._seen_seq
                    known = self._known if self._gapless and self._known is not None and self._known.seq == at else None
                more = 1 if known is not None else 0
                events = store.events(at - more, self.events_page + more)
                is_all = len(events) < self.events_page + more
                if known is not None and events and events[0].seq == at:
                    if is_same(events[0], known):
                        events = events[1:]
                    else:  # the store has another past: waiters here are notified of the events from this one on
                        self._begin(at - 1)
                        self.reported_seq = at - 1
                if events:
                    if self._gapless and not self.is_counting and events[0].seq > self._seen_seq + 1:
                        # Some were pruned, or an older copy of the store has taken over, and what it lacks was counted.
                        self._begin(events[0].seq - 1)
                    self._read(events)
                    if any(event.kind == kinds.IMPORTED for event in events):  # of what it brought no event tells
                        self._begin(self._seen_seq)

    def _read(self, events: Sequence[Event]) -> None:
        with self._lock:
            if not self.is_counting:
                for event in events:
                    if event.seq > self._seen_seq:  # else a commit of ours that was reported meanwhile
                        self._fold(event)
                self._seen_seq = max(self._seen_seq, events[-1].seq)
            new = [event for event in events if event.seq > self.reported_seq]
            if new:
                self.reported_seq, self._known = new[-1].seq, new[-1]
        if new:
            self._on_read(new)

    def look(self, store: Store) -> None:
        """Read what others wrote, if there is anything. Cheap enough to call often."""
        if store.watch(self.reported_seq, 0):
            self.catch_up(store)

    def _count(self, record: Stored | None) -> None:
        if isinstance(record, LockRecord):
            self._tickets.update((record.ns, record.name, number) for number in record.line)
            for holder in record.holders:
                self._claims[hash((record.ns, record.name, holder.token))] = intern(holder.principal)
                self._add(holder.principal, record.ns, 1)
            if record.holders and (record.slots > 1 or _is_one_of_several(record.holders[0])):
                self._several[hash((record.ns, record.name))] = len(record.holders)
        elif isinstance(record, SessionRecord) and not record.ended_ms:
            mark = kinds.session_mark(record.id)
            self._open.add(hash((mark, record.principal, record.owner, record.since_ms)))

    def _count_state(self, lock: LockRecord) -> None:
        lock, job = lock.by_kind(), hash((lock.ns, lock.name))
        if not lock.holders:
            self._ended(lock.ns, job, lock.endings[0].how if lock.endings else "", lock.delay_until_ms)
        if lock.parked:
            self._park(lock.ns, job)

    def _fold(self, event: Event) -> None:
        self.kinds[event.kind] += 1
        if event.ticket:
            ticket = (event.ns, event.job, event.ticket)
            if event.kind == kinds.QUEUED:
                self._tickets.add(ticket)
            else:
                self._tickets.discard(ticket)
        elif event.kind == kinds.SESSION_OPENED:
            self._open.add(hash((event.session, event.principal, event.owner, event.at_ms)))
        elif event.kind == kinds.SESSION_ENDED:
            self._open.discard(hash((event.session, event.principal, event.owner, event.began_ms)))
        hold = hash((event.ns, event.job, event.token))
        if event.kind == kinds.ACQUIRED:
            if hold not in self._claims:
                self._claims[hold] = intern(event.principal)
                self._add(event.principal, event.ns, 1)
                self._fold_state(event, 1)
        elif event.kind in kinds.OWNERSHIP_ENDS:
            principal = self._claims.pop(hold, None)
            if principal is not None:
                self._add(principal, event.ns, -1)
                self._fold_state(event, -1)
        elif event.kind == kinds.SHARED:
            self._several[hash((event.ns, event.job))] = 1  # it was alone until now
        elif event.kind in _MOVES:
            self._fold_state(event, 0)

    def _fold_state(self, event: Event, holders: int) -> None:
        """Note what an event about a job means for its state, after a change of the number of its holders."""
        ns, job = event.ns, hash((event.ns, event.job))
        if holders and (event.slots > 1 or _is_one_of_several(event)):
            # An owner from before its job was a pool was not counted among several.
            holders = self._several[job] = max(0, self._several.get(job, 0) + holders)
            if not holders:
                del self._several[job]
        if event.kind == PARKED:
            self._park(ns, job)
        elif event.kind == kinds.FREED:
            self._resting.pop(job, None)
            if job in self._parked.get(ns, ()):
                _discard(self._parked, ns, job)
                self._ended(ns, job, FAILED, 0)
        elif holders > 0 or event.kind == kinds.FORGOTTEN:
            self._resting.pop(job, None)
            _discard(self._failed, ns, job)
        else:
            self._ended(ns, job, event.kind, event.at_ms + event.retry_ms if event.retry_ms else 0)

    def _ended(self, ns: str, job: int, how: str, rests_until_ms: int) -> None:
        if how in UNSUCCESSFUL:
            self._failed.setdefault(ns, set()).add(job)
        else:
            _discard(self._failed, ns, job)
        if rests_until_ms > self._resting.get(job, 0):
            self._resting[job] = rests_until_ms
            heappush(self._rests, (rests_until_ms, job))

    def _park(self, ns: str, job: int) -> None:
        self._parked.setdefault(ns, set()).add(job)
        _discard(self._failed, ns, job)

    def _add(self, principal: str, namespace: str, count: int) -> None:
        self.live += count
        by_principal = self._by_principal
        for key in ((principal, None), (principal, namespace)):
            live = by_principal.get(key, 0) + count
            if live:
                by_principal[key] = live
            else:
                del by_principal[key]  # principals come and go; the counter must not grow with them


def _is_one_of_several(hold: Holder | Event) -> bool:
    return bool(hold.slot_numbers) or hold.mode == SHARED


def _discard(jobs: dict[str, set[int]], ns: str, job: int) -> None:
    """Namespaces come and go; none stays behind without a job."""
    found = jobs.get(ns)
    if found is not None:
        found.discard(job)
        if not found:
            del jobs[ns]
