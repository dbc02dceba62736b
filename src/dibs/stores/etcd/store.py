"""The port's methods over etcd. `location.py` says what is kept where, `log.py` has the events, `clock.py` the time.

A commit is one transaction: it compares the mod revision of every record that was looked at, writes the records, their
entries in the two indexes (due, live) and the events, and raises the store's time. Records are remembered when they are
read or written: a commit must know the old index entries, and a decision may begin with them (`recall`), because the
store's time needs no call either. So a claim is one call. Larger commits are wide (`transaction.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dibs.base.errors import DibsError, StoreFull
from dibs.base.ids import new_token
from dibs.base.logger import log
from dibs.core.events import Event
from dibs.core.limits import ETCD_HEARD_POLL_MS, ETCD_POLL_MS, ETCD_READ_KEYS_MAX, ETCD_SILENCE_MS
from dibs.core.records import META_KEY, Meta, Stored
from dibs.stores.codec import FORMAT, decode, encode, events_of, is_event_readable, is_readable, text_of
from dibs.stores.etcd import messages
from dibs.stores.etcd import transaction as txn
from dibs.stores.etcd.client import STATUS, WATCH, EtcdClient
from dibs.stores.etcd.clock import EtcdTime
from dibs.stores.etcd.errors import LostConnection, Refusal, translated
from dibs.stores.etcd.http2 import EtcdConnection
from dibs.stores.etcd.location import CAPABILITIES, COMMIT_EVENTS_MAX, EtcdLocation, Layout, revision_of, seq_of
from dibs.stores.etcd.log import EventLog, read_events
from dibs.stores.etcd.messages import (
    NO_MESSAGE,
    KeyValue,
    RangeAnswer,
    StatusAnswer,
    TxnAnswer,
    WatchAnswer,
    delete_op,
    put_op,
    range_op,
    watch_request,
)
from dibs.stores.etcd.transaction import end_of
from dibs.stores.etcd.upkeep import Pruner, probe
from dibs.stores.fork_safety import Forgetful, listen
from dibs.stores.port import (
    ABSENT,
    EVENT_PREFIX,
    Conflict,
    Due,
    Job,
    Maintenance,
    Page,
    Puts,
    RecordCorrupt,
    Snapshot,
    Store,
    Versioned,
    still_damaged,
)
from dibs.stores.waiters import StoreWaiter, StoreWaiters, mark_of

# One stream from etcd for all waiters of this process: it reports new events and deleted records.
#
# Whoever waits for events hears the revision of the newest and need not ask for it. Waiters look at the store often
# while there is no stream, seldom while there is one. When a stream begins, all of them look once. So a stream that is
# cut, that moves to another member, or that fell behind a compaction loses nothing.

PAUSE_S = 0.2


class EtcdStream(StoreWaiters):
    """Wakes waiters for events (key None) and deleted records (the record's key). The first starts its thread."""

    def __init__(self, client: EtcdClient, layout: Layout) -> None:
        super().__init__()
        self._client = client
        self._layout = layout
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: EtcdConnection | None = None
        self._closed = False
        self.hears = False

    def listen(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="dibs-etcd-watch", daemon=True)
                self._thread.start()

    def pause_ms(self, _: int) -> int:
        return ETCD_HEARD_POLL_MS if self.hears else ETCD_POLL_MS

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection is not None:
            connection.cut()
        self.wake_all()

    def _work(self) -> None:
        pause = threading.Event()
        while not self._closed:
            try:
                self._follow()
            except (LostConnection, Refusal, *NO_MESSAGE) as error:
                if self._connection is not None:
                    self._client.failed(self._connection.endpoint, error)
            self.hears = False
            self._connection = None
            pause.wait(PAUSE_S)

    def _follow(self) -> None:
        """Two watches on one stream: the newest event, and records that are deleted."""
        keys = self._layout
        requests = [watch_request(keys.last), watch_request(keys.records, end_of(keys.records), only_deleted=True)]
        connection, answers = self._client.stream(WATCH, requests, ETCD_SILENCE_MS)
        with self._lock:
            self._connection = connection
            if self._closed:
                connection.close()
                return
        created = 0
        for answer in map(WatchAnswer, answers):
            if answer.canceled:
                return  # it fell behind a compaction, most likely; the next stream begins at the present
            if answer.created:
                created += 1
                if created == 2:
                    self.hears = True
                    self.wake_all()
            for kv in answer.kvs:
                self.wake((None if kv.key == keys.last else kv.key,), kv.mod_revision)
            gone = [kv.key[len(keys.records) :].decode() for kv in answer.kvs if kv.key != keys.last]
            if gone:
                self.on_gone([mark_of(key) for key in gone])


# Finding the first due records without reading the whole index.
#
# etcd up to 3.4 counts all keys of a range before it returns the first few of them, so on a large store the range
# must be narrow. The earliest key is usually not far behind the last earliest one. So the range ends a little after
# that, and is widened until it holds something. A small store is read as a whole.

SMALL = 1_000
FIRST_STEP_MS = 1_000
STEPS_MAX = 14  # beyond about 4 hours everything is read

# How much is remembered: the number of records, and the text of long ones beyond the first KiB of each.
KNOWN_MAX = 50_000
KNOWN_BYTES_MAX = 64 * 1024 * 1024
SHORT_BYTES = 1024
OTHER_OPS = 3  # further operations of a commit: its name, the time, and a look at the newest event
EPOCH = 1 << 63  # a version is a revision plus this times the epoch in which it was read (`client.py`)
TURNS_MAX = 5  # how often a commit is tried again because a chapter of the log ended, or after a wide commit
INNER_OPS_MAX = 64
DUE_DIGITS = 16  # of a time in the index of what is due


class EtcdStore(Store, Maintenance, Forgetful):
    """Does not connect before the first call. `time` is for tests that move it."""

    capabilities = CAPABILITIES

    def __init__(self, location: EtcdLocation, time: Callable[[EtcdClient, Layout], EtcdTime] = EtcdTime) -> None:
        self.location = location
        self._layout = Layout(location.prefix)
        self._make_time = time
        self.forget()
        self._listening = listen(self)

    def forget(self) -> None:
        """Begin anew: no connection, no lock, no thread, an id of its own. Also in a forked child."""
        self._client = EtcdClient(self.location)
        self._time = self._make_time(self._client, self._layout)
        self._wide = txn.WideCommits(self._client, self._layout, self._write, self._time.raising)
        self._log = EventLog(self._client, self._layout)
        self._pruner = Pruner(self._log)
        self._stream = EtcdStream(self._client, self._layout)
        self._has_many_due = False
        self._earliest_ms = 0  # of the last look at what is due
        self._known: dict[str, Versioned] = {}  # as last read or written here
        self._known_bytes = 0
        self._trouble: DibsError | None = None
        self._damaged: dict[str, RecordCorrupt] = {}
        self._was_put_back = False
        self._client.on_put_back = self._put_back

    def _put_back(self) -> None:
        """An older copy of the data is there now. Called once for each, on any thread, before it is used."""
        self._known, self._known_bytes = {}, 0
        self._log.forget()
        self._earliest_ms = 0
        self._was_put_back = True

    def _raise_floor(self) -> None:
        """Skip the numbers that were given out after the copy was made, before anything is written to it. Fencing
        tokens are below the time in milliseconds, and numbers of events below the time in microseconds."""
        snapshot = self.read((META_KEY,))
        found = snapshot.records[META_KEY]
        meta = found.record if isinstance(found.record, Meta) else Meta()
        floor = max(meta.token_floor + 1, snapshot.now_ms)
        self.number_from(snapshot.now_ms * 1_000)
        self._commit({META_KEY: found.version}, {META_KEY: meta.replace(token_floor=floor)}, ())
        self._was_put_back = False
        log.warning(
            "etcd (%s) holds an older copy of the store: a snapshot was put back. What was done since then is lost. "
            "New fencing tokens are above %s.",
            self.location.shown(),
            floor,
        )

    def read(self, keys: Iterable[str]) -> Snapshot:
        self._time.ready()
        wanted = list(dict.fromkeys(keys))
        records: dict[str, Versioned] = {}
        revision, epoch = 0, self._client.epoch
        while True:
            page = wanted[len(records) : len(records) + ETCD_READ_KEYS_MAX]
            # All pages of a read have the revision of the first, so they show one moment.
            ops = [range_op(self._layout.record(key), revision=revision) for key in page]
            packs = [messages.inner(ops[at : at + INNER_OPS_MAX]) for at in range(0, len(ops), INNER_OPS_MAX)]
            try:
                answer = self._client.txn([self._time.looking, *(packs if len(packs) > 1 else ops)], refusals=True)
            except Refusal as error:
                if not error.is_compacted:
                    raise translated(error, self.location.shown(), writes=False) from None
                records, revision = {}, 0  # compacted between two pages: read all of it again
                continue
            looked, *found = answer.ranges
            if not revision and self._is_half_written(looked.kvs, answer.revision):
                continue
            for key, each in zip(page, found, strict=True):
                records[key] = self._found(key, each.first, epoch) if each.first else ABSENT
            if len(records) == len(wanted):
                self._time.ready()  # the answer may have taken as long as a change of leader
                return Snapshot(now_ms=self._time.now_ms(), records=records)
            revision = answer.revision

    def _is_half_written(self, looked: list[KeyValue], revision: int) -> bool:
        """Take the answer to `looking`. True after a wide commit was finished that a reader might have seen half of: it
        reads again."""
        self._saw(looked, revision)
        wide = self._wide.found(looked)
        if wide is None or not wide.is_decided:
            return False
        is_begun = wide.next > 0
        try:
            self._wide.wait(wide, 0 if isinstance(self._trouble, StoreFull) else None)
        except StoreFull:
            # It cannot be finished while etcd has no room. If nothing of it is written, the answer shows the moment
            # before it; no other commit comes between. Otherwise the reader gets the error.
            if is_begun:
                raise
            return False
        return True

    def _saw(self, looked: list[KeyValue], revision: int) -> None:
        self._time.saw(looked)
        for kv in looked[1:2]:
            if kv.key == self._layout.name:
                self._client.saw((revision, kv.key, kv.mod_revision, kv.value))

    def _found(self, key: str, kv: KeyValue, epoch: int) -> Versioned:
        try:
            version = kv.mod_revision + epoch * EPOCH
            found = Versioned(version=version, record=decode(key, text_of(kv.value)))
        except RecordCorrupt as error:
            self._damaged[key] = error
            raise
        except DibsError as error:
            self._trouble = error
            raise
        self._remember(key, found, len(kv.value))
        return found

    def _remember(self, key: str, found: Versioned, size: int) -> None:
        self._known_bytes += max(0, size - SHORT_BYTES)
        if len(self._known) >= KNOWN_MAX or self._known_bytes > KNOWN_BYTES_MAX:
            self._known, self._known_bytes = {}, 0
        self._known[key] = found

    def recall(self, keys: Iterable[str]) -> Snapshot:
        """A record that is not remembered is reported as absent: most jobs are when they are claimed. So a claim is one
        call."""
        known = self._known
        if not known:
            return self.read(keys)  # this process has just begun
        self._time.ready()
        records = {key: known.get(key, ABSENT) for key in keys}
        return Snapshot(now_ms=self._time.now_ms(), records=records, is_recalled=True)

    def commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        self._time.ready()
        if self._was_put_back:
            self._raise_floor()
        return self._commit(expect, puts, events)

    def _commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        epoch = self._client.epoch
        if any(version and version // EPOCH != epoch for version in expect.values()):
            raise self._conflict(expect)
        bodies = {key: b"" if record is None else encode(record).encode() for key, record in puts.items()}
        if len(expect) > txn.COMPARES_MAX or len(events) > COMMIT_EVENTS_MAX:
            return self._commit_wide(expect, puts, bodies, events)
        writes = self._writes(expect, puts, bodies)
        compares = [
            messages.compare_revision(self._layout.record(key), version % EPOCH) for key, version in expect.items()
        ]
        compares.append(self._wide.absent)
        name = new_token()
        for _ in range(TURNS_MAX):
            ops, all_compares = writes, compares
            if events:
                compare, appends = self._log.appending(events)
                ops, all_compares = [*writes, *appends], [*compares, compare]
            if not txn.fits([*ops, *compares]):
                return self._commit_wide(expect, puts, bodies, events)
            answer = self._write(self._request(all_compares, ops, name), epoch)
            if answer.succeeded:
                self._client.saw((answer.revision, self._layout.name, answer.revision, name.encode()))
                for key, record in puts.items():
                    if record is None:
                        self._known.pop(key, None)
                    else:
                        version = answer.revision + epoch * EPOCH
                        self._remember(key, Versioned(version=version, record=record), len(bodies[key]))
                return self._last_number(answer, len(events))
            chapter, other = [each.kvs for each in answer.ranges]
            wide = self._wide.found(other)
            if wide is not None:
                self._wide.wait(wide)
            elif not events or not self._log.has_turned(chapter):
                break
        raise self._conflict(expect)

    def _conflict(self, expect: Mapping[str, int]) -> Conflict:
        for key in expect:
            self._known.pop(key, None)
        return Conflict()

    def _commit_wide(
        self, expect: Mapping[str, int], puts: Puts, bodies: dict[str, bytes], events: Sequence[Event]
    ) -> int:
        wide = self._wide.begin()
        try:
            keys = list(expect)
            for at in range(0, len(keys), ETCD_READ_KEYS_MAX):
                found = self.read(keys[at : at + ETCD_READ_KEYS_MAX]).records
                if any(each.version != expect[key] for key, each in found.items()):
                    raise self._conflict(expect)
                self._wide.keep(wide)
            writes = self._writes(expect, puts, bodies)
            last = self._wide.finish(wide, txn.parts_of(writes, self._log.appending_wide(events)))
        except BaseException:
            self._wide.give_up(wide.id)
            raise
        for key in puts:
            self._known.pop(key, None)
        return self._log.last_number(last)

    def _write(self, request: bytes, epoch: int | None = None) -> TxnAnswer:
        try:
            answer = self._client.write(request, epoch)
        except StoreFull as error:
            self._trouble = error
            raise
        if answer.succeeded and isinstance(self._trouble, StoreFull):
            self._trouble = None
        return answer

    def _request(self, compares: list[bytes], ops: list[bytes], name: str) -> bytes:
        others = [txn.naming(self._layout, name), self._time.raising(), range_op(self._layout.last)]
        success = [*txn.packed(ops, len(compares), OTHER_OPS), *others]
        return messages.txn(success, compares, [self._log.chapter_op, self._wide.looking])

    def _last_number(self, answer: TxnAnswer, events: int) -> int:
        last = answer.ranges[-1].kvs
        if not events:
            return self._log.last_number(last)
        self._log.appended(last[0])
        return seq_of(answer.revision, events - 1) + self._log.base

    def _writes(self, expect: Mapping[str, int], puts: Puts, bodies: dict[str, bytes]) -> list[bytes]:
        layout, ops = self._layout, []
        replaced = self._replaced(expect, puts)
        for key, record in puts.items():
            due_ms, live = _entries(replaced.get(key))
            now_due_ms, now_live = _entries(record)
            ops.append(delete_op(layout.record(key)) if record is None else put_op(layout.record(key), bodies[key]))
            if due_ms != now_due_ms:
                ops += [delete_op(layout.due(due_ms, key))] if due_ms is not None else []
                ops += [put_op(layout.due(now_due_ms, key), b"")] if now_due_ms is not None else []
            if live != now_live:
                ops.append(put_op(layout.live_mark(key), b"") if now_live else delete_op(layout.live_mark(key)))
        return ops

    def _replaced(self, expect: Mapping[str, int], puts: Puts) -> dict[str, Stored | None]:
        """The records that are about to be replaced: as remembered, or read again."""
        found = {key: self._known.get(key, ABSENT) for key in puts if expect[key]}
        missing = [key for key, each in found.items() if each.version != expect[key]]
        if missing:
            found |= self.read(missing).records
            if any(found[key].version != expect[key] for key in missing):
                raise Conflict
        return {key: each.record for key, each in found.items()}

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Page:
        if limit <= 0:
            return []
        self._time.ready()
        root = self._layout.live if live else self._layout.records
        whole = self._layout.live_mark(prefix) if live else self._layout.record(prefix)
        found: Page = []
        while len(found) < limit:  # only the last page may be short: others replace those left out
            begin = root + after.encode() + b"\0" if after >= prefix and after else whole
            wanted, epoch = limit - len(found), self._client.epoch
            kvs = self._ask(range_op(begin, txn.end_of(whole), limit=wanted, keys_only=live)).kvs
            keys = [kv.key[len(root) :].decode() for kv in kvs]
            found += self._live(keys) if live else self._readable(keys, kvs, epoch)
            if len(kvs) < wanted:
                break
            after = keys[-1]
        return found

    def _readable(self, keys: list[str], kvs: list[KeyValue], epoch: int) -> Page:
        found: Page = []
        for key, kv in zip(keys, kvs, strict=True):
            with suppress(RecordCorrupt):  # noted
                found.append((key, self._found(key, kv, epoch)))
        return found

    def _live(self, keys: list[str]) -> Page:
        """Those of the keys whose record is there, can be read and is live. It may have changed since."""
        try:
            found = self.read(keys).records
        except RecordCorrupt:
            found = {}
            for key in keys:
                with suppress(RecordCorrupt):  # noted
                    found |= self.read((key,)).records
        return [(key, each) for key, each in found.items() if each.record is not None and each.record.is_live()]

    def due(self, limit: int) -> Due:
        self._time.ready()
        found, now_ms = self._first_due(max(1, limit)), self._time.now_ms()
        keys = [key for due_ms, key in found if due_ms <= now_ms]
        return Due(keys=keys[: max(0, limit)], next_ms=found[0][0] if found else None)

    def _first_due(self, limit: int) -> list[tuple[int, str]]:
        """Up to `limit` keys in the order of their times: at least one if there is any, and all that are due now, up to
        the limit. It may return fewer than `limit`, because only a part of the index was read."""
        until_ms, step_ms = max(self._time.now_ms(), self._earliest_ms), FIRST_STEP_MS
        found: list[tuple[int, str]] = []
        for _ in range(STEPS_MAX if self._has_many_due else 0):
            found, _ = self._due_before(self._layout.due(until_ms + 1, ""), limit)
            if found:
                break
            until_ms, step_ms = until_ms + step_ms, step_ms * 2
        else:
            found, count = self._due_before(txn.end_of(self._layout.dues), limit)
            self._has_many_due = count > SMALL
        self._earliest_ms = found[0][0] if found else 0
        return found

    def _due_before(self, end: bytes, limit: int) -> tuple[list[tuple[int, str]], int]:
        """Times and keys, and how many there are in all."""
        answer = self._ask(range_op(self._layout.dues, end, limit=limit, keys_only=True))
        entries = [kv.key[len(self._layout.dues) :] for kv in answer.kvs]
        return [(int(entry[:16]), entry[17:].decode()) for entry in entries], answer.count

    def _ask(self, request: bytes) -> RangeAnswer:
        """One range, and the time with it, when no wide commit is half written."""
        while True:
            answer = self._client.txn([self._time.looking, request])
            looked, found = answer.ranges
            if not self._is_half_written(looked.kvs, answer.revision):
                return found

    def events(self, after: int, limit: int, job: Job | None = None, *, newest: bool = False) -> list[Event]:
        def rows(count: int) -> list[tuple[int, str]]:
            return read_events(self._log, after, count, job, newest=newest)

        return events_of(rows, max(0, limit), self._damaged, newest=newest)

    def newest_seq(self) -> int:
        return self._log.last_number(self._client.range(self._layout.last))

    def watch(self, after: int, timeout_ms: int) -> bool:
        def is_so(waiter: StoreWaiter) -> bool:
            return waiter.heard > revision_of(self._log.without_base(after)) or self.newest_seq() > after

        return self._stream.until(None, is_so, self._stream.pause_ms, timeout_ms)

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        """Only the deletion of that record wakes it."""
        record = self._layout.record(key)

        def is_gone(_: StoreWaiter) -> bool:
            return not self._client.range(record, keys_only=True)

        return self._stream.until(record, is_gone, self._stream.pause_ms, timeout_ms)

    def on_gone(self, notify: Callable[[Sequence[str]], None]) -> None:
        self._stream.on_gone = notify

    def prune(self, *, keep: int, before_ms: int) -> int:
        return self._pruner.prune(keep=keep, before_ms=before_ms)

    def number_from(self, seq: int) -> None:
        for _ in range(TURNS_MAX):
            if self._log.number_from(seq):
                return
        raise Conflict

    def trouble(self) -> DibsError | None:
        return self._time.trouble or self._trouble

    def damaged(self) -> list[str]:
        return still_damaged(self, self._damaged)

    def set_aside(self, key: str, keep: Callable[[str], None]) -> bool:
        """Nothing says which entry the record has in the index of what is due, so all entries are looked at."""
        self._time.ready()
        if key.startswith(EVENT_PREFIX):
            return self._set_event_aside(key, int(key.removeprefix(EVENT_PREFIX)), keep)
        keys = self._layout
        found = self._ask(range_op(keys.record(key))).first
        if found is None or is_readable(key, text_of(found.value)):
            return False
        keep(text_of(found.value))
        dues = self._client.range(keys.dues, txn.end_of(keys.dues), keys_only=True)
        stale = [kv.key for kv in dues if kv.key[len(keys.dues) + DUE_DIGITS + 1 :] == key.encode()]
        gone = [keys.record(key), keys.live_mark(key), *stale]
        compares = [messages.compare_revision(keys.record(key), found.mod_revision), self._wide.absent]
        self._damaged.pop(key, None)
        return self._client.txn([delete_op(each) for each in gone], compares).succeeded

    def _set_event_aside(self, key: str, seq: int, keep: Callable[[str], None]) -> bool:
        """All that was written together with it goes: a text that is changed would be that of a later event."""
        rows = read_events(self._log, seq - 1, 1, None, newest=False)
        if not rows or rows[0][0] != seq or is_event_readable(*rows[0]):
            return False
        revision = revision_of(self._log.without_base(seq - 1) + 1)
        written = [
            kv
            for prefix in (self._layout.log, self._layout.jobs)
            for kv in self._client.range(prefix, txn.end_of(prefix), since=revision)
            if kv.mod_revision == revision
        ]
        keep("\n".join([text_of(kv.value) for kv in written]))
        compares = [messages.compare_revision(kv.key, kv.mod_revision) for kv in written[:1]]
        self._damaged.pop(key, None)
        return self._client.txn([delete_op(kv.key) for kv in written], compares).succeeded

    def migrated(self) -> tuple[int, int]:
        self._time.ready()
        return self._time.format_before or 0, FORMAT

    def size_bytes(self) -> int:
        """The size of the whole etcd, including other users: etcd has no figure for a prefix."""
        return self._client.read(STATUS, b"", StatusAnswer).size_bytes

    def tidy(self) -> dict[str, Any]:
        """Compacting and defragmenting is for the operator of etcd, because others may use it."""
        return {"boots": self._time.forget_old_boots()}

    def probe(self) -> list[dict[str, Any]]:
        return probe(self.location, self)

    def close(self) -> None:
        self._pruner.close()
        self._stream.close()
        self._client.close()


def _entries(record: Stored | None) -> tuple[int | None, bool]:
    """The entries of a record in the two indexes."""
    return (None, False) if record is None else (record.due_ms(), record.is_live())
