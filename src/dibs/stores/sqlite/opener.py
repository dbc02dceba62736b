"""Opens the SQLite file: connects to it, makes it, and brings its schema up to date."""

from __future__ import annotations

import os
import time

from dibs.base import platforms
from dibs.base.cheap import sqlite3
from dibs.base.errors import StoreCorrupt
from dibs.stores.codec import FORMAT
from dibs.stores.sqlite.rows import APPLICATION_ID, PROGRESS


def connect(path: str, wait_ms: int, how: str = "mode=rw") -> sqlite3.Connection:
    """A connection that waits `wait_ms` for others, for one thread at a time. Transactions are written out."""
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(
        f"file:{escaped}?{how}",
        uri=True,
        timeout=wait_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )


def reach_the_disk(db: sqlite3.Connection) -> None:
    """Let what this connection writes be on the disk before it goes on."""
    db.execute("PRAGMA synchronous = FULL")
    if platforms.IS_MACOS:  # there, a plain sync leaves a commit in the cache of the drive
        db.execute("PRAGMA fullfsync = 1")
        db.execute("PRAGMA checkpoint_fullfsync = 1")


def make_writable_beside(path: str) -> None:
    """Let log and index be written again if the file can be. SQLite makes them read-only while the file is."""
    for beside in (f"{path}-wal", f"{path}-shm"):
        if os.access(beside, os.F_OK) and not os.access(beside, os.W_OK) and os.access(path, os.W_OK):
            try:
                os.chmod(beside, os.stat(path).st_mode & 0o777)
            except OSError:
                pass  # not ours: whoever writes gets the error


def is_read_only_media(path: str, error: sqlite3.OperationalError) -> bool:
    """Reading needs to make files beside the database, and cannot. Without a log there is nothing to miss."""
    return (
        getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        and os.path.isfile(path)
        and not os.access(os.path.dirname(path) or ".", os.W_OK)
        and not os.path.exists(f"{path}-wal")
    )


# The schema of the file, as steps, each with the format that it leads to. A released step is never changed. A format
# that changes no table has none.
#
# All missing steps are applied in one transaction with the new number, so a file always has one format. If two
# processes find an old file, one of them migrates it and the other finds it migrated. The view PROGRESS gets another
# name with each format.

MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
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
        # One row; `rows.py` says what is in it. `store_id` tells this file from another one at the same path.
        "CREATE TABLE counters (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, last_seq INTEGER NOT"
        " NULL, time_ms INTEGER NOT NULL, store_id TEXT NOT NULL)",
        "INSERT INTO counters VALUES (1, 0, 0, 0, lower(hex(randomblob(16))))",
        # One row for each steady clock (`rows.py`).
        "CREATE TABLE anchors (clock TEXT PRIMARY KEY, wall_ms INTEGER NOT NULL, steady_ms INTEGER NOT NULL)",
    ),
}
# How far the file has come (`rows.py`).
_VIEW = (
    f"CREATE VIEW {PROGRESS} AS"
    " SELECT max(c.revision, ifnull(e.revision, 0)) AS revision,"
    " max(c.last_seq, CASE WHEN e.revision > c.revision THEN e.seq ELSE 0 END) AS last_seq,"
    " max(c.time_ms, CASE WHEN e.revision > c.revision THEN e.at_ms ELSE 0 END) AS time_ms, c.store_id AS store_id"
    " FROM counters AS c LEFT JOIN (SELECT seq, at_ms, revision FROM events ORDER BY seq DESC LIMIT 1) AS e"
)

_WAL_PAUSE_S = 0.005
# Half of SQLite's default: a claim that is committed alone writes six pages, and changes some bytes of each. Smaller
# ones save no more: they are full sooner. A file keeps the size it was made with.
PAGE_BYTES = 2048


def create(path: str, *, folders: bool) -> bool:
    """Make an empty file that only its owner may read, with `folders` its folder too. True if there was none. What root
    makes in somebody's folder is theirs: a service must be able to use the store that root prepared for it."""
    folder = os.path.dirname(path)
    if folders and folder and not os.path.isdir(folder):
        _make_folder(folder)
    owner = heir_in(folder or ".")
    try:
        try:
            if owner is not None:
                _make_for(path, owner)
                return True
            # Not open() and close(): closing any descriptor of a file drops the locks that this process has on it, and
            # another thread may have opened it meanwhile.
            os.mknod(path, 0o600)
        except (AttributeError, PermissionError):
            # Elsewhere than on Linux only root may do that. A folder that we may not write says so here again.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return False
    return True


def heir_in(folder: str) -> tuple[int, int] | None:
    """The owner and group of a folder of somebody else, whose is what root makes in it. None: we keep what we make."""
    if os.geteuid() != 0:
        return None
    facts = os.stat(folder)
    return (facts.st_uid, facts.st_gid) if facts.st_uid else None


def _make_folder(folder: str) -> None:
    above = os.path.dirname(folder)
    if above and not os.path.isdir(above):
        _make_folder(above)
    try:
        os.mkdir(folder, mode=0o700)
    except FileExistsError:
        return  # another process made it
    owner = heir_in(above or ".")
    if owner is not None:
        give(folder, owner, os.O_DIRECTORY)


def _make_for(path: str, owner: tuple[int, int]) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(handle, *owner)
    finally:
        os.close(handle)


def give(path: str, owner: tuple[int, int], how: int = 0) -> None:
    """Give away what root has just made. Not by its name, to which the folder's owner may have linked another file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | how)
    try:
        facts = os.fstat(handle)
        if facts.st_uid == 0 and (how & os.O_DIRECTORY or facts.st_nlink == 1):
            os.fchown(handle, *owner)
    finally:
        os.close(handle)


def prepare(db: sqlite3.Connection, path: str, busy_ms: int) -> int:
    """Bring a file that is empty or of an older format up to this one. Anything else is refused, and left alone.
    Returns the format that it had; 0: it was empty."""
    _refuse_foreign(db, path)
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    use_wal(db, busy_ms)
    db.execute("BEGIN IMMEDIATE")
    try:
        found = _refuse_foreign(db, path)
        for number, step in MIGRATIONS.items():
            for statement in step if number > found else ():
                db.execute(statement)
        if found != FORMAT:
            if (view := view_of_progress(db)) is not None:
                db.execute(f"DROP VIEW {view}")
            db.execute(_VIEW)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
        return found
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def view_of_progress(db: sqlite3.Connection) -> str | None:
    """The name of the view PROGRESS in a file of any format; None: it has none."""
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'view' AND name GLOB 'progress*'").fetchone()
    return None if found is None else str(found[0])


def _refuse_foreign(db: sqlite3.Connection, path: str) -> int:
    """Return the file's format, if it is ours and this dibs reads it; 0: it is empty."""
    if os.path.getsize(path) and not db.execute("PRAGMA page_count").fetchone()[0]:
        # SQLite takes a file that is too short for a header for an empty one, and would write over it.
        raise StoreCorrupt(f"{path} is not an SQLite file. Nothing was changed; give dibs a path of its own.")
    # The mark last: another process may make the store meanwhile, and all of it appears at once.
    has_tables = db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    if application != APPLICATION_ID and (version or application or has_tables):
        raise StoreCorrupt(
            f"{path} is an SQLite file of another program. Nothing in it was changed; give dibs a path of its own."
        )
    if version:
        from dibs.stores import formats  # not needed by a claim in a file of this format, or a new one

        formats.refuse_unread(formats.SQLITE, version, path)
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
