"""Copies of the file: made while others use it, and put in place when nobody does.

Putting one in place is one rename, and everything before it happens to a draft beside the file: whatever is killed,
the old file is there or the new one. The file must not be open anywhere meanwhile. Every connection keeps a shared lock
on it for as long as it is open, also that of a process that is stopped, so an exclusive lock is the proof. It is held
until the rename is done; who waits to open the file finds the new one then (`opener.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from dibs.base.cheap import sqlite3
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, StoreCorrupt, StoreFull, StoreUnavailable
from dibs.base.ids import new_id
from dibs.base.new_files import sync
from dibs.base.record import Record
from dibs.core.events import Event
from dibs.core.records import CREDENTIAL_PREFIX, LockRecord, Meta, Stored
from dibs.stores.codec import decode, end_of, events_of, page_of
from dibs.stores.port import Page, RecordCorrupt, StoreMoment
from dibs.stores.sqlite.errors import check, translated
from dibs.stores.sqlite.opener import connect, give, heir_in, view_of_progress
from dibs.stores.sqlite.queries import page, selected
from dibs.stores.sqlite.rows import APPLICATION_ID, PROGRESS, READ_COUNTERS, SETTLE

# The file at one moment: a read transaction of its own. With the write-ahead log nobody blocks anybody.


class SqliteMoment(StoreMoment):
    def __init__(self, path: str, busy_ms: int, now_ms: Callable[[], int]) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._damaged: dict[str, RecordCorrupt] = {}
        with translated(path, busy_ms):
            self._db = connect(path, busy_ms)
            self._db.execute("BEGIN")
            self._db.execute("SELECT revision FROM counters").fetchone()  # from here on nothing changes for us
        self.now_ms = now_ms()

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Page:
        with translated(self._path, self._busy_ms):
            return page_of(
                lambda beyond, count: page(self._db, prefix, beyond, count, live=False), after, limit, self._damaged
            )

    def events(self, after: int, limit: int) -> list[Event]:
        with translated(self._path, self._busy_ms):
            return events_of(lambda count: selected(self._db, after, count), limit, self._damaged)

    def damaged(self) -> list[str]:
        return sorted(self._damaged)

    def close(self) -> None:
        self._db.close()


WAIT_MS = 3_000  # single commands come and go
PAUSE_S = 0.02
EVENTS_PAGE = 1_000
# Where SQLite's locks on a file are: https://www.sqlite.org/lockingv3.html
LOCKS_AT, LOCKS_BYTES = 0x40000000, 512


class Counters(Record):
    """The counters of a file. Nothing that replaces it may begin below them."""

    revision: int = 0
    last_seq: int = 0
    time_ms: int = 0
    # The highest fencing token that any job has had.
    token: int = 0
    names: tuple[str, ...] = ()  # of the store, and of those that it goes on from
    tokens: tuple[tuple[str, Stored], ...] = ()  # bearer tokens, also those that are over, by their keys


@contextmanager
def opened(path: str) -> Iterator[sqlite3.Connection]:
    """The file, and what it meets in our words."""
    with translated(path, WAIT_MS), closing(connect(path, WAIT_MS)) as db:
        yield db


def unreadable(path: str) -> list[str]:
    """The keys of the records and events in the file that cannot be read."""
    moment = SqliteMoment(path, WAIT_MS, lambda: 0)
    try:
        after, seq = "", 0
        while found := moment.scan("", after):
            after = found[-1][0]
        while events := moment.events(seq, EVENTS_PAGE):
            seq = events[-1].seq
        return moment.damaged()
    finally:
        moment.close()


def copy(path: str, draft: str) -> None:
    """Copy the file at `path` into the empty file `draft`, as of one moment and on the disk. Others go on writing."""
    try:
        with opened(path) as source, closing(connect(draft, WAIT_MS)) as target:
            source.backup(target)  # all pages in one step: a read transaction, which is in nobody's way
            target.execute("PRAGMA journal_mode = DELETE")  # one plain file, without a log beside it
            damage = check(target, path)
    except StoreFull:
        folder = os.path.dirname(draft)
        raise StoreFull(f"The disk that holds {folder} is full. Make room there, then try again.") from None
    if damage is not None:
        raise StoreCorrupt(damage)
    sync(draft)


def is_empty(path: str) -> bool:
    with opened(path) as db:
        return db.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def raise_counters(draft: str, least: Counters) -> None:
    """Let the file go on from there. It gets an id of its own: it is not the one it was."""
    with opened(draft) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(_here(db, SETTLE))
        db.execute(
            "UPDATE counters SET revision = max(revision, ?) + 1, last_seq = max(last_seq, ?), store_id = ?",
            (least.revision, least.last_seq, new_id().replace("-", "")),
        )
        db.execute("COMMIT")


_COUNTED = (
    "SELECT key, body FROM records WHERE key = 'meta' OR key BETWEEN 'lock/' AND 'lock0'"
    f" OR key BETWEEN '{CREDENTIAL_PREFIX}' AND '{end_of(CREDENTIAL_PREFIX)}'"
)


def _here(db: sqlite3.Connection, statement: str) -> str:
    """A statement about PROGRESS, for a file of any format."""
    return statement.replace(PROGRESS, view_of_progress(db) or PROGRESS)


def counters(db: sqlite3.Connection) -> Counters:
    revision, last_seq, time_ms = db.execute(_here(db, READ_COUNTERS)).fetchone()
    (version,) = db.execute("SELECT max(version) FROM records").fetchone()
    revision = max(revision, version or 0)
    token = 0
    names: tuple[str, ...] = ()
    tokens: list[tuple[str, Stored]] = []
    for key, body in db.execute(_COUNTED):
        try:
            record = decode(key, body)
        except StoreCorrupt:
            continue  # what can be read counts
        if isinstance(record, Meta):
            token = max(token, record.token_floor)
            names = tuple(filter(None, (record.store_id, *record.moved_from)))
        elif isinstance(record, LockRecord):
            token = max(token, record.token)
        else:
            tokens.append((key, record))
    return Counters(
        revision=revision, last_seq=last_seq, time_ms=time_ms, token=token, names=names, tokens=tuple(tokens)
    )


@contextmanager
def sole_use(path: str) -> Iterator[Counters | None]:
    """Keep everybody else out of the file. Says how far it had come; None: there is none, or it cannot be read."""
    if not os.path.exists(path):
        _remove_beside(path)
        yield None
        return
    db = None
    try:
        db = _locked(path)
        found = counters(db)
    except sqlite3.DatabaseError:
        if db is not None:
            db.close()
        with _locked_unread(path):
            yield None
        return
    try:
        yield found
    finally:
        db.close()


def _locked(path: str) -> sqlite3.Connection:
    """A connection that is the only one, and leaves no log beside the file."""
    until_ms = steady_ms() + WAIT_MS
    while True:
        db = connect(path, 0)
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            (mode,) = db.execute("PRAGMA journal_mode = DELETE").fetchone()
            db.execute("BEGIN EXCLUSIVE")
            if mode != "delete":
                raise _in_use(path)
            _refuse_foreign(db, path)
            return db
        except BaseException as error:
            db.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if steady_ms() > until_ms:
                raise _in_use(path) from None
        time.sleep(PAUSE_S)


def _refuse_foreign(db: sqlite3.Connection, path: str) -> None:
    has_tables = db.execute("SELECT 1 FROM sqlite_master").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID and has_tables:
        raise InvalidInput(
            f"{path} is an SQLite file of another program. Nothing was changed; name the store to restore."
        )


@contextmanager
def _locked_unread(path: str) -> Iterator[None]:
    """The same for a file that SQLite cannot read: its lock bytes are taken by hand."""
    import fcntl

    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        raise StoreUnavailable(
            f"{path} belongs to another user, who may be using it. Restore as that user. Nothing was changed."
        ) from None
    with open(number, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCKS_BYTES, LOCKS_AT)
        except OSError:
            raise _in_use(path) from None
        _remove_beside(path)
        yield


def is_in_use(path: str) -> bool:
    """Tell whether another process has an SQLite file open that is in WAL mode, or reads or writes it now. False for a
    file that we may not write: nobody can ask about its locks."""
    import fcntl

    try:
        with open(path, "r+b") as file:  # at its end the lock is gone
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCKS_BYTES, LOCKS_AT)
    except PermissionError:
        return False
    except BlockingIOError:
        return True
    return False


def _remove_beside(path: str) -> None:
    """A log that is left from another file would be played into the one that comes here."""
    for suffix in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _in_use(path: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} is open in another process, a server perhaps. Stop everything that uses it, then restore. "
        "Nothing was changed."
    )


def keep_aside(path: str) -> str | None:
    """Give the file a second name, under which it stays when the path gets another one. None: there is no file."""
    kept = f"{path}.replaced-{new_id()[:8]}"
    try:
        os.link(path, kept)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be kept under a second name ({error.strerror}). Move it away yourself, then restore again. "
            "Nothing was changed."
        ) from None
    return kept


def take_over_owner(draft: str, path: str) -> None:
    """Let the draft belong to whom the file belongs to, with the same rights. A new file is made as `create` does."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        owner = heir_in(os.path.dirname(path) or ".")
        if owner is not None:
            give(draft, owner)
        return
    try:
        if (old.st_uid, old.st_gid) != (os.stat(draft).st_uid, os.stat(draft).st_gid):
            os.chown(draft, old.st_uid, old.st_gid)
        os.chmod(draft, old.st_mode & 0o777)
    except PermissionError:
        raise InvalidInput(
            f"{path} belongs to another user, and a restored file would not. Run this as that user, or as root."
        ) from None
