"""A whole store as text, to be moved to another one: the file of `dibs export` and `dibs import`, and the export.

    {"dibs_archive": 10, "dibs": "0.3.0", "store": "sqlite", "at_ms": ..., "frozen": true, "last_seq": ...}
    {"key": "lock/default/issue-1842", "record": {...}}
    {"event": {...}}
    {"end": {"records": 3, "events": 1, "checksum": "..."}}

The file is JSON lines in ASCII. Records are ordered by key, events by number. The checksum covers every byte before the
last line: a file that was cut off or changed is noticed before anything of it is used. `archive_import.py` brings a
file into a store. Only the store port is used, so this works between any two stores.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import Any, BinaryIO, TypeVar

from dibs._version import __version__
from dibs.base.errors import DibsError, InvalidInput, StoreUnavailable
from dibs.base.ids import new_id
from dibs.base.record import Record
from dibs.core import class_of
from dibs.core.commands import Freeze, Identify
from dibs.core.events import Event
from dibs.core.lease_outcomes import FreezeNoted, Frozen
from dibs.core.records import META_KEY, FreezeMark, Meta, Stored
from dibs.engine.coordinator import run_one
from dibs.stores import formats
from dibs.stores.codec import FORMAT
from dibs.stores.port import Store, StoreMoment, maintenance_of
from dibs.stores.untrusted_records import key_of, wrong_field

T = TypeVar("T", bound=Record)
Write = Callable[[str], object]

NUMBER_MAX = 2**53  # integers that every JSON reader and every database keep exactly
LINE_BYTES_MAX = 64 * 1024 * 1024
_ABOUT = "dibs_archive"


class ArchiveHeader(Record):
    """The first line. `at_ms` is the time of the copied store at the moment of the copy, and `last_seq` the number of
    its last event, even if it was pruned. It may be lower if events are in the file: then their numbers count."""

    at_ms: int
    store: str = ""
    frozen: bool = False
    last_seq: int = 0


class ArchiveWriter:
    """Writes an archive: records by their keys, in order, then events."""

    def __init__(self, write: Write, header: ArchiveHeader) -> None:
        self._write = write
        self._sum = sha256()
        self.counts = Counter[str]()  # records by kind
        self.events = 0
        self._line({_ABOUT: FORMAT, "dibs": __version__, **header.dump()})

    def record(self, key: str, record: Stored) -> None:
        self.counts[key.split("/", 1)[0]] += 1
        self._line({"key": key, "record": record.dump()})

    def event(self, event: Event) -> None:
        self.events += 1
        self._line({"event": event.dump()})

    def end(self) -> None:
        done = {"records": self.counts.total(), "events": self.events, "checksum": self._sum.hexdigest()}
        self._line({"end": done})

    def _line(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, separators=(",", ":")) + "\n"
        self._sum.update(text.encode("ascii"))
        self._write(text)


class ArchiveReader:
    """Reads an archive from its beginning. `header` is available at once; `checksum` after everything was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = sha256()
        self._number = 0
        self.checksum = ""
        self.header = self._header()

    def _header(self) -> ArchiveHeader:
        document = self._next()
        version = document.get(_ABOUT)
        if version is None:
            raise InvalidInput("This file was not made by dibs export: its first line is not a header.")
        if type(version) is not int:
            raise InvalidInput(f"This file was not made by dibs export: its format is {version!a}.")
        try:
            formats.refuse_unread(formats.COPY, version, "This file")
        except DibsError as error:
            raise InvalidInput(error.details) from None
        try:
            header = ArchiveHeader.load(document)
        except (LookupError, TypeError, ValueError):
            header = ArchiveHeader(at_ms=-1)
        numbers = (header.at_ms, header.last_seq)
        is_sound = all(type(each) is int and 0 <= each < 2**53 for each in numbers)
        if not is_sound or type(header.frozen) is not bool:
            raise self._bad("the header is not one")
        return header

    def entries(self) -> Iterator[tuple[str, Stored] | Event]:
        """Records with their keys, then events. Raises InvalidInput for an invalid line and a missing end."""
        records = events = 0
        last, last_seq = "", 0
        while True:
            checksum = self._sum.hexdigest()
            document = self._next()
            if "record" in document and not events:
                records += 1
                entry = self._record(document.get("key"), document["record"])
                if entry[0] <= last:  # one key twice would be two answers to one question
                    raise self._bad("its key does not come after the one before it")
                last = entry[0]
                yield entry
            elif "event" in document:
                events += 1
                event = self._made(partial(Event.load, document["event"]), "an event")
                if event.seq < max(last_seq, 1):  # in a git store two jobs may have events with one number
                    raise self._bad("its number does not come after the one before it")
                last_seq = event.seq
                yield event
            elif "end" in document:
                self._check_end(document["end"], {"records": records, "events": events, "checksum": checksum})
                self.checksum = checksum
                return
            else:
                raise self._bad("it is neither a record, an event nor the end")

    def _record(self, key: Any, values: Any) -> tuple[str, Stored]:
        if not isinstance(key, str) or not isinstance(values, dict):
            raise self._bad("a record has a key and fields")
        made: Stored = self._made(lambda: class_of(key).load(values), "a record")
        try:
            expected = key_of(made)
        except DibsError as error:
            raise self._bad(f"it has an invalid name ({error.details})") from None
        if expected not in (None, key):
            raise self._bad("the record is not the one that its key names")
        return key, made

    def _made(self, load: Callable[[], T], what: str) -> T:
        try:
            made = load()
        except KeyError as error:
            raise self._bad(f"{error.args[0]!a} is missing, or only a newer dibs knows it") from None
        except (LookupError, TypeError, ValueError, AttributeError):
            raise self._bad(f"its fields are not those of {what}") from None
        wrong = wrong_field(made, NUMBER_MAX, items_max=NUMBER_MAX)
        if wrong:
            raise self._bad(f"the field {wrong} does not hold what it should")
        return made

    def _check_end(self, stated: object, found: dict[str, Any]) -> None:
        if stated != found:
            raise InvalidInput("The file was changed or damaged: its checksum does not match. Export it again.")
        if self._file.read(1):
            raise InvalidInput(
                "The file continues after its end; perhaps two files were joined. Import them one by one."
            )

    def _next(self) -> dict[str, Any]:
        line = self._file.readline(LINE_BYTES_MAX + 1)
        self._number += 1
        if not line.endswith(b"\n"):
            if len(line) > LINE_BYTES_MAX:
                raise self._bad("it is too long")
            if not line and self._number == 1:
                raise InvalidInput("There is nothing to import: the input is empty. `dibs export` writes a copy.")
            raise InvalidInput(
                f"The file is cut off after line {self._number - 1}: its end is missing. Nothing of it was used. "
                "Export it again."
            )
        self._sum.update(line)
        try:
            document = _decode(line.decode("ascii"))
        except (ValueError, RecursionError):
            raise self._bad("it is not JSON") from None
        if not isinstance(document, dict):
            raise self._bad("it is not a JSON object")
        return document

    def _bad(self, why: str) -> InvalidInput:
        return InvalidInput(f"Line {self._number} of the file cannot be used: {why}.")


def _no_number(text: str) -> float:
    raise ValueError(text)


_decode = json.JSONDecoder(parse_constant=_no_number).decode


# Copies a store to an archive, as of one moment. If a store can show one moment (`Maintenance.moment`), that is read
# while others write. Any other store is read twice: versions never repeat, so if every record had the same version both
# times, all of them existed together in between. A store that others keep changing must be frozen first.

PAGE = 1_000
TRIES_MAX = 5
LEFT_OUT = ("pulse", "webhook-duty")  # records about the servers of this store
NO_END = 2**53  # more than there are events
SPOOL_CHARS = 1 << 16


class Exported(Record):
    at_ms: int
    counts: dict[str, int]  # records by kind
    events: int
    frozen: bool
    damaged: tuple[str, ...] = ()  # the keys of records that cannot be read, and were left out


def _copy(
    store: Store, reader: Store | StoreMoment, write: Write, header: ArchiveHeader, last_seq: int
) -> tuple[Exported, str]:
    """Write an archive of what `reader` shows of the store. Returns the survey of what was read."""
    seen, writer = sha256(), ArchiveWriter(write, header)
    for key, version, record in _records(reader):
        seen.update(f"{version} {key}\n".encode())
        writer.record(key, record.replace(frozen=None) if isinstance(record, Meta) else record)
    for event in _events(reader, last_seq, one_log=store.capabilities.one_log):
        writer.event(event)
    writer.end()
    done = Exported(
        at_ms=header.at_ms,
        counts=dict(writer.counts),
        events=writer.events,
        frozen=header.frozen,
        damaged=tuple(reader.damaged()),
    )
    return done, seen.hexdigest()


def _header(store: Store, now_ms: int, last_seq: int, mark: FreezeMark | None) -> ArchiveHeader:
    at_ms = now_ms if mark is None else min(mark.at_ms, now_ms)
    return ArchiveHeader(at_ms=at_ms, store=store.capabilities.name, frozen=mark is not None, last_seq=last_seq)


def _survey(store: Store) -> str:
    """A digest of all records' versions. If it is the same twice, nothing changed in between."""
    seen = sha256()
    for key, version, _ in _records(store):
        seen.update(f"{version} {key}\n".encode())
    return seen.hexdigest()


def _records(reader: Store | StoreMoment) -> Iterator[tuple[str, int, Stored]]:
    after = ""
    while page := reader.scan("", after, PAGE):
        after = page[-1][0]
        for key, found in page:
            if found.record is not None and key.split("/", 1)[0] not in LEFT_OUT:
                yield key, found.version, found.record


def _events(reader: Store | StoreMoment, last_seq: int, *, one_log: bool) -> Iterator[Event]:
    if not one_log:  # without one log, numbers do not order events, so they make no pages
        yield from reader.events(0, NO_END)
        return
    after = 0
    while page := reader.events(after, PAGE):
        after = page[-1].seq
        yield from (event for event in page if event.seq <= last_seq)
        if after >= last_seq:
            return


def export(store: Store, write: Write, *, freeze: bool = False) -> Exported:
    """Write all of `store` as an archive. With `freeze`, the store does not change from then on. The moment of a frozen
    store is that at which it was frozen, however late it is copied: so each copy is the same, byte for byte."""
    mark = _frozen(store, freeze=freeze)
    newest_seq = store.newest_seq()
    moment = maintenance_of(store).moment()
    if moment is None:
        return _of_two_looks(store, write, mark)
    try:
        return _copy(store, moment, write, _header(store, moment.now_ms, newest_seq, mark), NO_END)[0]
    finally:
        moment.close()


def _frozen(store: Store, *, freeze: bool) -> FreezeMark | None:
    """The mark of a store that is frozen now; freezes it if asked."""
    meta = store.read((META_KEY,)).records[META_KEY].record
    mark = meta.frozen if isinstance(meta, Meta) else None
    if mark is None and freeze:
        run_one(store, Identify(fresh_id=new_id()))  # no server has: the copy names what it goes on from
        outcome = run_one(store, Freeze(id=new_id()))
        mark = outcome.mark if isinstance(outcome, Frozen | FreezeNoted) else None
    if mark is not None and mark.incomplete:
        raise InvalidInput("An import into this store is not complete. Repeat the import first.")
    return mark


def _of_two_looks(store: Store, write: Write, mark: FreezeMark | None) -> Exported:
    survey = _survey(store)
    for _ in range(TRIES_MAX):
        header = _header(store, store.read(()).now_ms, store.newest_seq(), mark)
        with tempfile.TemporaryFile("w+", encoding="ascii", prefix="dibs-export-") as spool:
            done, again = _copy(store, store, spool.write, header, header.last_seq)
            if again == survey:
                spool.seek(0)
                while text := spool.read(SPOOL_CHARS):
                    write(text)
                return done
        survey = again
    raise StoreUnavailable(
        "Others kept changing the store while it was read, so a copy would not be of one moment. Nothing was written. "
        "Stop them, or freeze the store."
    )
