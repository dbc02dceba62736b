"""New files, each of them whole or not there: written as a draft beside their place, for their owner alone.

Who writes a draft keeps it locked. So one that nobody has locked is of a process that was killed, and the next one who
writes the same file removes it: it may be large, and may have secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dibs.base.errors import InvalidInput, Unavailable
from dibs.base.files import PRIVATE, lock_file, to_disk
from dibs.base.ids import is_id, new_id


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """A draft beside `path`. It is put in place when the block ends well, if nothing is there."""
    if os.path.isdir(path):
        raise InvalidInput(f"{path} is a folder. Name a file in it.")
    if os.path.lexists(path):
        raise _there_already(path)
    with draft_beside(os.path.abspath(path)) as draft:
        yield draft
        try:
            # Not a rename: it would replace a file that somebody else has made there meanwhile.
            os.link(draft, path)
        except FileExistsError:
            raise _there_already(path) from None
        except OSError:  # a file system without links, such as that of a memory stick
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))
            os.rename(draft, path)
        sync(os.path.dirname(draft))


def _there_already(path: str) -> InvalidInput:
    return InvalidInput(f"{path} is there already. Name another file, or remove it first.")


@contextmanager
def draft_beside(path: str) -> Iterator[str]:
    """An empty file in the same folder. What is left of it at the end is removed."""
    folder, name = os.path.split(path)
    begin = f".{name}."
    _forget_drafts(folder, begin)
    try:
        handle, draft = _locked_draft(os.path.join(folder, begin))
    except OSError as error:
        raise Unavailable(f"Nothing can be put into {folder}: {error.strerror}.") from None
    try:
        yield draft
    finally:
        _remove(draft)
        os.close(handle)


def _locked_draft(begin: str) -> tuple[int, str]:
    while True:
        draft = begin + new_id()
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        try:
            is_ours = lock_file(handle, 0) and os.fstat(handle).st_nlink > 0
        except OSError:  # a file system without such locks, on which nobody removes another's draft
            is_ours = True
        if is_ours:
            return handle, draft
        os.close(handle)  # somebody removed it before it was locked


def _forget_drafts(folder: str, begin: str) -> None:
    with suppress(OSError):
        for name in os.listdir(folder or "."):
            if name.startswith(begin) and is_id(name.removeprefix(begin)):
                _remove_if_left(os.path.join(folder, name))


def _remove_if_left(draft: str) -> None:
    with suppress(OSError):  # it is gone, or of another user, or locks are unknown here
        handle = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if lock_file(handle, 0):
                _remove(draft)
        finally:
            os.close(handle)


def _remove(draft: str) -> None:
    """With what SQLite writes beside it. The draft is last: without it nobody would look for the others."""
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(FileNotFoundError):
            os.unlink(draft + suffix)


def sync(path: str) -> None:
    """Put a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        to_disk(handle)
    finally:
        os.close(handle)
