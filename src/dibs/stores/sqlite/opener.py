"""Opening the file: one that is not there is made, one of an older version is brought up to date.

What may happen at that very moment: another process makes the file or puts another one in its place, or the file lies
where nothing can be written.
"""

from __future__ import annotations

import os

from dibs.base import ways
from dibs.base.cheap import sqlite3
from dibs.base.clock import wall_ms
from dibs.base.errors import StoreReplaced
from dibs.stores.sqlite.rows import APPLICATION_ID, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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


class Identity:
    """The files that were opened, and whether they are still there. `main` and the following attributes outlive single
    connections."""

    def __init__(self, path: str) -> None:
        self.path = path
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
        try:
            folder = os.stat(self._folder)
            seen = (folder.st_ctime_ns, folder.st_ino, folder.st_dev)
            if seen == self._unchanged:
                return
        except OSError:
            seen = None
        for path, known in self._files:
            found = identity_of(path)
            if found != known:
                raise replaced(path, self.path, gone=found is None)
        is_settled = False
        if seen is not None:
            # A time of whole milliseconds may be that of a coarse clock.
            settles_in_ms = SETTLED_MS if seen[0] % 1_000_000 else COARSE_SETTLED_MS
            is_settled = wall_ms() - seen[0] // 1_000_000 >= settles_in_ms
        # A link's own folder says nothing about the file that it names.
        self._unchanged = seen if is_settled and not os.path.islink(self.path) else None

    def check_before_opening(self) -> None:
        """A store that was open before may be reopened only on the same file."""
        if self.main is not None and identity_of(self.path) != self.main:
            raise replaced(self.path, self.path, gone=identity_of(self.path) is None)

    def check_content(self, store_id: str, revision: int) -> None:
        """Inode numbers are reused, and a file can be overwritten. So the file's own id must be the same, and its
        revision must not fall."""
        if self._store_id not in ("", store_id):
            raise replaced(self.path, self.path, gone=False)
        if revision < self.revision:
            raise StoreReplaced(
                f"{self.path} is older than before: a backup replaced it while in use. It is refused, because fencing "
                "tokens would repeat. To use the backup, restart this program."
            )
        self._store_id, self.revision = store_id, revision

    def is_main_there(self) -> bool:
        return self.main is None or identity_of(self.path) == self.main


def replaced(path: str, main: str, *, gone: bool) -> StoreReplaced:
    what = "is gone" if gone else "is another file now"
    back = "Put it back, or restart" if path == main else "Stop everything that uses the store, then start"
    return StoreReplaced(
        f"{path} {what}: it was deleted or replaced while this process used it. It is not used any more. "
        f"{back} "
        "what uses it to go on with what is there."
    )


# Everything that opening needs to know, in one statement. It fails on a file without our tables, which is how a new
# file is noticed.
_LOOK = """SELECT (SELECT user_version FROM pragma_user_version),
    (SELECT application_id FROM pragma_application_id), (SELECT journal_mode FROM pragma_journal_mode),
    revision, last_seq, time_ms, store_id, anchors.wall_ms, anchors.steady_ms
    FROM progress LEFT JOIN anchors ON clock = ?"""
OPENINGS_MAX = 10  # how often a file that is being put in place is opened again


class ReplacedWhileOpening(sqlite3.OperationalError):
    """The path named another file, or none, when the opening began."""


class State:
    """The one row of the view `progress`, and the anchor of this process's clock, if the file has one."""

    __slots__ = ("anchor", "last_seq", "revision", "store_id", "time_ms")

    def __init__(self, row: tuple[int, int, int, str, int | None, int | None]) -> None:
        self.revision, self.last_seq, self.time_ms, self.store_id, wall_ms, steady_ms = row
        self.anchor = None if wall_ms is None or steady_ms is None else (wall_ms, steady_ms)


def connect(path: str, wait_ms: int, how: str = "mode=rw") -> sqlite3.Connection:
    """A connection that waits `wait_ms` for others. Every transaction on it is written out. The caller sees to it that
    one thread at a time uses it."""
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


class FileOpener:
    """Opens the file at `path`. `opened` is called with each new connection; one that it refuses is closed. `clock`
    names the clock whose anchor is wanted; a folder that is not there is made only if `folders`."""

    def __init__(
        self,
        path: str,
        busy_ms: int,
        opened: Callable[[sqlite3.Connection, State], None],
        clock: Callable[[], str],
        identity: Identity,
        *,
        folders: bool,
    ) -> None:
        self.path = path
        self.made = False  # whether this opener made the file
        # The version of the format that this opener found; 0: the file was empty.
        self.version_before = VERSION
        self.frozen = False  # opened as if it could not change: so it is opened afresh each time
        self._was_missing = False  # whether there was no file when the last opening began
        self._busy_ms = busy_ms
        self._opened = opened
        self._clock = clock
        self._identity = identity
        self._folders = folders

    def open(self) -> sqlite3.Connection:
        self.frozen = False
        self._identity.check_before_opening()
        self._mend_beside()
        try:
            return self._try_until_settled()
        except sqlite3.OperationalError as error:
            # Not whether there is a file now: another process may have made it since. A link that leads nowhere stays.
            if self._was_missing and not os.path.islink(self.path):
                from dibs.stores.sqlite.schema import create

                self.made = create(self.path, folders=self._folders)
                return self._try_until_settled()
            if not self._is_read_only_media(error):
                raise
            self.frozen = True
            return self._try("immutable=1")

    def _try_until_settled(self) -> sqlite3.Connection:
        """Open the file. Another process may make it, or put it in place, at this very moment: then open it again."""
        for _ in range(OPENINGS_MAX - 1):
            try:
                return self._try("mode=rw")
            except ReplacedWhileOpening:
                continue
        return self._try("mode=rw")

    def _mend_beside(self) -> None:
        """Whoever opens a file that is read-only leaves a log and an index that are, too. When the file may be written
        again, so may those, if they are ours."""
        for suffix in ("-wal", "-shm"):
            beside = self.path + suffix
            if os.access(beside, os.F_OK) and not os.access(beside, os.W_OK) and os.access(self.path, os.W_OK):
                try:
                    os.chmod(beside, os.stat(self.path).st_mode & 0o777)
                except OSError:
                    pass  # not ours: what comes of it is told when somebody writes

    def _try(self, how: str) -> sqlite3.Connection:
        main = identity_of(self.path)
        self._was_missing = main is None
        db = connect(self.path, self._busy_ms, how)
        try:
            reach_the_disk(db)
            state = self._look(db)
            self._identity.check_content(state.store_id, state.revision)
            if identity_of(self.path) != main:
                raise ReplacedWhileOpening("the file was replaced while it was opened")
            self._identity.opened(main, alone=self.frozen)
            self._opened(db, state)
        except BaseException:
            db.close()
            raise
        return db

    def _look(self, db: sqlite3.Connection) -> State:
        """The state row of a file that is ours and up to date, after making it so where needed."""
        try:
            row = db.execute(_LOOK, (self._clock(),)).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # that one: "no such table"
                raise
            row = None
        if row is None or row[:2] != (VERSION, APPLICATION_ID):
            from dibs.stores.sqlite.schema import prepare

            self.version_before = prepare(db, self.path, self._busy_ms)
            row = db.execute(_LOOK, (self._clock(),)).fetchone()
        elif row[2] != "wal" and not self.frozen:  # a copy made with VACUUM INTO, say
            from dibs.stores.sqlite.schema import use_wal

            use_wal(db, self._busy_ms)
        return State(row[3:])

    def _is_read_only_media(self, error: sqlite3.OperationalError) -> bool:
        """Reading needs to make files beside the database, and cannot. Without a log there is nothing to miss."""
        cannot = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        return (
            getattr(error, "sqlite_errorcode", 0) & 0xFF in cannot
            and os.path.isfile(self.path)
            and not os.access(os.path.dirname(self.path) or ".", os.W_OK)
            and not os.path.exists(f"{self.path}-wal")
        )
