"""Records in one SQLite file, for any number of processes of one machine.

Records read or written are kept decoded; why that is right stands in `rows.py`.
"""

from __future__ import annotations

import os

from dibs.base import clock
from dibs.base.cheap import Any, Callable, Iterable, Mapping, Sequence, sqlite3
from dibs.base.errors import DibsError
from dibs.core.events import Event
from dibs.stores.codec import FORMAT, encode
from dibs.stores.port import (
    Capabilities,
    Due,
    Job,
    Maintenance,
    Page,
    Puts,
    Snapshot,
    Store,
    can_be_written,
    checked,
    still_damaged,
)
from dibs.stores.sqlite import rows
from dibs.stores.sqlite.connection import Anchor, Impatience, SqliteConnection
from dibs.stores.sqlite.rows import BLOCK, EVENT_AGE_MS_MAX, WRITE_COUNTERS, kept_by, read_counters, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.sqlite.backup import SqliteMoment
    from dibs.stores.sqlite.checkpoint import Checkpointer
    from dibs.stores.waiters import StoreWaiters

_LOG = "INSERT INTO events (seq, at_ms, ns, job, kind, body, revision) VALUES (?, ?, ?, ?, ?, ?, ?)"
BUSY_MS = 5_000  # less than a client waits for its answer, so that it gets the reason

_ANCHOR = "SELECT wall_ms, steady_ms FROM anchors WHERE clock = ?"
# Of boots long past.
_FORGET_ANCHORS = "DELETE FROM anchors WHERE rowid <= (SELECT max(rowid) FROM anchors) - 16"


class SqliteStore(Store, Maintenance):
    """The file at `path`, made if it is not there, with `make_folders` its folder too. Clocks can be given for tests;
    see rows.py for what they mean.

    A server that stays sets `checkpoint_pages`: a thread moves the log into the file when it has about so many pages
    (checkpoint.py). Without it SQLite does so in every commit that finds 1000 of them.
    """

    capabilities = Capabilities(
        name="sqlite",
        clock="the machine's steady clock, anchored once per boot",
        reach="host",
        watch="polling",
        durable=True,
        cannot=("be shared between machines, or lie on a network file system",),
    )

    def __init__(
        self,
        path: str,
        *,
        busy_ms: int = BUSY_MS,
        checkpoint_pages: int | None = None,
        steady_ms: Callable[[], int] = clock.steady_ms,
        wall_ms: Callable[[], int] = clock.wall_ms,
        boot_id: Callable[[], str] = clock.boot_id,
        make_folders: bool = True,
    ) -> None:
        self.path = os.path.abspath(path)
        self._busy_ms = busy_ms
        self._is_expected = make_folders  # nobody spelt the path
        self._clock = rows.LeaseClock(steady_ms, wall_ms, boot_id)
        self._cache = rows.RecordCache()
        self._counted_at: int | None = None  # data_version at which the counters below were the file's
        self._revision = 0
        self._last_seq = 0
        self._written = (0, 0)  # revision and time, as the file has them
        self._store_id = ""
        self._waiters: StoreWaiters | None = None  # of `watch`
        self._checkpointer: Checkpointer | None = None
        if checkpoint_pages is not None:
            from dibs.stores.sqlite.checkpoint import Checkpointer

            self._checkpointer = Checkpointer(self.path, checkpoint_pages)
        self._link = SqliteConnection(
            self.path,
            busy_ms,
            self._opened,
            self._forget,
            self._clock.name,
            steady_ms,
            folders=make_folders,
            stays=checkpoint_pages is not None,
        )
        with self._link.turn, self._link:
            pass  # what cannot be opened says so here

    def _opened(self, db: sqlite3.Connection, store_id: str, time_ms: int, anchor: Anchor) -> None:
        self._forget()
        self._store_id = store_id
        self._cursor = db.cursor()  # of commits: to make one for each statement costs as much as some statements
        if self._checkpointer is not None:
            self._checkpointer.opened(db)
        if self._clock.follow(anchor, time_ms):
            return
        try:
            db.execute("BEGIN IMMEDIATE")
            if not self._follow(db):
                made = self._clock.new_anchor()
                db.execute("INSERT OR REPLACE INTO anchors VALUES (?, ?, ?)", (self._clock.name(), *made))
                db.execute(_FORGET_ANCHORS)
                self._follow(db)
            db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._clock.follow(self._clock.new_anchor(), 0)  # to look at a file that we may not write

    def _follow(self, db: sqlite3.Connection) -> bool:
        anchor = db.execute(_ANCHOR, (self._clock.name(),)).fetchone() or (None, None)
        return self._clock.follow(anchor, read_counters(db)[2])

    def _forget(self) -> None:
        self._cache.forget()
        self._counted_at = None

    def read(self, keys: Iterable[str]) -> Snapshot:
        wanted = list(keys)
        with self._link.turn, self._link as db:
            if wanted:
                self._cache.load(db, wanted)
            return self._snapshot(wanted)

    def _snapshot(self, wanted: list[str]) -> Snapshot:
        records = self._cache.records
        return Snapshot(now_ms=self._clock.now_ms(), records={key: records[key] for key in wanted})

    def recall(self, keys: Iterable[str]) -> Snapshot:
        """Without a question to the file, if all of them are remembered or presumed to be new. Another thread may
        change the cache between two looks at it; the records may be of different moments anyway."""
        if self._cache.begun_at is None:  # nothing is remembered
            return self.read(keys)
        wanted = list(keys)
        found = self._cache.guess(wanted)
        if found is None:
            with self._link.turn, self._link as db:
                if not self._cache.supplement(db, wanted):
                    return self._snapshot(wanted)
                found = {key: self._cache.records[key] for key in wanted}
        return Snapshot(now_ms=self._clock.now_ms(), records=found, is_recalled=True)

    def commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        # Encoded before the write lock is taken: others need not wait for it.
        bodies = {key: encode(record) for key, record in puts.items() if record is not None}
        lines = [encode(event) for event in events]
        with self._link.turn, self._link as db:
            self._link.writing = (bodies.values(), lines)
            cursor = self._cursor
            cursor.execute("BEGIN IMMEDIATE")
            self._cache.is_true(cursor)
            if self._counted_at != self._cache.begun_at:
                self._revision, self._last_seq, time_ms = read_counters(db)
                self._written = (self._revision, time_ms)
                self._counted_at = self._cache.begun_at
            self._cache.compare(db, expect, puts)
            revision = max(self._revision, max(expect.values(), default=0)) + 1
            last_seq, now_ms = self._last_seq + len(events), self._clock.now_ms()
            write(cursor, revision, now_ms, puts, bodies, self._cache.records)
            fills = self._checkpointer is not None and self._checkpointer.fills(len(puts), len(events))
            if events:
                at_ms = events[-1].at_ms  # imported ones have times of another store, and do not carry the counters
                written = (revision, at_ms) if 0 <= now_ms - at_ms < EVENT_AGE_MS_MAX and not fills else None
                self._log(cursor, events, lines, None if written is None else revision)
            else:
                written = None if fills else kept_by(expect, puts, self._written, now_ms)
            if written is None:
                written = (revision, now_ms)
                cursor.execute(WRITE_COUNTERS, (revision, last_seq, now_ms))
            self._link.committing = True
            cursor.execute("COMMIT")
            self._link.committed(written[0])
            self._cache.remember(revision, puts, bodies)
            self._revision, self._last_seq, self._written = revision, last_seq, written
            if events and self._waiters is not None:
                self._waiters.wake((None,))
            if self._checkpointer is not None:
                self._checkpointer.committed(db, len(puts), len(events))
        if len(bodies) < len(puts):
            from dibs.stores.sqlite.checkpoint import wake

            wake(self._store_id, [key for key, record in puts.items() if record is None and expect[key]])
        return last_seq

    def _log(self, db: sqlite3.Cursor, events: Sequence[Event], lines: list[str], revision: int | None) -> None:
        """Append events. `revision`: they carry the counters."""
        seq = before = self._last_seq
        values = []
        for event, line in zip(events, lines, strict=True):
            seq += 1
            values.append((seq, event.at_ms, event.ns, event.job, event.kind, line, revision))
        db.executemany(_LOG, values)
        if seq // BLOCK != before // BLOCK:
            from dibs.stores.sqlite.queries import note_full

            note_full(db, before, seq)

    def at_once(self) -> Impatience:
        return self._link.impatience

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Page:
        from dibs.stores.sqlite.queries import scan

        return scan(self._link, prefix, after, limit, live=live)

    def due(self, limit: int) -> Due:
        from dibs.stores.sqlite.queries import due

        return due(self._link, self._cache, limit, self._clock.now_ms)

    def events(self, after: int, limit: int, job: Job | None = None, *, newest: bool = False) -> list[Event]:
        from dibs.stores.sqlite.queries import events

        return events(self._link, after, limit, job, newest=newest)

    def newest_seq(self) -> int:
        with self._link.turn, self._link as db:
            return read_counters(db)[1]

    def watch(self, after: int, timeout_ms: int) -> bool:
        """Looks every 20 ms at first and every 100 ms later; a commit through this very store wakes it at once."""
        from dibs.stores.sqlite.queries import watch
        from dibs.stores.waiters import StoreWaiters

        with self._link.turn:
            if self._waiters is None:
                self._waiters = StoreWaiters()
        return watch(self._waiters, self.newest_seq, after, timeout_ms)

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        """Woken by whoever deletes the record, in whichever process; looks now and then without that."""
        from dibs.stores.sqlite.queries import until_gone

        return until_gone(self._link, self._store_id, key, timeout_ms)

    def prune(self, *, keep: int, before_ms: int) -> int:
        from dibs.stores.sqlite.queries import prune

        return prune(self._link, keep=keep, before_ms=before_ms)

    def number_from(self, seq: int) -> None:
        from dibs.stores.sqlite.queries import number_from

        number_from(self._link, seq, self._forget)

    def probe(self) -> list[dict[str, Any]]:
        from dibs.stores.sqlite.errors import check

        with self._link.turn, self._link as db:
            damage = check(db, self.path)
        found = {"check": "file", "ok": damage is None, "says": damage or "is whole"}
        return [found, checked("write", can_be_written, self)]

    def moment(self) -> SqliteMoment:
        from dibs.stores.sqlite.backup import SqliteMoment

        return SqliteMoment(self.path, self._busy_ms, self._read_ms)

    def _read_ms(self) -> int:
        return self.read(()).now_ms

    def notices(self) -> list[str]:
        said = self._checkpointer.notice if self._checkpointer is not None else None
        found = [said] if said is not None else []
        if not self._link.made or self._is_expected:
            return found
        return [*found, f"{self.path} was not there: this is a new, empty store. Did you mean another one?"]

    def expect_new(self) -> str | None:
        self._is_expected = True
        return self.path if self._link.made else None

    def trouble(self) -> DibsError | None:
        return self._link.trouble

    def damaged(self) -> list[str]:
        return still_damaged(self, self._link.damaged)

    def set_aside(self, key: str, keep: Callable[[str], None]) -> bool:
        from dibs.stores.sqlite.queries import set_aside

        return set_aside(self._link, key, keep, self._forget)

    def migrated(self) -> tuple[int, int]:
        return self._link.format_before, FORMAT

    def size_bytes(self) -> int:
        sizes = 0
        for suffix in ("", "-wal"):
            try:
                sizes += os.stat(self.path + suffix).st_size
            except OSError:
                pass  # there is no log when nobody has the file open
        return sizes

    def close(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._link.close()
