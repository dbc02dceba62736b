"""The connection to the file: one per store, for any thread, one at a time.

    with link.turn, link as db:
        db.execute(...)

is the only way to use it, and the only place where errors of the driver are translated. A block that fails leaves no
transaction open. A connection that may be damaged is not used again; the next block opens another. A file that is not
there is made, one of an older version is brought up to date. What may happen at that very moment: another process makes
the file or puts another one in its place, or the file lies where nothing can be written.

Why an interrupt cannot leave it locked. A signal's exception may come between any two instructions of Python, also
between taking a lock and the `try` after it, and in the first instruction of `__exit__`. `turn` is therefore a lock of
CPython's own, whose taking and giving back are single instructions of the `with`. What an interrupted `__exit__` left
undone (`_unsettled`) is done by the next `__enter__`.
"""

from __future__ import annotations

from _thread import RLock, get_ident

from dibs.base.cheap import Callable, Iterable, sqlite3
from dibs.base.errors import DibsError, StoreCorrupt, StoreFull, StoreReplaced, StoreUnavailable
from dibs.stores.codec import FORMAT
from dibs.stores.fork_safety import listen
from dibs.stores.port import Busy, RecordCorrupt
from dibs.stores.sqlite import file_identity, opener
from dibs.stores.sqlite.rows import APPLICATION_ID, PROGRESS

# Wall and steady time; None if the file has no anchor for the clock of this process.
Anchor = tuple[int | None, int | None]

# A thread that gets Busy where others wait for their turn, or for the write lock of another process.

IMPATIENT_MS = 5  # long enough for another process's usual commit


class Impatience:
    """While it is entered, the entering thread is impatient."""

    thread = 0  # no thread has this number

    def __enter__(self) -> None:
        self.thread = get_ident()

    def __exit__(self, *error: object) -> None:
        self.thread = 0


class ShortTurn:
    """A lock that is not waited for."""

    def __init__(self, lock: RLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=IMPATIENT_MS / 1000):
            raise busy()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def busy() -> Busy:
    return Busy("The store is in use. Try again.")


FORK_WAIT_S = 6.0  # longer than a statement waits for others
_left_behind: list[sqlite3.Connection] = []  # connections of a parent process, which must not be closed here
OPENINGS_MAX = 10  # how often a file that is being put in place is opened again
# Everything that opening needs to know, in one statement. It fails on a file without our tables: a new one.
_LOOK = f"""SELECT (SELECT user_version FROM pragma_user_version),
    (SELECT application_id FROM pragma_application_id), (SELECT journal_mode FROM pragma_journal_mode),
    revision, store_id, time_ms, anchors.wall_ms, anchors.steady_ms
    FROM {PROGRESS} LEFT JOIN anchors ON clock = ?"""
TROUBLE_MS = 10_000  # how long a failed write is remembered, although smaller ones succeed


def _abandon(db: sqlite3.Connection) -> None:
    """Never close this connection, not even at the end of the process: its file is not at its path any more, and
    closing would remove the log with that name, which belongs to another file now."""
    import ctypes  # only here; nothing else in Python keeps an object beyond the end

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


class SqliteConnection:
    """`opened` is called with each new connection, the file's id and time, and the anchor of `clock`; a connection that
    it refuses is closed. `spoilt` when a block failed. A folder that is not there is made only if `folders`. `stays`:
    of a server."""

    def __init__(
        self,
        path: str,
        busy_ms: int,
        opened: Callable[[sqlite3.Connection, str, int, Anchor], None],
        spoilt: Callable[[], None],
        clock: Callable[[], str],
        steady_ms: Callable[[], int],
        *,
        folders: bool = True,
        stays: bool = False,
    ) -> None:
        self.path = path
        self.made = False  # whether this connection made the file
        self.format_before = FORMAT  # the format that was found; 0: the file was empty
        self.committing = False  # true while COMMIT runs: an error then may mean that the write happened
        self.trouble: DibsError | None = None  # the last error that is not over; damage never is
        self.damaged: dict[str, RecordCorrupt] = {}  # records that could not be read
        self.writing: tuple[Iterable[str], Iterable[str]] = ((), ())  # what the present commit writes
        self._failed_bytes = 0  # the size of the commit that failed
        self._failed_ms = 0
        self._damage: StoreCorrupt | None = None  # of the file itself, not of one record in it
        self.impatience = Impatience()
        self._busy_ms = busy_ms
        self._waits_ms = busy_ms  # how long a statement waits for other processes at present
        self._opened = opened
        self._spoilt = spoilt
        self._clock = clock
        self._steady_ms = steady_ms
        self._folders = folders
        self._frozen = False  # opened as if it could not change: so it is opened afresh each time
        self._was_missing = False  # whether there was no file when the last opening began
        self._make_lock()
        self._db: sqlite3.Connection | None = None
        self._unsettled = False
        self._forking = False
        self._closed = False
        self._identity = file_identity.FileIdentity(path, steady_ms, stays=stays)
        self._listening = listen(self)

    @property
    def turn(self) -> RLock | ShortTurn:
        """The lock to hold around a block."""
        if self._is_mine():
            raise StoreUnavailable(
                "The store was called by code that interrupted it, most likely a signal handler of this thread. "
                "Set a flag there, and call it later."
            )
        return ShortTurn(self._lock) if self.impatience.thread == get_ident() else self._lock

    def _make_lock(self) -> None:
        self._lock = RLock()
        # Whether this thread holds the lock.
        self._is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def __enter__(self) -> sqlite3.Connection:
        try:
            if self._unsettled:
                self._settle()
            self._unsettled = True
            is_impatient = self.impatience.thread == get_ident()
            if self._damage is not None:
                # Parts of the file may still be readable, and would make a held job look free.
                raise StoreCorrupt(self._damage.details)
            if self._frozen:
                self._spoilt()
                self._discard()
            if self._db is None:
                if self._closed:
                    raise StoreUnavailable(f"The store at {self.path} was closed. Open it again.")
                if is_impatient:
                    raise busy()  # opening may take long
                self._db = self._open()
            else:
                self._identity.check()
            waits_ms = IMPATIENT_MS if is_impatient else self._busy_ms
            if self._waits_ms != waits_ms:
                self._db.execute(f"PRAGMA busy_timeout = {waits_ms}")
                self._waits_ms = waits_ms
            return self._db
        except BaseException as error:
            self._settle()
            self._raise_translated(error, unknown=False)
            raise

    def _open(self) -> sqlite3.Connection:
        self._frozen = False
        if not self._identity.is_main_there():  # a store that was open before may be reopened only on the same file
            raise file_identity.replaced(self.path, self.path)
        opener.make_writable_beside(self.path)
        try:
            return self._try_until_settled()
        except sqlite3.OperationalError as error:
            # Not whether there is a file now: another process may have made it since.
            if self._was_missing:
                self.made = opener.create(self.path, folders=self._folders)
                return self._try_until_settled()
            if not opener.is_read_only_media(self.path, error):
                raise
            self._frozen = True
            return self._try_until_settled("immutable=1")

    def _try_until_settled(self, how: str = "mode=rw") -> sqlite3.Connection:
        """Open the file. Another process may make it, or put it in place, at this very moment: then open it again."""
        for _ in range(OPENINGS_MAX):
            db = self._try(how)
            if db is not None:
                return db
        raise sqlite3.OperationalError("the file was replaced while it was opened")

    def _try(self, how: str) -> sqlite3.Connection | None:
        """None: the path named another file, or none, when the opening began."""
        main = file_identity.identity_of(self.path)
        self._was_missing = main is None
        db = opener.connect(self.path, self._busy_ms, how)
        try:
            opener.reach_the_disk(db)
            revision, store_id, time_ms, *anchor = self._look(db)
            self._identity.check_content(store_id, revision)
            if file_identity.identity_of(self.path) != main:
                db.close()
                return None
            self._identity.opened(main, alone=self._frozen)
            self._opened(db, store_id, time_ms, (anchor[0], anchor[1]))
        except BaseException:
            db.close()
            raise
        return db

    def _look(self, db: sqlite3.Connection) -> tuple[int, str, int, int | None, int | None]:
        """The state of a file that is ours and up to date, after making it so where needed."""
        try:
            row = db.execute(_LOOK, (self._clock(),)).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # that one: "no such table"
                raise
            row = None
        if row is None or row[:2] != (FORMAT, APPLICATION_ID):
            self.format_before = opener.prepare(db, self.path, self._busy_ms)
            row = db.execute(_LOOK, (self._clock(),)).fetchone()
        elif row[2] != "wal" and not self._frozen:  # a copy made with VACUUM INTO, say
            opener.use_wal(db, self._busy_ms)
        state: tuple[int, str, int, int | None, int | None] = row[3:]
        return state

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._unsettled = False
            return
        unknown, self.committing = self.committing, False
        self._settle()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
            self._discard()  # it was opened read-only; it may be writable the next time
        self._raise_translated(error, unknown=unknown)

    def committed(self, revision: int) -> None:
        """After COMMIT: check that the file is still at its path. A write to a deleted file is lost for everybody."""
        self.committing = False
        self._identity.revision = revision
        if self.trouble is not None and self._is_over():
            self.trouble = None
        try:
            self._identity.check()
        except StoreReplaced as error:
            raise StoreReplaced(error.details, unknown=True) from None

    def _is_over(self) -> bool:
        """Return whether a successful commit shows that the trouble is over. A much smaller commit than the failed one
        does not: a full quota may still have a few bytes."""
        if isinstance(self.trouble, StoreCorrupt):
            return False
        if self._writing_bytes() >= self._failed_bytes // 2 or self._steady_ms() - self._failed_ms > TROUBLE_MS:
            return True
        from dibs.stores.sqlite.errors import is_full

        return isinstance(self.trouble, StoreFull) and not is_full(self.path)

    def _writing_bytes(self) -> int:
        """The size of the present commit. Only trouble asks for it."""
        return sum([len(text) for texts in self.writing for text in texts])

    def close(self) -> None:
        with self.turn:
            self._closed = True
            self._discard()

    def _raise_translated(self, error: BaseException, *, unknown: bool) -> None:
        if isinstance(error, RecordCorrupt):
            self.damaged[error.key] = error
        elif isinstance(error, StoreCorrupt):
            self.trouble = error
        if isinstance(error, sqlite3.Error | OSError | UnicodeEncodeError):
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_BUSY and self.impatience.thread == get_ident():
                raise busy() from error
            from dibs.stores.sqlite.errors import is_lasting, translate

            ours = translate(error, self.path, self._busy_ms, unknown=unknown)
            if isinstance(ours, StoreCorrupt):
                self.trouble = self._damage = ours
            elif is_lasting(error) and not isinstance(self.trouble, StoreCorrupt):
                self.trouble = ours
                self._failed_bytes, self._failed_ms = self._writing_bytes(), self._steady_ms()
            raise ours from error

    def _settle(self) -> None:
        """After a failure: end the transaction, and discard everything remembered."""
        self._spoilt()
        self.committing = False
        if self._db is not None:
            try:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                # Proves that the connection still works; an I/O error or a damaged file shows here, too.
                self._db.execute("SELECT 1 FROM counters").fetchone()
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
        """Wait until nobody uses the connection, and close it. None is opened before `after_fork`."""
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
            # A thread of the parent was using it, and does not exist in this process.
            if self._db is not None:
                _left_behind.append(self._db)
            self._db = None
            self._make_lock()
            self._unsettled = False
            self._spoilt()
