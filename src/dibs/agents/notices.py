"""Notices that are shown once: a file for each, below `told` in the state folder. After a week one may be shown
again."""

from __future__ import annotations

import os

from dibs.base.cheap import Mapping
from dibs.base.clock import wall_ms
from dibs.base.files import PRIVATE, state_folder
from dibs.base.ids import digest
from dibs.core.limits import LOCK_MEMORY_MS


def is_new(env: Mapping[str, str], *what: str) -> bool:
    """Tell whether this notice was not shown yet, and note that it is now. True where that cannot be noted: better
    twice than never."""
    folder = os.path.join(state_folder(env), "told")
    path = os.path.join(folder, digest(*what))
    if os.path.lexists(path):
        return False
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        _forget_old(folder)
    except OSError:
        pass
    return True


def _forget_old(folder: str) -> None:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if wall_ms() - os.lstat(path).st_mtime * 1000 > LOCK_MEMORY_MS:
                os.unlink(path)
        except OSError:
            pass
