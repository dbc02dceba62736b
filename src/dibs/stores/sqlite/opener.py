"""Connecting to the file, and the check that the files are still those that were opened."""

from __future__ import annotations

import os

from dibs.base.cheap import sqlite3
from dibs.base.clock import wall_ms
from dibs.base.errors import StoreReplaced
from dibs.system import ways

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
        beside = () if alone else (f"{self.path}-wal", f"{self.path}-shm")
        found = [(self.path, main), *[(path, identity_of(path)) for path in beside]]
        self._files = [(path, each) for path, each in found if each is not None]
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
        """Inode numbers are reused, and a file can be overwritten. So the file's own id must be the same, and its
        revision must not fall."""
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


def mend_beside(path: str) -> None:
    """Whoever opens a file that is read-only leaves a log and an index that are, too. When the file may be written
    again, so may those, if they are ours."""
    for beside in (f"{path}-wal", f"{path}-shm"):
        if os.access(beside, os.F_OK) and not os.access(beside, os.W_OK) and os.access(path, os.W_OK):
            try:
                os.chmod(beside, os.stat(path).st_mode & 0o777)
            except OSError:
                pass  # not ours: what comes of it is told when somebody writes


def is_read_only_media(path: str, error: sqlite3.OperationalError) -> bool:
    """Reading needs to make files beside the database, and cannot. Without a log there is nothing to miss."""
    return (
        getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        and os.path.isfile(path)
        and not os.access(os.path.dirname(path) or ".", os.W_OK)
        and not os.path.exists(f"{path}-wal")
    )
