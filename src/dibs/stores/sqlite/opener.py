"""The file: connecting to it, the check that it is still the one that was opened; making it, and its schema."""

from __future__ import annotations

import os
import time

from dibs.base import ways
from dibs.base.cheap import Callable, sqlite3
from dibs.base.clock import wall_ms
from dibs.base.errors import StoreCorrupt, StoreReplaced
from dibs.stores.codec import FORMAT
from dibs.stores.sqlite.rows import APPLICATION_ID, PROGRESS

# Checks that a connection still works on the files at its path. A process that keeps writing to a deleted or moved
# file, while others use a new one at the same path, would give out every job a second time. So this is checked before
# each use and after each commit.
#
# SQLite keeps `-wal` and `-shm` for as long as any connection is open, and removes them by name when the last one
# closes. While ours is open, all three names must stand for the files that it opened.
#
# Asking for all three took nine system calls for each claim. So the folder is asked first: whoever makes, removes or
# renames something in it changes its `st_ctime`, which nobody can set back. While that is the same as at the last
# whole check, the three files are the same. It must have been some time old at that check: its clock has ticks, and
# two changes may fall into one. What is not seen is another file that is mounted over one of the three.

# A folder that nobody changed for this long has no other change in the same tick of its clock. The kernel's ticks are
# 10 milliseconds at most. File systems that keep whole seconds have ticks of one or two.
SETTLED_MS = 100
COARSE_SETTLED_MS = 2_000


def identity_of(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None if there is none."""
    try:
        file = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return file.st_dev, file.st_ino


# Checks that nobody wrote over the file of a server (`cp old.db dibs.db`). The log stays beside it, and SQLite goes on
# with pages of both. Checkpoints write to the file, too. They never make it older, and a server brings the row of
# `counters` up to date before each of its own. So whenever the file has changed, that row is read without the log.

BELOW_LOOK_MS = 20  # a checkpoint changes the file all the time
_BELOW = "SELECT store_id, revision, last_seq FROM counters"
_NOTHING = ("", 0, 0)  # before the first checkpoint of a new file all tables are in the log


class FileBelow:
    """The file below the log, as a server has seen it."""

    def __init__(self, path: str, steady_ms: Callable[[], int]) -> None:
        self._path = path
        self._steady_ms = steady_ms
        self._stamp: tuple[int, int] | None = None  # time and size at the last look, once the time had settled
        self._seen = _NOTHING
        self._doubted: tuple[str, int, int] | None = None  # what the last look found, if it was older
        self._looked_ms = -BELOW_LOOK_MS
        self._is_older = False

    def check(self) -> None:
        """Raise StoreReplaced if the file is older than it was, from then on."""
        try:
            file = os.stat(self._path)
        except OSError:
            return  # the next look at the names says it
        stamp = (file.st_mtime_ns, file.st_size)
        if stamp != self._stamp and not self._is_older:
            now_ms = self._steady_ms()
            if now_ms - self._looked_ms >= BELOW_LOOK_MS:
                self._looked_ms = now_ms
                self._note(self._look(), stamp)
        if self._is_older:
            raise StoreReplaced(
                f"{self._path} was written over with an older copy while in use, and its log goes with the newer file. "
                "It is not used any more.\n"
                "Stop everything that uses it, then put a copy in place with `dibs restore FILE`."
            )

    def _note(self, found: tuple[str, int, int] | None, stamp: tuple[int, int]) -> None:
        if found is None:
            return
        if self._seen == _NOTHING or self._goes_on_from(self._seen, found):
            self._seen = found
            self._stamp = stamp if wall_ms() - stamp[0] // 1_000_000 >= COARSE_SETTLED_MS else None
        else:  # twice the same: once may be the middle of a checkpoint after a VACUUM
            self._is_older, self._doubted = found == self._doubted, found

    @staticmethod
    def _goes_on_from(seen: tuple[str, int, int], found: tuple[str, int, int]) -> bool:
        return found[0] == seen[0] and found[1] >= seen[1] and found[2] >= seen[2]

    def _look(self) -> tuple[str, int, int] | None:
        """None: it cannot be read now, in the middle of a checkpoint perhaps. A new file has nothing to read."""
        try:
            db = connect(self._path, 0, "mode=ro&immutable=1")
            try:
                found: tuple[str, int, int] | None = db.execute(_BELOW).fetchone()
            finally:
                db.close()
        except sqlite3.Error as error:
            has_no_table = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR
            return _NOTHING if has_no_table and self._seen == _NOTHING else None
        return found


class Identity:
    """The files that were opened, and whether they are still there. `main` and what follows outlive connections.
    `stays`: of a server, which also looks at the file below its log."""

    def __init__(self, path: str, steady_ms: Callable[[], int], *, stays: bool = False) -> None:
        self.path = path
        self._below = FileBelow(path, steady_ms) if stays else None
        self.main: tuple[int, int] | None = None
        self._store_id = ""
        self.revision = 0  # the highest that was seen
        self._files: list[tuple[str, tuple[int, int]]] = []
        self._folder = os.path.dirname(path) or "."
        # The folder at the last whole check, once it had settled.
        self._unchanged: tuple[int, int, int] | None = None

    def opened(self, main: tuple[int, int] | None, *, alone: bool) -> None:
        """A connection was opened to `main` and has read from it. `alone`: it keeps no files beside it."""
        self.main = main
        self._files = [] if main is None else [(self.path, main)]
        for path in () if alone else (f"{self.path}-wal", f"{self.path}-shm"):
            found = identity_of(path)
            if found is not None:
                self._files.append((path, found))
        self._unchanged = None

    def check(self) -> None:
        """Raise StoreReplaced unless the paths still name the opened files."""
        self._check_names()
        if self._below is not None:
            self._below.check()

    def _check_names(self) -> None:
        try:
            folder = os.stat(self._folder)
            seen = (folder.st_ctime_ns, folder.st_ino, folder.st_dev)
            if seen == self._unchanged:
                return
        except OSError:
            seen = None
        for path, (device, inode) in self._files:
            try:
                file = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                raise replaced(path, self.path) from None
            if file.st_ino != inode or file.st_dev != device:
                raise replaced(path, self.path)
        is_settled = False
        if seen is not None:
            # A time of whole milliseconds may be that of a coarse clock.
            settles_in_ms = SETTLED_MS if seen[0] % 1_000_000 else COARSE_SETTLED_MS
            is_settled = wall_ms() - seen[0] // 1_000_000 >= settles_in_ms
        # A link's own folder says nothing about the file that it names.
        self._unchanged = seen if is_settled and not os.path.islink(self.path) else None

    def check_content(self, store_id: str, revision: int) -> None:
        """Inode numbers are reused, files overwritten. So the id must be the same, and the revision not lower."""
        if self._store_id not in ("", store_id):
            raise replaced(self.path, self.path)
        if revision < self.revision:
            raise StoreReplaced(
                f"{self.path} is older than before: a backup replaced it while in use. It is refused, because fencing "
                "tokens would repeat. To use the backup, restart this program."
            )
        self._store_id, self.revision = store_id, revision

    def is_main_there(self) -> bool:
        """Return whether the path names the file that was opened before, if any was."""
        return self.main is None or identity_of(self.path) == self.main


def replaced(path: str, main: str) -> StoreReplaced:
    what = "is another file now" if identity_of(path) is not None else "is gone"
    back = "Put it back, or restart" if path == main else "Stop everything that uses the store, then start"
    return StoreReplaced(
        f"{path} {what}: it was deleted or replaced while this process used it. It is not used any more. "
        f"{back} what uses it to go on with what is there."
    )


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
    if ways.IS_MACOS:  # there, a plain sync leaves a commit in the cache of the drive
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
