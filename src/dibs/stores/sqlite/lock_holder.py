"""The process that holds the write lock of an SQLite file. Reads /proc/locks, so it works on Linux only."""

from __future__ import annotations

import os

from dibs.system import ways

_WRITE_LOCK = 120  # a writer locks this byte of the -shm file: SQLite's WAL index format defines it


def write_lock_holder(path: str) -> tuple[int, bool] | None:
    """Pid of the writing process, and whether it is stopped. None: no process writes, or it is unknown."""
    if not ways.IS_LINUX:
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
                return int(words[4]), _is_stopped(int(words[4]))
    except (OSError, ValueError):  # an unknown line format
        pass
    return None


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] in "Tt"
