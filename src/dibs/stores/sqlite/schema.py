"""The schema of the file, as numbered steps. A released step is never changed; new steps are appended.

All missing steps are applied in one transaction with the new version number, so a file is always at one version. If
two processes find an old file, one of them migrates it and the other finds it migrated. A step renames the view
`progress`, which every commit reads: so it keeps out processes of the version before that have the file open.
"""

from __future__ import annotations

import os
import time

from dibs.base.cheap import sqlite3
from dibs.base.errors import StoreCorrupt, StoreTooNew
from dibs.stores.sqlite.rows import APPLICATION_ID, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Rows of their own, found through an index of keys: a new record goes to the end of the table, where its
        # neighbours in the batch go too. Rows inside the index (WITHOUT ROWID) took twice as long for random names.
        # `due_ms` may be early (`rows.py`).
        "CREATE TABLE records (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, version INTEGER NOT NULL,"
        " due_ms INTEGER, live INTEGER NOT NULL, body TEXT NOT NULL)",
        "CREATE INDEX records_due ON records (due_ms) WHERE due_ms IS NOT NULL",
        # What is held, waited for, parked or open, found without walking over what is not.
        "CREATE INDEX records_live ON records (key) WHERE live",
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, ns TEXT NOT NULL, job TEXT NOT NULL,"
        " kind TEXT NOT NULL, body TEXT NOT NULL, revision INTEGER)",
        # `queries.py` finds the events of a job.
        "CREATE TABLE event_blocks (block INTEGER PRIMARY KEY, jobs BLOB NOT NULL)",
        # One row. `rows.py` says what is there, and what only the last event has. `store_id` tells this file from
        # another one at the same path.
        "CREATE TABLE counters (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, last_seq INTEGER NOT"
        " NULL, time_ms INTEGER NOT NULL, store_id TEXT NOT NULL)",
        "INSERT INTO counters VALUES (1, 0, 0, 0, lower(hex(randomblob(16))))",
        # One row for each steady clock (`clock.py`).
        "CREATE TABLE anchors (clock TEXT PRIMARY KEY, wall_ms INTEGER NOT NULL, steady_ms INTEGER NOT NULL)",
        # How far the file has come (`rows.py`).
        "CREATE VIEW progress AS"
        " SELECT max(c.revision, ifnull(e.revision, 0)) AS revision,"
        " max(c.last_seq, CASE WHEN e.revision > c.revision THEN e.seq ELSE 0 END) AS last_seq,"
        " max(c.time_ms, CASE WHEN e.revision > c.revision THEN e.at_ms ELSE 0 END) AS time_ms, c.store_id AS store_id"
        " FROM counters AS c LEFT JOIN (SELECT seq, at_ms, revision FROM events ORDER BY seq DESC LIMIT 1) AS e",
    ),
)

_WAL_PAUSE_S = 0.005


def create(path: str, *, folders: bool) -> bool:
    """Make an empty file that only its owner may read, and with `folders` the folder around it, if they are not there.
    Returns True if there was none."""
    folder = os.path.dirname(path)
    if folders and folder and not os.path.isdir(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        # Not open() and close(): closing any descriptor of a file drops the locks that this process has on it, and
        # another thread may have opened it meanwhile.
        os.mknod(path, 0o600)
        return True
    except FileExistsError:
        return False
    except (AttributeError, PermissionError):
        # Elsewhere than on Linux only root may do that. A folder that we may not write says so here again.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            return True
        except FileExistsError:
            return False


def prepare(db: sqlite3.Connection, path: str, busy_ms: int, migrations: Sequence[Sequence[str]] | None = None) -> int:
    """Bring a file that is empty or of an older version up to this one. Anything else is refused, and left alone.
    Returns the version that it had; 0: it was empty."""
    steps = MIGRATIONS if migrations is None else migrations
    _refuse_foreign(db, path)
    use_wal(db, busy_ms)
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _refuse_foreign(db, path)
        for step in steps[version:]:
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(steps)}")
        db.execute("COMMIT")
        return version
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _refuse_foreign(db: sqlite3.Connection, path: str) -> int:
    """Return the file's version, if it is ours or empty."""
    size = os.path.getsize(path)
    if size and not db.execute("PRAGMA page_count").fetchone()[0]:
        # SQLite takes a file that is too short for a header for an empty one, and would write over it.
        raise StoreCorrupt(f"{path} is not an SQLite file. Nothing was changed; give dibs a path of its own.")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    if application != APPLICATION_ID and (
        version or application or db.execute("SELECT 1 FROM sqlite_master").fetchone()
    ):
        raise StoreCorrupt(
            f"{path} is an SQLite file of another program. Nothing in it was changed; give dibs a path of its own."
        )
    if version > VERSION:
        raise StoreTooNew(
            f"{path} was written by a newer dibs: its format is version {version}, this dibs knows up to {VERSION}. "
            "Upgrade dibs; nothing in the file was changed."
        )
    return version


def use_wal(db: sqlite3.Connection, busy_ms: int) -> None:
    """Switch to the write-ahead log. SQLite's own busy timeout does not cover this step, so the wait is here.

    A file that cannot be written is left as it is: it can still be read."""
    for _ in range(max(1, int(busy_ms / 1000 / _WAL_PAUSE_S))):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            reason = error.sqlite_errorcode & 0xFF
            if reason == sqlite3.SQLITE_READONLY:
                return
            if reason not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            time.sleep(_WAL_PAUSE_S)
    db.execute("PRAGMA journal_mode = WAL")
