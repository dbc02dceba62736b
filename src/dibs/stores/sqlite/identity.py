"""Checks that a connection still works on the files at its path. A process that keeps writing to a deleted or moved
file, while others use a new one at the same path, would give out every job a second time. So this is checked before
each use and after each commit.

SQLite keeps `-wal` and `-shm` for as long as any connection is open, and removes them by name when the last one closes.
While ours is open, all three names must stand for the files that it opened.

Asking for all three took nine system calls for each claim. So the folder is asked first: whoever makes, removes or
renames something in it changes its `st_ctime`, which nobody can set back. While that is the same as at the last whole
check, the three files are the same. It must have been some time old at that check: its clock has ticks, and two changes
may fall into one. What is not seen is another file that is mounted over one of the three.
"""

from __future__ import annotations

import os

from dibs.base.clock import wall_ms
from dibs.base.errors import StoreReplaced

SUFFIXES = ("", "-wal", "-shm")
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
        self._unchanged: tuple[int, int, int] | None = (
            None  # the folder at the last whole check, once it had settled
        )

    def opened(self, main: tuple[int, int] | None, *, alone: bool) -> None:
        """A connection was opened to `main` and has read from it. `alone`: it keeps no files beside it."""
        self.main = main
        found = [(self.path + suffix, identity_of(self.path + suffix)) for suffix in SUFFIXES[1:]]
        beside = [] if alone else [(path, each) for path, each in found if each is not None]
        self._files = [(self.path, main), *beside] if main is not None else beside
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
        self._check_each()
        is_settled = seen is not None and wall_ms() - seen[0] // 1_000_000 >= _settles_in_ms(seen[0])
        # A link's own folder says nothing about the file that it names.
        self._unchanged = seen if is_settled and not os.path.islink(self.path) else None

    def _check_each(self) -> None:
        for path, known in self._files:
            found = identity_of(path)
            if found != known:
                raise replaced(path, self.path, gone=found is None)

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


def _settles_in_ms(changed_ns: int) -> int:
    """How old the change must be. A time of whole milliseconds may be that of a coarse clock."""
    return SETTLED_MS if changed_ns % 1_000_000 else COARSE_SETTLED_MS


def replaced(path: str, main: str, *, gone: bool) -> StoreReplaced:
    what = "is gone" if gone else "is another file now"
    back = "Put it back, or restart" if path == main else "Stop everything that uses the store, then start"
    return StoreReplaced(
        f"{path} {what}: it was deleted or replaced while this process used it. It is not used any more. "
        f"{back} "
        "what uses it to go on with what is there."
    )
