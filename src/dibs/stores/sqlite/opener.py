"""Opening the file: one that is not there is made, one of an older version is brought up to date.

What may happen at that very moment: another process makes the file or puts another one in its place, or the file lies
where nothing can be written.
"""

from __future__ import annotations

import os

from dibs.stores.sqlite.fileformat import APPLICATION_ID, VERSION
from dibs.stores.sqlite.identity import identity_of
from dibs.system import ways

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from dibs.stores.sqlite.identity import Identity
else:
    from dibs.stores.sqlite.driver import sqlite3

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
        self.version_before = (
            VERSION  # the version of the format that this opener found; 0: the file was empty
        )
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
            if (
                os.access(beside, os.F_OK)
                and not os.access(beside, os.W_OK)
                and os.access(self.path, os.W_OK)
            ):
                try:
                    os.chmod(beside, os.stat(self.path).st_mode & 0o777)
                except OSError:
                    pass  # not ours: what comes of it is told when somebody writes

    def _try(self, how: str) -> sqlite3.Connection:
        main = identity_of(self.path)
        self._was_missing = main is None
        db = self._connect(how)
        try:
            reach_the_disk(db)
            state = State(self._look(db))
            self._identity.check_content(state.store_id, state.revision)
            if identity_of(self.path) != main:
                raise ReplacedWhileOpening("the file was replaced while it was opened")
            self._identity.opened(main, alone=self.frozen)
            self._opened(db, state)
        except BaseException:
            db.close()
            raise
        return db

    def _connect(self, how: str) -> sqlite3.Connection:
        path = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        return sqlite3.connect(
            f"file:{path}?{how}",
            uri=True,
            timeout=self._busy_ms / 1000,
            isolation_level=None,  # every transaction is written out
            check_same_thread=False,  # the lock above sees to it
            cached_statements=64,
        )

    def _look(self, db: sqlite3.Connection) -> tuple[int, int, int, str, int | None, int | None]:
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
        made: tuple[int, int, int, str, int | None, int | None] = row[3:]
        return made

    def _is_read_only_media(self, error: sqlite3.OperationalError) -> bool:
        """Reading needs to make files beside the database, and cannot. Without a log there is nothing to miss."""
        cannot = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        return (
            getattr(error, "sqlite_errorcode", 0) & 0xFF in cannot
            and os.path.isfile(self.path)
            and not os.access(os.path.dirname(self.path) or ".", os.W_OK)
            and not os.path.exists(f"{self.path}-wal")
        )
