"""Copies a store to an archive, as of one moment. If a store can show one moment (`Maintenance.moment`), that is read
while others write. Any other store is read twice: versions never repeat, so if every record had the same version both
times, all of them existed together in between. On a store that others keep changing this never succeeds; then freeze
it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.base.ids import new_id
from dibs.base.record import Record
from dibs.core.commands import Freeze
from dibs.core.keys import META_KEY
from dibs.core.lease_outcomes import FreezeNoted, Frozen
from dibs.core.records import Meta
from dibs.engine.archive.lines import ArchiveHeader, ArchiveWriter
from dibs.engine.coordinator import Coordinator
from dibs.stores.port import maintenance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.port import Store, StoreMoment

    Write = Callable[[str], object]

PAGE = 1_000
TRIES_MAX = 5
LEFT_OUT = ("pulse", "webhook-duty")  # records about the servers of this store
NO_END = 2**53  # more than there are events
SPOOL_CHARS = 1 << 16


class Exported(Record):
    """What an archive holds, by kind of record, and its events."""

    at_ms: int
    counts: dict[str, int]
    events: int
    frozen: bool


class _Survey:
    """The records and their versions. If two surveys are equal, nothing changed in between."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sum = sha256()

    def saw(self, key: str, version: int) -> None:
        self.counts[key.split("/", 1)[0]] += 1
        self._sum.update(f"{version} {key}\n".encode())

    def digest(self) -> str:
        return self._sum.hexdigest()


class _Source:
    """The source: a store, or a store as it was at one moment."""

    def __init__(self, store: Store, reader: Store | StoreMoment, *, frozen: bool) -> None:
        self._reader = reader
        self._one_log = store.capabilities.one_log
        self._name = store.capabilities.name
        self._frozen = frozen

    def survey(self) -> _Survey:
        seen = _Survey()
        for key, version, _ in self._records():
            seen.saw(key, version)
        return seen

    def copy(
        self, write: Write, counted: _Survey, now_ms: int, newest_seq: int, last_seq: int
    ) -> tuple[Exported, _Survey]:
        """Write an archive of the current state. Returns the survey of what was read."""
        seen, writer = _Survey(), ArchiveWriter(write)
        counts = dict(counted.counts)
        writer.header(
            ArchiveHeader(at_ms=now_ms, store=self._name, frozen=self._frozen, last_seq=newest_seq, counts=counts)
        )
        for key, version, record in self._records():
            seen.saw(key, version)
            writer.record(key, record.replace(frozen=None) if isinstance(record, Meta) else record)
        for event in self._events(last_seq):
            writer.event(event)
        writer.end()
        done = Exported(at_ms=now_ms, counts=dict(seen.counts), events=writer.events, frozen=self._frozen)
        return done, seen

    def _records(self) -> Iterator[tuple[str, int, Stored]]:
        after = ""
        while page := self._reader.scan("", after, PAGE):
            after = page[-1][0]
            for key, found in page:
                if found.record is not None and key.split("/", 1)[0] not in LEFT_OUT:
                    yield key, found.version, found.record

    def _events(self, last_seq: int) -> Iterator[Event]:
        if not self._one_log:  # without one log there are no numbers for pages
            yield from self._reader.events(0, NO_END)
            return
        after = 0
        while page := self._reader.events(after, PAGE):
            after = page[-1].seq
            yield from (event for event in page if event.seq <= last_seq)
            if after >= last_seq:
                return


def export(store: Store, write: Write, *, freeze: bool = False) -> Exported:
    """Write all of `store` as an archive. With `freeze`, the store does not change from then on."""
    frozen = _frozen(store, freeze=freeze)
    newest_seq = store.newest_seq()
    moment = maintenance_of(store).moment()
    if moment is None:
        return _of_two_looks(store, write, frozen=frozen)
    try:
        source = _Source(store, moment, frozen=frozen)
        return source.copy(write, source.survey(), moment.now_ms, newest_seq, NO_END)[0]
    finally:
        moment.close()


def _frozen(store: Store, *, freeze: bool) -> bool:
    """Return whether the store is frozen now; freezes it if asked."""
    meta = store.read((META_KEY,)).records[META_KEY].record
    mark = meta.frozen if isinstance(meta, Meta) else None
    if mark is None and freeze:
        outcome = Coordinator(store).one(Freeze(id=new_id()))
        mark = outcome.mark if isinstance(outcome, Frozen | FreezeNoted) else None
    if mark is not None and mark.incomplete:
        raise InvalidInput("An import into this store is not complete. Repeat the import first.")
    return mark is not None


def _of_two_looks(store: Store, write: Write, *, frozen: bool) -> Exported:
    source = _Source(store, store, frozen=frozen)
    survey = source.survey()
    for _ in range(TRIES_MAX):
        now_ms = store.read(()).now_ms
        newest_seq = store.newest_seq()
        with tempfile.TemporaryFile("w+", encoding="ascii", prefix="dibs-export-") as spool:
            done, again = source.copy(spool.write, survey, now_ms, newest_seq, newest_seq)
            if again.digest() == survey.digest():
                spool.seek(0)
                while text := spool.read(SPOOL_CHARS):
                    write(text)
                return done
        survey = again
    raise StoreUnavailable(
        "Others kept changing the store while it was read, so a copy would not be of one moment. Nothing was written. "
        "Stop them, or freeze the store."
    )
