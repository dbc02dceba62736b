"""Running counts from events: who holds how many jobs, how many are held, what happened since the server started.

The counts follow the store's events in their order, each exactly once. Events of our own commits are known without
reading them back, as long as nobody else wrote in between; if somebody did, all of them are read from the store.
Only the thread that commits changes a tally; any thread may read it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dibs.core.limits import LIST_PAGE_DEFAULT
from dibs.core.records import LOCK_PREFIX, Lock
from dibs.core.replay import Claim, apply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.core.events import Event
    from dibs.stores.port import Store


class Tally:
    def __init__(self) -> None:
        self.live = 0
        self.kinds: Counter[str] = Counter()
        self._claims: dict[tuple[str, str], dict[int, Claim]] = {}
        self._by_principal: Counter[str] = Counter()
        self._seen_seq = 0

    def live_of(self, principal: str) -> int:
        """How many jobs are held with this principal's credentials."""
        return self._by_principal[principal]

    def build(self, store: Store) -> None:
        """Count what is there. Events that come while the scan goes on are folded in after it: folding is by token,
        so one that the scan has seen already changes nothing that its successors do not put right."""
        newest = store.events(0, 1, newest=True)
        self._seen_seq = newest[-1].seq if newest else 0
        after = ""
        while page := store.scan(LOCK_PREFIX, after, LIST_PAGE_DEFAULT):
            for _, found in page:
                if isinstance(found.record, Lock):
                    self._count(found.record)
            after = page[-1][0]
        self.catch_up(store)
        self.kinds.clear()

    def committed(self, events: Sequence[Event], last_seq: int) -> None:
        """Our own commit wrote `events`, and the last event of the store is now `last_seq`."""
        if last_seq - len(events) != self._seen_seq:
            return  # others wrote before us; `catch_up` reads theirs and ours in order
        self._seen_seq = last_seq
        for event in events:
            self._fold(event)

    def catch_up(self, store: Store) -> None:
        """Read what others wrote."""
        while events := store.events(self._seen_seq, LIST_PAGE_DEFAULT):
            for event in events:
                self._fold(event)
            self._seen_seq = events[-1].seq

    def _count(self, lock: Lock) -> None:
        for holder in lock.holders:
            claim = Claim(
                owner=holder.owner,
                principal=holder.principal,
                token=holder.token,
                mode=holder.mode,
                attempt=holder.attempt,
            )
            self._claims.setdefault((lock.ns, lock.name), {})[holder.token] = claim
            self._add(holder.principal, 1)

    def _fold(self, event: Event) -> None:
        self.kinds[event.kind] += 1
        job = (event.ns, event.job)
        before = self._claims.get(job, {}).get(event.token)
        apply(self._claims, event)
        after = self._claims.get(job, {}).get(event.token)
        if before is None and after is not None:
            self._add(after.principal, 1)
        elif before is not None and after is None:
            self._add(before.principal, -1)

    def _add(self, principal: str, count: int) -> None:
        self.live += count
        self._by_principal[principal] += count
        if not self._by_principal[principal]:
            del self._by_principal[principal]  # principals come and go; the counter must not grow with them
