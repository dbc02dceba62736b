"""Replaces a file atomically: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os

from dibs.ids import new_id

PRIVATE = 0o600
SHARED = 0o666  # less what the umask takes


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
            file.write(text.encode())
            if durable:
                file.flush()
                os.fsync(handle)
        os.replace(drafted, path)
    except BaseException:
        os.unlink(drafted)
        raise
