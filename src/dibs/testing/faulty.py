"""A store that fails when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dibs.errors import StoreUnavailable
from dibs.stores.port import Conflict, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.errors import DibsError
    from dibs.stores.port import Due, Snapshot, Versioned

Fault = Literal["none", "refused", "lost before", "lost after", "conflict"]


class FaultyStore(Store):
    """Another store behind a bad line. Each commit takes the next fault of the schedule; past its end all is well.

    none          the commit goes through
    refused       nothing is written, and the caller is told that nothing was
    lost before   nothing is written, and the caller cannot know
    lost after    it is written and the reply is lost: the caller cannot know
    conflict      somebody else was first
    """

    def __init__(self, store: Store, faults: Iterable[Fault] = ()) -> None:
        self.store = store
        self.capabilities = store.capabilities
        self.faults = list(faults)
        self.reads_lost = 0  # how many of the next reads fail
        self.commits_tried = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        if self.reads_lost > 0:
            self.reads_lost -= 1
            raise StoreUnavailable("The read was lost, as the test asked.")
        return self.store.read(keys)

    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
        self.commits_tried += 1
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "refused":
            raise StoreUnavailable("The commit was refused, as the test asked.")
        if fault == "lost before":
            raise StoreUnavailable("The commit was lost, as the test asked.", unknown=True)
        if fault == "conflict":
            raise Conflict
        last_seq = self.store.commit(expect, puts, events)
        if fault == "lost after":
            raise StoreUnavailable("The reply was lost, as the test asked.", unknown=True)
        return last_seq

    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        return self.store.scan(prefix, after, limit, live=live)

    def due(self, limit: int) -> Due:
        return self.store.due(limit)

    def events(
        self, after: int, limit: int, job: tuple[str, str] | None = None, *, newest: bool = False
    ) -> list[Event]:
        return self.store.events(after, limit, job, newest=newest)

    def watch(self, after: int, timeout_ms: int) -> bool:
        return self.store.watch(after, timeout_ms)

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        return self.store.until_gone(key, timeout_ms)

    def prune(self, *, keep: int, before_ms: int) -> int:
        return self.store.prune(keep=keep, before_ms=before_ms)

    def trouble(self) -> DibsError | None:
        return self.store.trouble()

    def close(self) -> None:
        self.store.close()
