"""A store that fails when a test says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from dibs.base.errors import StoreUnavailable
from dibs.core.events import Event
from dibs.core.records import Stored
from dibs.stores.port import Conflict, Snapshot, Store, StoreProxy

Fault = Literal["none", "refused", "lost before", "lost after", "conflict"]


class FaultyStore(StoreProxy):
    """A store behind a bad connection. Each commit takes the next fault of the schedule; after the last, none fails.

    none          the commit goes through
    refused       nothing is written, and the caller is told that nothing was
    lost before   nothing is written, and the caller does not know
    lost after    it is written, and the reply is lost: the caller does not know
    conflict      another writer was first
    """

    def __init__(self, store: Store, faults: Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self.faults = list(faults)
        self.reads_lost = 0  # how many of the next reads fail
        self.commits_tried = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        if self.reads_lost > 0:
            self.reads_lost -= 1
            raise StoreUnavailable("The read was lost, as the test asked.")
        return self.inner.read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self.commits_tried += 1
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "refused":
            raise StoreUnavailable("The commit was refused, as the test asked.")
        if fault == "lost before":
            raise StoreUnavailable("The commit was lost, as the test asked.", unknown=True)
        if fault == "conflict":
            raise Conflict
        last_seq = self.inner.commit(expect, puts, events)
        if fault == "lost after":
            raise StoreUnavailable("The reply was lost, as the test asked.", unknown=True)
        return last_seq
