"""Brings an archive into a store, completely or not at all.

1. The whole file is read and checked before the store is touched.
2. The store is frozen and checked: it must be empty, or (`adds`) hold none of the file's namespaces.
3. The freeze is marked as incomplete. If the import is killed from here on, the store refuses to be used and says so;
   the same import again finishes it. Records of jobs, places, sessions and trees are written in parts, each only while
   the mark is ours: of two imports at once, the later one continues.
4. One write publishes the rest, which the store may have as well (tokens, webhooks, counts, closures), removes the
   mark, sets the floor under the fencing tokens, names the store that was moved, if the file is of a frozen one, and
   notifies servers by an event. The time since step 2 counts as an outage, so that owners of leases have time to find
   the new store, and so does the time until a server starts on it.

Times are shifted: the moment of the file becomes the moment at which the import began. So a lease has as much time left
as before.

Nobody knows which fencing tokens and numbers of events were given out since the copy: the other store may have gone on,
or the copy may have been used before. So both go on from the clock (`floor_after`, `number_after`). Events in the file
keep their numbers if both stores number without gaps and this one has not come that far; then there are numbers between
them and the next one that no event has. Otherwise all of them get higher numbers. Whoever comes back with a position of
the other store gets a gap, and so does each webhook, which is sent what it was not sent before.
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
from dibs.core.records import (
    META_KEY,
    SESSION_PREFIX,
    USAGE_PREFIX,
    Closure,
    FreezeMark,
    LockRecord,
    Meta,
    Pulse,
    SessionRecord,
    Stored,
    Ticket,
    Tree,
    pulse_key,
    shifted,
    tree_key,
)
from dibs.core.service.credentials import Usage
from dibs.core.service.webhooks import WebhookRegister
from dibs.core.upkeep.moved import Renumbering, moved, relabelled, without_history
from dibs.engine.archive import ArchiveReader
from dibs.engine.coordinator import run_one
from dibs.engine.queries import scan_records
from dibs.engine.token_floor import floor_after, number_after
from dibs.engine.webhooks import registered
from dibs.stores.port import CommitTooLarge, Conflict, Store, maintenance_of

Puts = dict[str, Stored | None]

PART_RECORDS = 500
PART_CHARS = 256 * 1024  # about; what is too large for the store is halved
PART_TRIES = 20
OWN_KINDS = ("lock", "ticket", "session", "tree")  # a store without any of these is empty
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
    """The contents of a file that are needed before its records. Reads all of it; any error in it is InvalidInput."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        reader = ArchiveReader(file)
        self.header = reader.header
        self.meta, self.webhooks = Meta(), WebhookRegister()
        self.highest = 0  # of all fencing tokens
        self.usage: dict[str, Usage] = {}  # by payer
        self.namespaces: dict[str, str] = {}  # each with what of it is in the file
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
            elif isinstance(record, Usage):
                self.usage[entry[0].removeprefix(USAGE_PREFIX)] = record
            elif isinstance(record, Tree):
                self.namespaces[record.namespace()] = "jobs"
            elif isinstance(record, LockRecord | Ticket):
                self.namespaces[record.ns] = "jobs"
            elif isinstance(record, SessionRecord) and not record.ended_ms:
                self.namespaces.setdefault(record.ns, "a session")
            if isinstance(record, LockRecord):
                self.highest = max(self.highest, record.token, *[holder.token for holder in record.holders])
        for webhook in self.webhooks.entries:
            self.namespaces.setdefault(webhook.ns, "a webhook")
        self.checksum = reader.checksum
        self.last_seq = max(last, reader.header.last_seq)
        if self.last_seq > SEQ_MAX:
            raise InvalidInput(f"The numbers of the events of this file go beyond {SEQ_MAX}.")
        self.first_seq = first or self.last_seq + 1  # of the first event, or of the one that would have come next
        self.is_gapless = self.last_seq - self.first_seq + 1 == events


class _TakenOver(Exception):
    """Another import has replaced our mark."""


def import_archive(
    store: Store, file: BinaryIO, *, adds: bool = False, wall_ms: Callable[[], int] = wall_ms
) -> Imported:
    """Bring the archive in `file`, which can be read twice, into `store`."""
    return import_into(lambda: store, file, adds=adds, wall_ms=wall_ms)


def import_into(
    opens: Callable[[], Store], file: BinaryIO, *, adds: bool = False, wall_ms: Callable[[], int] = wall_ms
) -> Imported:
    """The same for a store that is opened, and so perhaps made, only if the file is good."""
    contents = _Contents(file)
    known = max(contents.meta.token_floor, contents.highest)
    # Also for a frozen store: the same file may have been imported before, and tokens given out there.
    now_ms = max(wall_ms(), contents.header.at_ms)
    floor = floor_after(known, now_ms)
    if floor > TOKEN_FLOOR_MAX:
        raise InvalidInput(f"The fencing tokens of this file go beyond {TOKEN_FLOOR_MAX}.")
    store = opens()
    try:
        return _Import(store, contents, adds=adds).run(file, floor, now_ms)
    except _TakenOver:
        raise InvalidInput(
            "Another import into this store began after this one, and continues. This one stopped; what it wrote is "
            "replaced by the other."
        ) from None


class AlreadyImported(InvalidInput):
    """The store has what is in the file, and all of it: an import was repeated after its end."""


class _Import:
    def __init__(self, store: Store, contents: _Contents, *, adds: bool) -> None:
        self._store = store
        self._contents = contents
        self._adds = adds
        self._id = new_id()

    def run(self, file: BinaryIO, floor: int, now_ms: int) -> Imported:
        mark = self._begin()
        file.seek(0)
        contents, by_ms, own = self._contents, mark.from_ms - self._contents.header.at_ms, self._store.newest_seq()
        numbers = maintenance_of(self._store)
        begins = number_after(max(contents.last_seq, own), now_ms)
        keeps = contents.is_gapless and self._store.capabilities.gapless and own < contents.first_seq and not self._adds
        numbers.number_from(contents.first_seq - 1 if keeps else begins)
        quotas = self._quotas()
        old, new, count = array("q"), array("q"), 0
        shared: dict[str, Stored] = {}  # what the store may have as well
        for part in _parts(ArchiveReader(file).entries()):
            events = [each for each in part if isinstance(each, Event)]
            if not events:
                records = [each for each in part if not isinstance(each, Event) and each[0] != META_KEY]
                shared |= {key: each for key, each in records if _kind(key) not in OWN_KINDS}
                ours = [(key, relabelled(each, quotas)) for key, each in records if key not in shared]
                self._put({key: moved(each, contents.meta.outages, by_ms) for key, each in ours})
                count += len(records)
            elif not self._adds:
                new.extend(self._write_events([each.replace(at_ms=min(each.at_ms, mark.from_ms)) for each in events]))
                old.extend([each.seq for each in events])
        shared = self._placed(shared, old, new, None if keeps else begins)
        shared[META_KEY] = self._meta(by_ms, mark.from_ms)
        if keeps:  # after the positions of webhooks, which are before the numbers that nobody has
            numbers.number_from(begins)
        self._account_for_time()
        names = (contents.meta.store_id, *contents.meta.moved_from) if contents.header.frozen else ()
        brought = tuple(shared.items())
        thaw = Thaw(id=self._id, floor=floor, since_ms=mark.from_ms, moved_from=names, brought=brought)
        outcome = run_one(self._store, thaw)
        if isinstance(outcome, Frozen):
            raise _TakenOver
        return Imported(records=count, events=len(old), floor=floor, adds=self._adds)

    def _quotas(self) -> dict[str, str]:
        """The `charge` of holds in the file, and what it is in this store: a principal that both know has one count."""
        keys = [USAGE_PREFIX + payer for payer in self._contents.usage]
        own = self._store.read(keys).records
        found = {}
        for payer, usage in self._contents.usage.items():
            here = own[USAGE_PREFIX + payer].record
            found[f"{usage.count}/{payer}"] = f"{here.count if isinstance(here, Usage) else usage.count}/{payer}"
        return found

    def _placed(
        self, records: Mapping[str, Stored], old: array[int], new: array[int], begins: int | None
    ) -> dict[str, Stored]:
        """The records of webhooks, with positions among the events of this store. `begins`: the number above which
        events are numbered anew from this import on; None: they kept their numbers."""
        theirs, last = self._contents.last_seq, max(self._store.newest_seq(), begins or 0)
        if self._adds:
            return {key: without_history(record, last) for key, record in records.items()}
        there = Renumbering(old, new, theirs + 1, last + 1, None if begins is None else (theirs, begins))
        return {key: there.of(record) for key, record in records.items()}

    def _meta(self, by_ms: int, now_ms: int) -> Meta:
        """The outages that the source knew, for leases that live longer by them, and its closures."""
        brought = self._contents.meta
        outages = () if self._adds else tuple([shifted(each, by_ms) for each in brought.outages])
        return Meta(outages=outages, closures=_in_effect(brought, now_ms))

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
        self._refuse_what_is_there()  # first: a store in use that is frozen for a moment keeps its workers waiting
        self._freeze(None if mark is None else mark.id, incomplete=False)
        try:
            self._refuse_what_is_there()
        except BaseException:
            run_one(self._store, Thaw(id=self._id))
            raise
        return self._freeze(self._id, incomplete=True)

    def _freeze(self, over: str | None, *, incomplete: bool) -> FreezeMark:
        source = self._contents.checksum
        freeze = Freeze(id=self._id, over=over, incomplete=incomplete, source=source, adds=self._adds)
        outcome = run_one(self._store, freeze)
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
        meta = seen.records[META_KEY].record
        if isinstance(meta, Meta) and self._contents.header.frozen and self._contents.meta.store_id in meta.moved_from:
            raise AlreadyImported(
                "This copy is in the store already, and complete. Nothing was changed.\n"
                "Start servers on it. Do not unfreeze the store that the copy is from."
            )
        own = _in_effect(seen.records[META_KEY].record, seen.now_ms)
        theirs = _in_effect(self._contents.meta, seen.now_ms)
        closed = {(each.ns, each.name) for each in (*own, *theirs)}
        if len(closed) > CLOSURES_MAX:
            raise InvalidInput(
                f"The file and the store have {len(closed)} closures, and a store may have {CLOSURES_MAX}. Open some."
            )
        if self._adds:
            brought = {each.ns: "a closure" for each in theirs} | self._contents.namespaces
            named = self._namespaces(own)
            both = sorted([ns for ns in brought if ns in named or self._has_jobs(ns)])
            if both:
                shown = ", ".join(both[:NAMES_SHOWN]) + (" and others" if len(both) > NAMES_SHOWN else "")
                raise InvalidInput(
                    f"The file has {brought[both[0]]} in a namespace that the store has as well: {shown}.\n"
                    "A job would have two owners, or its events other readers. Import into another store."
                )
            return
        for kind in OWN_KINDS:
            if self._store.scan(f"{kind}/", limit=1):
                raise InvalidInput(
                    "The store is not empty. Import into an empty one, or with --add into this one: then it gets the "
                    "namespaces of the file beside its own."
                )

    def _namespaces(self, closures: Iterable[Closure]) -> set[str]:
        """The namespaces of the store's sessions, closures and webhooks."""
        sessions = [each for _, each in scan_records(self._store, SESSION_PREFIX, live=True)]
        found = {each.ns for each in sessions if isinstance(each, SessionRecord)}
        return found | {each.ns for each in closures} | {each.ns for each in registered(self._store).entries}

    def _has_jobs(self, ns: str) -> bool:
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

    def _write_events(self, events: Sequence[Event]) -> Iterable[int]:
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
        return [*self._write_events(events[:middle]), *self._write_events(events[middle:])]

    def _commit(self, puts: Puts, events: Sequence[Event]) -> int:
        """Write, as long as the mark is ours."""
        for _ in range(PART_TRIES):
            found = self._store.read({*puts, META_KEY}).records
            meta = found[META_KEY].record
            if not isinstance(meta, Meta) or meta.frozen is None or meta.frozen.id != self._id:
                raise _TakenOver
            expect = {key: each.version for key, each in found.items()}
            try:
                return self._store.commit(expect, puts, events)
            except Conflict:
                continue
            except StoreUnavailable as error:
                if not error.unknown or events:
                    raise
        raise StoreUnavailable("Others kept changing the store while it was written. Stop its servers and repeat.")

    def _account_for_time(self) -> None:
        """Let the time until a server starts be an outage, as after the last server of a store: places in the queue
        last for seconds only."""
        if self._store.capabilities.serves:
            pulse = Pulse(at_ms=self._store.read(()).now_ms, server=self._id)
            self._put({pulse_key(self._id): pulse})


def _parts(entries: Iterable[tuple[str, Stored] | Event]) -> Iterator[list[tuple[str, Stored] | Event]]:
    """Parts that fit into one commit, records apart from events. Their length as text is about that of their `repr`."""
    for _, alike in groupby(entries, lambda entry: isinstance(entry, Event)):
        yield from in_parts(alike, PART_RECORDS, lambda entry: len(repr(entry)), PART_CHARS)


def _in_effect(meta: Stored | None, now_ms: int) -> tuple[Closure, ...]:
    found = meta.closures if isinstance(meta, Meta) else ()
    return tuple([each for each in found if now_ms < each.until_ms])


def _kind(key: str) -> str:
    return key.split("/", 1)[0]
