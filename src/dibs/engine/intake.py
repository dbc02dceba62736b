"""Brings an archive into a store, completely or not at all.

1. The whole file is read and checked before the store is touched.
2. The store is frozen and checked: it must be empty, or (`adds`) hold none of the file's namespaces.
3. The freeze is marked as incomplete. If the import is killed from here on, the store refuses to be used and says so;
   the same import again finishes it. Records are written in parts, each only while the mark is ours: of two imports at
   once, the later one continues.
4. One write removes the mark, sets the floor under the fencing tokens and names the store that was moved, if the file
   is of a frozen one. The time since step 2 counts as an outage, so that owners of leases have time to find the new
   store, and so does the time until a server starts on it.

Times are shifted: the moment of the file becomes the moment at which the import began. So a lease has as much time left
as before.

Events keep their numbers if both stores number without gaps and this one has not come that far. Otherwise all of them
get numbers above those of the other store: whoever comes back with a position of that store is told of a gap. Webhooks
continue where they were in either case, so their records are written last, when the new numbers are known.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import BinaryIO

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.base.generators import in_parts
from dibs.base.ids import new_id
from dibs.base.record import Record
from dibs.core.commands import Freeze, Thaw
from dibs.core.events import Event
from dibs.core.lease_outcomes import FreezeNoted, Frozen
from dibs.core.limits import CLOSURES_MAX, TOKEN_FLOOR_MAX, WEBHOOKS_MAX
from dibs.core.moved import Renumbering, merged, moved, without_history
from dibs.core.records import (
    META_KEY,
    FreezeMark,
    LockRecord,
    Meta,
    Pulse,
    Stored,
    Ticket,
    Tree,
    pulse_key,
    shifted,
    tree_key,
)
from dibs.core.webhooks import WebhookRegister
from dibs.engine.archive import ArchiveReader
from dibs.engine.coordinator import Coordinator
from dibs.engine.webhooks import registered
from dibs.stores.port import CommitTooLarge, Conflict, Store, maintenance_of

Puts = dict[str, Stored | None]

PART_RECORDS = 500
PART_CHARS = 256 * 1024  # about; what is too large for the store is halved
PART_TRIES = 20
OWN_KINDS = ("lock", "ticket", "session", "tree")  # a store without any of these is empty
PLACED_KINDS = ("webhook", "webhook-progress", "webhook-dead")  # they have positions among the events
SEQ_MAX = 2**52  # leaves room for events to come
NAMES_SHOWN = 3
EVER_MS = 2**53


class Imported(Record):
    """The result of an import. `events` is 0 if it added to a store, because that store has its own history."""

    records: int
    events: int
    floor: int
    adds: bool


class _Contents:
    """The contents of a file that are needed before its records. Reads all of it; any fault is InvalidInput."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        reader = ArchiveReader(file)
        self.header = reader.header
        self.meta, self.webhooks = Meta(), WebhookRegister()
        self.highest = 0  # of all fencing tokens
        self.namespaces: set[str] = set()
        first = last = events = 0
        for entry in reader.entries():
            if isinstance(entry, Event):
                first, last, events = first or entry.seq, entry.seq, events + 1
                continue
            record = entry[1]
            if isinstance(record, Meta):
                self.meta = record
            elif isinstance(record, WebhookRegister):
                self.webhooks = record
            elif isinstance(record, Tree):
                self.namespaces.add(record.namespace())
            elif isinstance(record, LockRecord | Ticket):
                self.namespaces.add(record.ns)
            if isinstance(record, LockRecord):
                self.highest = max(self.highest, record.token, *[holder.token for holder in record.holders])
        self.checksum = reader.checksum
        self.last_seq = max(last, reader.header.last_seq)
        if self.last_seq > SEQ_MAX:
            raise InvalidInput(f"The numbers of the events of this file go beyond {SEQ_MAX}.")
        self.first_seq = first or self.last_seq + 1  # of the first event, or of the one that would have come next
        self.is_gapless = self.last_seq - self.first_seq + 1 == events


class _TakenOver(Exception):
    """Another import has replaced our mark."""


def floor_after(known: int, now_ms: int) -> int:
    """A floor above every token that the store can have given out since the copy: a job's number rises by one with each
    owner, so it stays far below the time in milliseconds. That also puts it above an earlier move's floor."""
    return max(known + 1, now_ms)


def intake(store: Store, file: BinaryIO, *, adds: bool = False, wall_ms: Callable[[], int] = wall_ms) -> Imported:
    """Bring the archive in `file`, which can be read twice, into `store`."""
    contents = _Contents(file)
    known = max(contents.meta.token_floor, contents.highest)
    # Also for a frozen store: the same file may have been imported before, and tokens given out there.
    floor = floor_after(known, max(wall_ms(), contents.header.at_ms))
    if floor > TOKEN_FLOOR_MAX:
        raise InvalidInput(f"The fencing tokens of this file go beyond {TOKEN_FLOOR_MAX}.")
    try:
        return _Intake(store, contents, adds=adds).run(file, floor)
    except _TakenOver:
        raise InvalidInput(
            "Another import into this store began after this one, and continues. This one stopped; what it wrote is "
            "replaced by the other."
        ) from None


class _Intake:
    def __init__(self, store: Store, contents: _Contents, *, adds: bool) -> None:
        self._store = store
        self._coordinator = Coordinator(store)
        self._contents = contents
        self._adds = adds
        self._id = new_id()

    def run(self, file: BinaryIO, floor: int) -> Imported:
        mark, contents = self._begin(), self._contents
        file.seek(0)
        by_ms = mark.from_ms - self._contents.header.at_ms
        if not self._adds:
            own = self._store.newest_seq()
            keeps = contents.is_gapless and self._store.capabilities.gapless and own < contents.first_seq
            # One number is left out, so that even who has read all of the other store is told.
            upto = contents.first_seq - 1 if keeps else max(contents.last_seq, own) + 1
            maintenance_of(self._store).number_from(upto)
        old, new, count = array("q"), array("q"), 0
        placed: Puts = {}
        for part in _parts(ArchiveReader(file).entries()):
            events = [each for each in part if isinstance(each, Event)]
            if not events:
                records = [each for each in part if not isinstance(each, Event) and each[0] != META_KEY]
                puts: Puts = {key: moved(each, self._contents.meta.outages, by_ms) for key, each in records}
                placed |= {key: puts.pop(key) for key in list(puts) if _kind(key) in PLACED_KINDS}
                self._put(puts)
                count += len(puts)
            elif not self._adds:
                new.extend(self._tell([each.replace(at_ms=min(each.at_ms, mark.from_ms)) for each in events]))
                old.extend([each.seq for each in events])
        self._put(self._placed(placed, old, new))
        self._note_outages(by_ms)
        self._account_for_time()
        names = (contents.meta.store_id, *contents.meta.moved_from) if contents.header.frozen else ()
        outcome = self._coordinator.one(Thaw(id=self._id, floor=floor, since_ms=mark.from_ms, moved_from=names))
        if isinstance(outcome, Frozen):
            raise _TakenOver
        return Imported(records=count + len(placed), events=len(old), floor=floor, adds=self._adds)

    def _placed(self, records: Mapping[str, Stored | None], old: array[int], new: array[int]) -> Puts:
        """The records of webhooks, with positions among the events of this store."""
        theirs, last = self._contents.last_seq, self._store.newest_seq()
        there = Renumbering(old, new, theirs + 1, last + 1)
        return {
            key: record and (without_history(record, theirs, last) if self._adds else there.of(record))
            for key, record in records.items()
        }

    def _begin(self) -> FreezeMark:
        """Freeze the store for this import. Refuse it if existing records would be lost or mixed up."""
        meta = self._store.read((META_KEY,)).records[META_KEY].record
        mark = meta.frozen if isinstance(meta, Meta) else None
        source = self._contents.checksum
        if mark is not None and not mark.incomplete and not mark.source:
            raise InvalidInput("The store is frozen: it was moved away. Thaw it, or import into another one.")
        if mark is not None and mark.incomplete:
            if mark.source != source and (mark.adds or self._adds):
                raise InvalidInput(
                    "Another import added to this store and was not completed. Repeat that one first, with its file."
                )
            if mark.adds != self._adds:
                raise InvalidInput("The import that was not completed added to a store. Repeat it in the same way.")
            made = self._freeze(mark.id, incomplete=True)
            if not mark.adds:
                self._clear(is_same=mark.source == source)
            return made
        self._freeze(None if mark is None else mark.id, incomplete=False)
        try:
            self._refuse_what_is_there()
        except BaseException:
            self._coordinator.one(Thaw(id=self._id))
            raise
        return self._freeze(self._id, incomplete=True)

    def _freeze(self, over: str | None, *, incomplete: bool) -> FreezeMark:
        outcome = self._coordinator.one(
            Freeze(id=self._id, over=over, incomplete=incomplete, source=self._contents.checksum, adds=self._adds)
        )
        if not isinstance(outcome, FreezeNoted):
            raise _TakenOver
        return outcome.mark

    def _refuse_what_is_there(self) -> None:
        ids = {each.id for each in (*registered(self._store).entries, *self._contents.webhooks.entries)}
        if len(ids) > WEBHOOKS_MAX:
            raise InvalidInput(
                f"The file and the store have {len(ids)} webhooks, and a store may have {WEBHOOKS_MAX}. Remove some."
            )
        seen = self._store.read((META_KEY,))
        own = seen.records[META_KEY].record
        closures = (*self._contents.meta.closures, *(own.closures if isinstance(own, Meta) else ()))
        closed = {(each.ns, each.name) for each in closures if seen.now_ms < each.until_ms}
        if len(closed) > CLOSURES_MAX:
            raise InvalidInput(
                f"The file and the store have {len(closed)} closures, and a store may have {CLOSURES_MAX}. Open some."
            )
        if self._adds:
            both = [ns for ns in sorted(self._contents.namespaces) if self._has(ns)]
            if both:
                shown = ", ".join(both[:NAMES_SHOWN]) + (" and others" if len(both) > NAMES_SHOWN else "")
                raise InvalidInput(
                    f"The file and the store both have the namespace {shown}: a job would have two owners. "
                    "Import into another store."
                )
            return
        for kind in OWN_KINDS:
            if self._store.scan(f"{kind}/", limit=1):
                raise InvalidInput(
                    "The store is not empty. Import into an empty one, or add the file's namespaces to it."
                )

    def _has(self, ns: str) -> bool:
        tree = tree_key(ns)
        return bool(
            self._store.scan(f"lock/{ns}/", limit=1)
            or self._store.scan(f"ticket/{ns}/", limit=1)
            or self._store.read((tree,)).records[tree].record
        )

    def _clear(self, *, is_same: bool) -> None:
        """Remove what an unfinished import left. Records of the same file stay: they are overwritten."""
        self._store.prune(keep=0, before_ms=EVER_MS)
        if is_same:
            return
        for kind in OWN_KINDS:
            while page := self._store.scan(f"{kind}/", limit=PART_RECORDS):
                self._put(dict.fromkeys([key for key, _ in page]))

    def _put(self, puts: Puts) -> None:
        keys, size = list(puts), PART_RECORDS
        if 0 < len(keys) <= size:
            try:
                self._commit(puts, ())
                return
            except CommitTooLarge:
                if len(keys) == 1:
                    raise
            size = (len(keys) + 1) // 2
        for at in range(0, len(keys), size):
            self._put({key: puts[key] for key in keys[at : at + size]})

    def _tell(self, events: Sequence[Event]) -> Iterable[int]:
        """Write events. Returns their numbers."""
        try:
            last = self._commit({}, events)
            if self._store.capabilities.gapless:
                return range(last - len(events) + 1, last + 1)
            return [each.seq for each in self._store.events(0, len(events), newest=True)]
        except CommitTooLarge:
            if len(events) == 1:
                raise
        middle = len(events) // 2
        return [*self._tell(events[:middle]), *self._tell(events[middle:])]

    def _commit(self, puts: Puts, events: Sequence[Event]) -> int:
        """Write, as long as the mark is ours."""
        for _ in range(PART_TRIES):
            found = self._store.read({*puts, META_KEY}).records
            meta = found[META_KEY].record
            if not isinstance(meta, Meta) or meta.frozen is None or meta.frozen.id != self._id:
                raise _TakenOver
            new = {key: self._kept(key, found[key].record, record) for key, record in puts.items()}
            expect = {key: each.version for key, each in found.items()}
            try:
                return self._store.commit(expect, new, events)
            except Conflict:
                continue
            except StoreUnavailable as error:
                if not error.unknown or events:
                    raise
        raise StoreUnavailable("Others kept changing the store while it was written. Stop its servers and repeat.")

    def _kept(self, key: str, own: Stored | None, brought: Stored | None) -> Stored | None:
        """Return what is to be under `key`: the store's own tokens and usage, merged registers, else the file's."""
        if isinstance(own, Meta) and isinstance(brought, Meta):
            there = {(each.ns, each.name) for each in own.closures}  # also those of an import that is repeated
            closures = [each for each in brought.closures if (each.ns, each.name) not in there]
            return own.replace(closures=(*own.closures, *closures), outages=brought.outages or own.outages)
        is_files = _kind(key) in (OWN_KINDS if self._adds else (*OWN_KINDS, *PLACED_KINDS))
        return brought if is_files or brought is None else merged(own, brought)

    def _account_for_time(self) -> None:
        """Let the time until a server starts be an outage, as after the last server of a store: places in line last for
        seconds only."""
        if self._store.capabilities.serves:
            pulse = Pulse(at_ms=self._store.read(()).now_ms, server=self._id)
            self._put({pulse_key(self._id): pulse})

    def _note_outages(self, by_ms: int) -> None:
        """Record the outages that the source knew, for leases that live longer by them, and its closures."""
        brought = self._contents.meta
        outages = () if self._adds else tuple([shifted(each, by_ms) for each in brought.outages])
        if outages or brought.closures:
            self._put({META_KEY: brought.replace(outages=outages)})


def _parts(entries: Iterable[tuple[str, Stored] | Event]) -> Iterator[list[tuple[str, Stored] | Event]]:
    """Parts that fit into one commit, records apart from events. Their length as text is about that of their `repr`."""
    for _, alike in groupby(entries, lambda entry: isinstance(entry, Event)):
        yield from in_parts(alike, PART_RECORDS, lambda entry: len(repr(entry)), PART_CHARS)


def _kind(key: str) -> str:
    return key.split("/", 1)[0]
