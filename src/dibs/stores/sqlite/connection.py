"""The connection to the file: one per store, for any thread, one at a time.

    with link.turn, link as db:
        db.execute(...)

is the only way to it, and the one door at which errors of the driver are translated. A block that fails leaves no
transaction behind, and a connection that may be damaged is not used again: the next block opens another.

Why an interrupt cannot leave it locked. A signal's exception may come between any two instructions of Python, also
between taking a lock and the `try` after it, and in the first instruction of `__exit__`. `turn` is therefore a lock of
CPython's own, whose taking and giving back are single instructions of the `with`. What an interrupted `__exit__` left
undone (`_unsettled`) is done by the next `__enter__`.
"""

from __future__ import annotations

import os
from _thread import RLock
from _weakref import ref

from dibs.clock import steady_ms
from dibs.errors import StoreCorrupt, StoreFull, StoreReplaced, StoreUnavailable
from dibs.stores.sqlite.fileformat import APPLICATION_ID, VERSION
from dibs.stores.sqlite.identity import Identity, identity_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from types import TracebackType

    from dibs.errors import DibsError
else:
    import _sqlite3 as sqlite3  # the C part; the package around it imports datetime, which nothing here needs

# Everything that opening needs to know, in one statement. It fails on a file without our tables, which is how a new
# file is noticed.
_LOOK = """SELECT (SELECT user_version FROM pragma_user_version),
    (SELECT application_id FROM pragma_application_id), (SELECT journal_mode FROM pragma_journal_mode),
    revision, last_seq, time_ms, store_id, anchors.wall_ms, anchors.steady_ms
    FROM state LEFT JOIN anchors ON clock = ?"""

# No connection crosses a fork. SQLite's locks belong to the process that took them, and SQLite remembers per file which
# of them its process has: a child that inherits that memory believes to have locks that it has not, on connections of
# its own as well. The next process to close the file would then take itself for the last one, and remove the log that
# the child writes to. So every link closes its connection before a fork, and opens another when it is next used.
_links: list[ref[SqliteConnection]] = []
TROUBLE_MS = 10_000  # a failed write is remembered for so long, whatever smaller ones say
OPENINGS_MAX = 10  # how often a file that is being put in place is opened again
FORK_WAIT_S = 6.0  # longer than a statement waits for others
_left_behind: list[sqlite3.Connection] = []  # of a parent that was too busy; closing them would do harm


def _abandon(db: sqlite3.Connection) -> None:
    """Never close this one, not even at the end of the process: its file is not at its path any more, and closing
    would remove the log beside it by name, which is the log of somebody else's file now."""
    import ctypes  # only here; nothing else in Python keeps an object beyond the end

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def _before_fork() -> None:
    _links[:] = [each for each in _links if each() is not None]
    for each in _links:
        link = each()
        if link is not None:
            link.before_fork()


def _after_fork_in_parent() -> None:
    for each in _links:
        link = each()
        if link is not None:
            link.after_fork(in_child=False)


def _after_fork_in_child() -> None:
    for each in _links:
        link = each()
        if link is not None:
            link.after_fork(in_child=True)


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


class ReplacedWhileOpening(sqlite3.OperationalError):
    """The path named another file, or none, when the opening began."""


class State:
    """The one row of the table `state`, and the anchor of this process's clock, if the file has one."""

    __slots__ = ("anchor", "last_seq", "revision", "store_id", "time_ms")

    def __init__(self, row: tuple[int, int, int, str, int | None, int | None]) -> None:
        self.revision, self.last_seq, self.time_ms, self.store_id, wall_ms, steady_ms = row
        self.anchor = None if wall_ms is None or steady_ms is None else (wall_ms, steady_ms)


class SqliteConnection:
    """See the module's text. `opened` is called with each new connection, `spoilt` when a block has failed. `clock`
    names the clock whose anchor is wanted; a folder that is not there is made only if `folders`."""

    def __init__(
        self,
        path: str,
        busy_ms: int,
        opened: Callable[[sqlite3.Connection, State], None],
        spoilt: Callable[[], None],
        clock: Callable[[], str],
        *,
        folders: bool = True,
    ) -> None:
        self.path = path
        self.committing = False  # true while COMMIT runs: an error then may mean that the write happened
        self.made = False  # whether this link made the file
        self.trouble: DibsError | None = None  # the last that was met and is not over; damage never is
        self.writing_bytes = 0  # what the commit that is under way has to write
        self._failed_bytes = 0  # and what the one had that met the trouble
        self._failed_ms = 0
        self._damage: StoreCorrupt | None = None  # of the file itself, not of one record in it
        self._busy_ms = busy_ms
        self._opened = opened
        self._spoilt = spoilt
        self._clock = clock
        self._folders = folders
        self._lock = RLock()
        self._db: sqlite3.Connection | None = None
        self._unsettled = False
        self._forking = False
        self._closed = False
        self._identity = Identity(path)
        self._frozen = False  # opened as if it could not change: so it is opened afresh each time
        _links.append(ref(self))

    @property
    def turn(self) -> RLock:
        """The lock to hold around a block."""
        if self._is_mine():
            raise StoreUnavailable(
                "The store was called by something that interrupted it: a signal handler of this thread, most likely. "
                "Set a flag there, and call it later."
            )
        return self._lock

    def _is_mine(self) -> bool:
        """Whether this very thread has its turn. What threading.Condition asks, too."""
        mine: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return mine

    def __enter__(self) -> sqlite3.Connection:
        try:
            if self._unsettled:
                self._settle()
            self._unsettled = True
            if self._damage is not None:
                # Part of it may still be read, and would be taken for all of it: a held job for a free one.
                raise StoreCorrupt(self._damage.details)
            if self._frozen:
                self._spoilt()
                self._discard()
            if self._db is None:
                self._db = self._open()
            else:
                self._identity.check()
            return self._db
        except BaseException as error:
            self._settle()
            self._raise_translated(error, unknown=False)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._unsettled = False
            return
        unknown, self.committing = self.committing, False
        self._settle()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
            self._discard()  # it was opened when it could not be written; that may be over by the next time
        self._raise_translated(error, unknown=unknown)

    def committed(self, revision: int) -> None:
        """After COMMIT: what went to a file that nobody finds any more was not written for anybody."""
        self.committing = False
        self._identity.revision = revision
        if self.trouble is not None and self._is_over():
            self.trouble = None
        try:
            self._identity.check()
        except StoreReplaced as error:
            raise StoreReplaced(error.details, unknown=True) from None

    def _is_over(self) -> bool:
        """Whether a commit that went well shows that the trouble is over. One much smaller than the one that failed
        does not: the last bytes of a quota have room for a server's own notes, and for nothing else."""
        if isinstance(self.trouble, StoreCorrupt):
            return False
        if self.writing_bytes >= self._failed_bytes // 2 or steady_ms() - self._failed_ms > TROUBLE_MS:
            return True
        from dibs.stores.sqlite.errors import has_room

        return isinstance(self.trouble, StoreFull) and has_room(self.path)

    def close(self) -> None:
        """Let go of the file, for good."""
        with self.turn:
            self._closed = True
            self._discard()

    def _raise_translated(self, error: BaseException, *, unknown: bool) -> None:
        if isinstance(error, StoreCorrupt):
            self.trouble = error
        if isinstance(error, sqlite3.Error | OSError | UnicodeEncodeError):
            from dibs.stores.sqlite.errors import is_lasting, translate

            told = translate(error, self.path, self._busy_ms, unknown=unknown)
            if isinstance(told, StoreCorrupt):
                self.trouble = self._damage = told
            elif is_lasting(error) and not isinstance(self.trouble, StoreCorrupt):
                self.trouble = told
                self._failed_bytes, self._failed_ms = self.writing_bytes, steady_ms()
            raise told from error

    def _settle(self) -> None:
        """After a failure: no transaction is left open, and nothing that is remembered is trusted."""
        self._spoilt()
        self.committing = False
        if self._db is not None:
            try:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                # Proves that the connection still works; an I/O error or a damaged file shows here, too.
                self._db.execute("SELECT 1 FROM state").fetchone()
            except sqlite3.Error:
                self._discard()
        self._unsettled = False

    def _discard(self) -> None:
        db, self._db = self._db, None
        if db is None:
            return
        if not self._identity.is_main_there():
            _abandon(db)
            return
        try:
            db.close()
        except sqlite3.Error:
            pass  # there is nothing else to do with it

    def before_fork(self) -> None:
        """Wait for whoever uses the connection, and close it. Nobody opens another before `after_fork`."""
        if self._is_mine():
            return  # a signal handler forks in the middle of a block
        self._forking = True  # first: an interrupt may come as soon as the lock is taken
        self._forking = self._lock.acquire(timeout=FORK_WAIT_S)
        if self._forking:
            self._spoilt()
            self._discard()

    def after_fork(self, *, in_child: bool) -> None:
        forking, self._forking = self._forking, False
        if forking and self._is_mine():
            self._lock.release()
        if in_child and (not forking or self._db is not None):
            # Somebody was in the middle of it, and nobody here would ever be done with it.
            if self._db is not None:
                _left_behind.append(self._db)
            self._db = None
            self._lock = RLock()
            self._unsettled = False
            self._spoilt()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreUnavailable(f"The store at {self.path} was closed. Open it again.")
        self._frozen = False
        self._identity.check_before_opening()
        self._mend_beside()
        try:
            return self._try_until_settled()
        except sqlite3.OperationalError as error:
            if not os.path.lexists(self.path):
                from dibs.stores.sqlite.schema import create

                self.made = create(self.path, folders=self._folders)
                return self._try_until_settled()
            if not self._is_read_only_media(error):
                raise
            self._frozen = True
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
        db = self._connect(how)
        try:
            db.execute("PRAGMA synchronous = FULL")
            state = State(self._look(db))
            self._identity.check_content(state.store_id, state.revision)
            if identity_of(self.path) != main:
                raise ReplacedWhileOpening("the file was replaced while it was opened")
            self._identity.opened(main, alone=self._frozen)
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

            prepare(db, self.path, self._busy_ms)
            row = db.execute(_LOOK, (self._clock(),)).fetchone()
        elif row[2] != "wal" and not self._frozen:  # a copy made with VACUUM INTO, say
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
