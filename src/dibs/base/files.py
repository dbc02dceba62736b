"""Files: replaced atomically, so that a reader sees the old content or the new; locked; put on the disk."""

from __future__ import annotations

import os
from time import sleep

from dibs.base.clock import steady_ms
from dibs.base.ids import new_id

PRIVATE = 0o600
SHARED = 0o666  # less what the umask takes
_LOCK_LOOK_S = 0.005


def to_disk(handle: int) -> None:
    """Wait until the content of an open file is on the disk. On macOS `fsync` leaves it in the cache of the drive."""
    import fcntl

    try:
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined]  # only macOS has it
    except (AttributeError, OSError):  # another system, or a file system without it
        os.fsync(handle)


def lock_file(handle: int, wait_ms: int) -> bool:
    """Take the exclusive lock of an open file, which ends when it is closed. False if another process had it all the
    time: one that is stopped would keep everybody waiting."""
    import fcntl

    until_ms = steady_ms() + wait_ms
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if steady_ms() >= until_ms:
                return False
            sleep(_LOCK_LOOK_S)


def replace_file(
    path: str, text: str, *, mode: int = PRIVATE, owner: tuple[int, int] | None = None, durable: bool = False
) -> None:
    """`owner`: the user and group it shall belong to. `durable`: it is on the disk before it is in place. Raises
    OSError; then the file is as it was, and no draft is left."""
    drafted = f"{path}.{new_id()}"
    handle = os.open(drafted, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(handle, "wb") as file:
            if owner is not None:
                os.fchown(handle, *owner)
            file.write(text.encode("utf-8", "surrogateescape"))
            if durable:
                file.flush()
                to_disk(handle)
        os.replace(drafted, path)
    except BaseException:
        os.unlink(drafted)
        raise
