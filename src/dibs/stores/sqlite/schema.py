"""The schema of the file, as numbered steps. A released step is never changed; new steps are appended.

All missing steps are applied in one transaction with the new version number, so a file is always at one version. If
two processes find an old file, one of them migrates it and the other finds it migrated.
"""

from __future__ import annotations

import os
import time

from dibs.base.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from dibs.stores.sqlite.driver import APPLICATION_ID, BLOCK, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable


# Which jobs a block of history is about: what finds the events of one job without an index of all of them.
#
# An index of events by job would cost a page at every event, because the next event is of another job. So events are
# in blocks, by their numbers. When a block is full, a mark for each of its jobs is written into one row of
# `event_blocks`. Who looks for a job reads the marks, and then the blocks that have its mark. The last block is not
# full and has no row; a block without a row is read.

_MARK_BYTES = 4

_JOBS = "SELECT ns, job FROM events WHERE seq > ? AND seq <= ?"
_NOTE = "INSERT OR REPLACE INTO event_blocks VALUES (?, ?)"
_OTHERS = "SELECT block FROM event_blocks WHERE block BETWEEN ? AND ? AND NOT instr(jobs, ?)"
_FORGET = (
    f"DELETE FROM event_blocks WHERE (block + 1) * {BLOCK} < (SELECT ifnull(min(seq), 1 << 62) FROM events)"
)


def marks_of(jobs: Iterable[tuple[str, str]]) -> bytes:
    """A mark for each job. Two jobs may share a mark: then a block is read in vain."""
    from binascii import crc32  # not for who only makes a file

    return b"".join([crc32(f"{ns}/{job}".encode()).to_bytes(_MARK_BYTES, "big") for ns, job in set(jobs)])


class _MarksOf:
    """The marks of a block's jobs, for SQL. Migrations use it, where blocks are many and nobody waits for a commit."""

    def __init__(self) -> None:
        self._jobs: set[tuple[str, str]] = set()

    def step(self, ns: str, job: str) -> None:
        self._jobs.add((ns, job))

    def finalize(self) -> bytes:
        return marks_of(self._jobs)


def register(db: sqlite3.Connection) -> None:
    """Let SQL on this connection use `marks_of`."""
    db.create_aggregate("marks_of", 2, _MarksOf)  # type: ignore[arg-type]  # typeshed knows one argument


def note_full(db: sqlite3.Connection, before: int, last_seq: int) -> None:
    """Write the rows of the blocks that became full when the last event's number rose from `before` to `last_seq`."""
    for block in range(before // BLOCK, last_seq // BLOCK):
        jobs = db.execute(_JOBS, (block * BLOCK, (block + 1) * BLOCK)).fetchall()
        if jobs:
            db.execute(_NOTE, (block, marks_of(jobs)))


def forget_pruned(db: sqlite3.Connection) -> None:
    """Delete the rows of blocks that have no event any more."""
    db.execute(_FORGET)


def blocks_of(db: sqlite3.Connection, job: tuple[str, str], after: int) -> list[int]:
    """The blocks that may have events of the job with a number above `after`, in order."""
    (first,) = db.execute("SELECT min(seq) FROM events WHERE seq > ?", (after,)).fetchone()
    if first is None:
        return []
    (last,) = db.execute("SELECT max(seq) FROM events").fetchone()
    bounds = ((first - 1) // BLOCK, (last - 1) // BLOCK)
    others = {block for (block,) in db.execute(_OTHERS, (*bounds, marks_of([job])))}
    return [block for block in range(bounds[0], bounds[1] + 1) if block not in others]


# Which records are live, as SQL over their text: the same as `is_live()` of the records (a test holds them together).
#
# It fills the column `live` of a file that had none. A quote inside a text is written with a backslash before it, so
# none of these can be part of one.

LIVE = (
    "CASE substr(key, 1, 5)"
    """ WHEN 'lock/' THEN instr(body, '"holders":[') + instr(body, '"line":[') + instr(body, '"parked":true') > 0"""
    """ WHEN 'sessi' THEN instr(body, '"ended_ms":') = 0"""
    " ELSE 0 END"
)


if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
else:
    from dibs.stores.sqlite.driver import sqlite3

# How far the file has come (`counters.py`). Steps have it, so it is never changed.
_PROGRESS = (
    "SELECT max(c.revision, ifnull(e.revision, 0)) AS revision,"
    " max(c.last_seq, CASE WHEN e.revision > c.revision THEN e.seq ELSE 0 END) AS last_seq,"
    " max(c.time_ms, CASE WHEN e.revision > c.revision THEN e.at_ms ELSE 0 END) AS time_ms, c.store_id AS store_id"
    " FROM counters AS c LEFT JOIN (SELECT seq, at_ms, revision FROM events ORDER BY seq DESC LIMIT 1) AS e"
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Rows of their own, found through an index of keys: a new record goes to the end of the table, where its
        # neighbours in the batch go too. Rows inside the index (WITHOUT ROWID) took twice as long for random names.
        "CREATE TABLE records (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, version INTEGER NOT NULL,"
        " due_ms INTEGER, body TEXT NOT NULL)",
        "CREATE INDEX records_due ON records (due_ms) WHERE due_ms IS NOT NULL",
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, ns TEXT NOT NULL, job TEXT NOT NULL,"
        " kind TEXT NOT NULL, body TEXT NOT NULL)",
        "CREATE INDEX events_job ON events (ns, job)",  # and seq: an index always ends with the row's number
        # One row. `time_ms` is the store's time at the last commit; the anchor ties it to this boot (clock.py).
        "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, last_seq INTEGER NOT"
        " NULL, time_ms INTEGER NOT NULL, boot_id TEXT NOT NULL, anchor_wall_ms INTEGER NOT NULL,"
        " anchor_steady_ms INTEGER NOT NULL)",
        "INSERT INTO state VALUES (1, 0, 0, 0, '', 0, 0)",
    ),
    (
        # What is held, waited for, parked or open, found without walking over what is not. `live.py` has the condition.
        f"CREATE INDEX records_live ON records (key) WHERE {LIVE}",
        # One row for each steady clock; the columns of `state` that had room for one are not used any more.
        "CREATE TABLE anchors (clock TEXT PRIMARY KEY, wall_ms INTEGER NOT NULL, steady_ms INTEGER NOT NULL)",
        "INSERT INTO anchors SELECT boot_id, anchor_wall_ms, anchor_steady_ms FROM state WHERE boot_id <> ''",
        # Tells this file from another one at the same path.
        "ALTER TABLE state ADD COLUMN store_id TEXT NOT NULL DEFAULT ''",
        "UPDATE state SET store_id = lower(hex(randomblob(16)))",
    ),
    (
        # A column, which a renewal does not write: an index on the text would be written by each of them.
        "DROP INDEX records_live",
        "ALTER TABLE records ADD COLUMN live INTEGER NOT NULL DEFAULT 0",
        f"UPDATE records SET live = 1 WHERE {LIVE}",
        "CREATE INDEX records_live ON records (key) WHERE live",
        # `blocks.py` finds the events of a job.
        "DROP INDEX events_job",
        "CREATE TABLE event_blocks (block INTEGER PRIMARY KEY, jobs BLOB NOT NULL)",
        "INSERT INTO event_blocks SELECT (seq - 1) / 256, marks_of(ns, job) FROM events"
        " WHERE seq <= (SELECT last_seq / 256 * 256 FROM state) GROUP BY 1",
        # The new name keeps out processes of an older version that have the file open: they would not set `live`, and
        # would go on from counters that events are ahead of. `counters.py` says what is where.
        "ALTER TABLE state RENAME TO counters",
        "ALTER TABLE events ADD COLUMN revision INTEGER",
        f"CREATE VIEW latest AS {_PROGRESS}",
    ),
    (
        # From here on `due_ms` may be early (`rows.py`), and a version above the revision (`counters.py`). An older
        # version would come to the same early entries again and again, and never beyond them; and its versions would
        # repeat. The new name keeps its processes out, if they have the file open.
        "DROP VIEW latest",
        f"CREATE VIEW progress AS {_PROGRESS}",
    ),
)

_WAL_PAUSE_S = 0.005


def create(path: str, *, folders: bool) -> bool:
    """Make an empty file that only its owner may read, and with `folders` the folder around it, if they are not there.
    Whether there was none."""
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


def prepare(
    db: sqlite3.Connection, path: str, busy_ms: int, migrations: Sequence[Sequence[str]] | None = None
) -> int:
    """Bring a file that is empty or of an older version up to this one. Anything else is refused, and left alone.
    Returns the version that it had; 0: it was empty."""
    steps = MIGRATIONS if migrations is None else migrations
    _refuse_foreign(db, path)
    use_wal(db, busy_ms)
    register(db)
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
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        _say_why(error, db, path)
        raise


def _say_why(error: BaseException, db: sqlite3.Connection, path: str) -> None:
    """Also who only looks needs the new format, and may not expect that the file has to be written."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_READONLY:
        return
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version:
        raise StoreUnavailable(
            f"{path} has the older format {version}, and cannot be written to bring it to {VERSION}. Make it and its "
            "folder writable for you, or open a copy."
        ) from error


def _refuse_foreign(db: sqlite3.Connection, path: str) -> int:
    """The file's version, if it is ours or empty."""
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
