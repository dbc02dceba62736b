"""Translates errors of SQLite into errors of dibs, with what to do. Called only by connection.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dibs.base import platforms
from dibs.base.cheap import sqlite3
from dibs.base.errors import DibsError, InvalidInput, StoreCorrupt, StoreFull, StoreUnavailable

# The process that holds the write lock of an SQLite file. Reads /proc/locks, so it works on Linux only.

_WRITE_LOCK = 120  # a writer locks this byte of the -shm file: SQLite's WAL index format defines it


def write_lock_holder(path: str) -> tuple[int, bool] | None:
    """Pid of the writing process, and whether it is stopped. None: no process writes, or it is unknown."""
    if not platforms.IS_LINUX:
        return None
    try:
        inode = os.stat(path + "-shm").st_ino
        with open("/proc/locks", encoding="ascii") as file:
            lines = [line.split() for line in file]
        for words in lines:
            if len(words) < 8 or words[1:4] != ["POSIX", "ADVISORY", "WRITE"]:
                continue
            first, last = words[6], words[7]
            if int(words[5].rpartition(":")[2]) != inode or int(first) > _WRITE_LOCK:
                continue
            if last == "EOF" or int(last) >= _WRITE_LOCK:
                with open(f"/proc/{int(words[4])}/stat", encoding="utf-8", errors="replace") as file:
                    return int(words[4]), file.read().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, ValueError):  # an unknown line format
        pass
    return None


_FREE_BYTES_MIN = 256 * 1024  # an I/O error with less free space than this means a full disk
_ANOTHER = "or name another file (sqlite:///PATH)"


def translate(
    error: sqlite3.Error | OSError | UnicodeEncodeError, path: str, busy_ms: int, *, unknown: bool
) -> DibsError:
    """`error` as an error of dibs. `unknown`: it came during COMMIT."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput("A text has bytes that are not UTF-8. Write it in UTF-8.")
    if isinstance(error, OSError):
        return StoreUnavailable(_why_not_open(path) or f"{path} cannot be made: {error.strerror or error}.")
    reason = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
    if reason == sqlite3.SQLITE_FULL or (reason == sqlite3.SQLITE_IOERR and is_full(path)):
        # Nothing was written when there is no room for it. An I/O error at the very end leaves that open.
        unknown = unknown and reason == sqlite3.SQLITE_IOERR
        return StoreFull(f"The disk that holds {path} is full. Make room, then try again.", unknown=unknown)
    if reason in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return _busy(path, busy_ms)
    if reason in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _corrupt(path, error)
    if reason in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnavailable(
            f"{_unwritable(path)} cannot be written. Make it and its folder writable for you, {_ANOTHER}."
        )
    if reason == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(_why_not_open(path) or f"{path} cannot be opened ({error}).")
    if reason == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"Reading or writing {path} failed ({_name(error)}). Check the disk.", unknown=unknown)
    if reason == sqlite3.SQLITE_ERROR and str(error).startswith("no such table"):
        # Each format has a name that older ones do not know, which keeps their processes out.
        return StoreUnavailable(
            f"{path} has another format now ({error}): a newer dibs has brought it up to date. Start this again in the "
            "newer version; nothing was changed."
        )
    return StoreUnavailable(f"SQLite refused to work on {path}: {error} ({_name(error)}).", unknown=unknown)


def _busy(path: str, busy_ms: int) -> DibsError:
    long = f"for more than {busy_ms / 1000:g} seconds"
    found = write_lock_holder(path)
    if found is None:
        return StoreUnavailable(
            f"{path} was in use by another process {long}. Try again; if it stays so, look for a program that keeps "
            "a transaction open on it."
        )
    pid, is_stopped = found
    if is_stopped:
        what = f"which is stopped. Let it go on (kill -CONT {pid}), or end it."
    else:
        what = f"Try again; if it stays so, look at what process {pid} does."
    return StoreUnavailable(f"{path} was in use by process {pid} {long}{', ' if is_stopped else '. '}{what}")


@contextmanager
def translated(path: str, busy_ms: int) -> Iterator[None]:
    """For a connection apart from the store's own: what it meets, in our words."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise translate(error, path, busy_ms, unknown=False) from error


def is_lasting(error: BaseException) -> bool:
    """Return whether the next write will probably fail, too: no space, a failing disk, a file that is not writable."""
    lasting = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in lasting


def _unwritable(path: str) -> str:
    """Return which of the three files it is."""
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(path + suffix) and not os.access(path + suffix, os.W_OK):
            return path + suffix
    return path


def check(db: sqlite3.Connection, path: str) -> str | None:
    """Walk over the whole file. A sentence about the first damage; None: there is none."""
    try:
        (says,) = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        says = str(error)
    return None if says == "ok" else f"{path} is damaged ({says}). Restore it from a backup."


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


def _corrupt(path: str, error: sqlite3.Error) -> StoreCorrupt:
    what = "is not an SQLite file" if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_NOTADB else "is damaged"
    return StoreCorrupt(
        f"{path} {what} ({error}). Nothing was changed. Restore a backup, or move the file away; an empty "
        f"store's fencing tokens start again at 1."
    )


def is_full(path: str) -> bool:
    try:
        disk = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FREE_BYTES_MIN or (disk.f_files > 0 and disk.f_favail == 0)


def _why_not_open(path: str) -> str | None:
    """A sentence for the commonest reasons, found by looking."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return f"{path} is a folder. Name a file in it, such as {os.path.join(path, 'dibs.db')}."
    above = folder
    while not os.path.lexists(above) and os.path.dirname(above) not in ("", above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{path} cannot be made: {above} is not a folder."
    if not os.path.isdir(folder):
        also = "" if os.access(above, os.W_OK | os.X_OK) else f", and {above} cannot be written"
        return f"The folder {folder} does not exist{also}. Check how it is spelt; if it is right, make it, {_ANOTHER}."
    if os.path.exists(path) and not os.access(path, os.R_OK):
        return f"{path} is not readable for you. Ask its owner, {_ANOTHER}."
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"The folder {folder} cannot be written, and SQLite needs it for its log. Make it writable, {_ANOTHER}."
    return None
