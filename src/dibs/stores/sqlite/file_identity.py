"""Checks that a connection still works on the file at its path.

A process that keeps writing to a deleted or moved file, while others use a new one at the same path, would give out
every job a second time. So this is checked before each use and after each commit.

SQLite keeps `-wal` and `-shm` for as long as any connection is open, and removes them by name when the last one
closes. While ours is open, all three names must stand for the files that it opened.

Asking for all three took nine system calls for each claim. So the folder is asked first: whoever makes, removes or
renames something in it changes its `st_ctime`, which nobody can set back. While that is the same as at the last whole
check, the three files are the same. It must have been some time old at that check: its clock has ticks, and two changes
may fall into one. What is not seen is another file that is mounted over one of the three.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Callable, sqlite3
from dibs.base.clock import wall_ms
from dibs.base.errors import StoreReplaced
from dibs.stores.sqlite.opener import connect

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


class FileIdentity:
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
