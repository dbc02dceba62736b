"""Moving the log into the file beside the commits of a server, instead of inside one of them.

SQLite moves its write-ahead log into the file in whichever commit makes it too long; that commit then takes many times
as long as others. Here a thread does it, on a connection of its own, and does not block the commits meanwhile. They
make the log longer while it works, so the thread never quite reaches its end. The next commit moves the few pages that
are left; after that SQLite writes the log from its beginning again.

A reader that does not end keeps the log from being moved: it grows, and `notice` says so. If the thread cannot work,
SQLite does as it always does, at a log that is FALLBACK times as long.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from binascii import crc32
from time import sleep

from dibs.base import platforms
from dibs.base.cheap import Iterable, socket, sqlite3
from dibs.stores.fork_safety import listen
from dibs.stores.sqlite.file_identity import identity_of
from dibs.stores.sqlite.opener import connect, reach_the_disk

# One wake for one waiter, across threads and processes of a machine: a datagram socket named after what is waited for.
#
# Who waits for the deletion of a record binds a socket named by the store's id and the record's key. Who deletes it
# sends a byte there. Names are Linux's abstract ones: they leave nothing on the disk, and end with their socket. A wake
# is only a hint: the waiter looks at the store after it, and now and then without it. So without such sockets (another
# system, another network namespace, no descriptor left) nothing is missed, only noticed later.


def _address(store_id: str, key: str) -> bytes:
    """Two keys may share an address: then a waiter is woken for nothing, or one of two is not woken."""
    text = key.encode()
    return b"\0dibs-wake/%s/%08x/%s" % (store_id.encode(), crc32(text), text[-32:])


class Wakeup:
    """Waits to be woken for `key`. `can_hear` says whether a wake can arrive."""

    def __init__(self, store_id: str, key: str) -> None:
        self._socket: socket.socket | None = None
        if not platforms.IS_LINUX:
            return
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return  # no descriptor is left
        try:
            made.bind(_address(store_id, key))
        except OSError:  # the name is taken
            made.close()
            return
        self._socket = made

    @property
    def can_hear(self) -> bool:
        return self._socket is not None

    def wait(self, timeout_ms: int) -> None:
        if self._socket is None:
            sleep(timeout_ms / 1000)
            return
        self._socket.settimeout(timeout_ms / 1000)
        try:
            self._socket.recv(1)
        except TimeoutError:
            pass

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(self, *error: object) -> None:
        if self._socket is not None:
            self._socket.close()


def wake(store_id: str, keys: Iterable[str]) -> None:
    """Wake the processes that wait for the deletion of these records. Never waits, and never fails."""
    if not platforms.IS_LINUX:
        return
    try:
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return
    try:
        for key in keys:
            try:
                sender.sendto(b"!", socket.MSG_DONTWAIT, _address(store_id, key))
            except OSError:
                pass  # nobody waits, or has not looked since the last one
    finally:
        sender.close()


_MOVE = "PRAGMA wal_checkpoint(PASSIVE)"  # waits for nobody, and nobody waits for it
FALLBACK = 8
NOTICE = 64  # how many times as long as planned a log is worth a notice
ROUNDS_MAX = 4  # each is shorter than the one before
# About how many pages a commit writes: one for each record, and those of the history and of the indexes that go with
# it.
PAGES_A_ROW, PAGES_A_HISTORY, PAGES_AN_EVENT = 1, 3, 1
LOG_BYTES_KEPT = 32 << 20  # a log that was longer once, behind a long copy or an import, is cut to this
CLOSE_WAIT_S = 10.0
FORK_WAIT_S = 6.0


def _pages_of(rows: int, events: int) -> int:
    return PAGES_A_ROW * rows + (PAGES_A_HISTORY + PAGES_AN_EVENT * events if events else 0)


class Checkpointer:
    """For one store. `pages` says how long the log may grow before it is moved."""

    def __init__(self, path: str, pages: int) -> None:
        self.notice: str | None = None
        self._path = path
        self._pages = pages
        self._written = 0  # pages since the log was last moved, about
        self._is_short = False  # what is left of the log is for the next commit to move
        self._worker: threading.Thread | None = None
        self._working = allocate_lock()
        self._forking = False
        self._listening = listen(self)

    def opened(self, db: sqlite3.Connection) -> None:
        """`db` is the connection of the commits from now on."""
        db.execute(f"PRAGMA wal_autocheckpoint = {self._pages * FALLBACK}")
        db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")

    def fills(self, rows: int, events: int) -> bool:
        """Return whether a commit of this size moves the log. That commit writes the counters (`FileBelow`)."""
        return self._written + _pages_of(rows, events) >= self._pages

    def committed(self, db: sqlite3.Connection, rows: int, events: int) -> None:
        """A commit of this many records and events is done. Never fails: the commit has happened."""
        self._written += _pages_of(rows, events)
        if self._is_short:
            self._is_short = False
            self._written = 0
            try:
                db.execute(_MOVE).fetchone()
            except sqlite3.Error:
                pass  # the log has it all; the next round tries again
        elif self._written >= self._pages and not self._working.locked():
            self._written = 0
            self._worker = threading.Thread(target=self._move, name="dibs-checkpoint", daemon=True)
            try:
                self._worker.start()
            except RuntimeError:  # no more threads
                self._worker = None

    def _move(self) -> None:
        with self._working:
            try:
                main = identity_of(self._path)
                db = connect(self._path, 0)
                try:
                    if identity_of(self._path) == main:
                        self._move_on(db)
                finally:
                    db.close()
            except (sqlite3.Error, OSError):
                pass  # the log grows; a later commit starts another thread

    def _move_on(self, db: sqlite3.Connection) -> None:
        reach_the_disk(db)
        length = left = 0
        for _ in range(ROUNDS_MAX):
            busy, length, moved = db.execute(_MOVE).fetchone()
            left = length - moved
            if busy or left <= self._pages // FALLBACK:
                break
        # Also if nothing is left: a commit that came meanwhile is not in `length`, and the log would go on behind it.
        self._is_short = left <= self._pages // FALLBACK
        before, self.notice = self.notice, self._about(length, left)
        if self.notice is not None and before is None:
            import logging

            logging.getLogger("dibs").warning("%s", self.notice)

    def _about(self, length: int, left: int) -> str | None:
        if left <= self._pages or length < self._pages * NOTICE:
            return None
        return (
            f"{self._path}-wal has grown to {length} pages: another process has been reading the file for long, and as"
            " long as it does the log cannot be moved into the file. End that process."
        )

    def close(self) -> None:
        thread, self._worker = self._worker, None
        if thread is not None:
            thread.join(CLOSE_WAIT_S)

    def before_fork(self) -> None:
        """Let no connection cross a fork (`fork_safety.py`)."""
        self._forking = self._working.acquire(timeout=FORK_WAIT_S)

    def after_fork(self, *, in_child: bool) -> None:
        forking, self._forking = self._forking, False
        if in_child:
            self._worker = None
            self._working = allocate_lock()
        elif forking:
            self._working.release()
