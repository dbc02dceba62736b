"""Is the worker that opened a session still there? A neighbour on the same machine can see that it is not.

A mark names one process for good: the boot, the pid namespace (containers on one machine share the boot and nothing
else), the pid, and when it started, because pids come again.
"""

from __future__ import annotations

import os

from dibs.clock import boot_id

_GENERATIONS_MAX = 64


def process_mark(pid: int) -> str | None:
    """The mark of a process of ours, or None where the system does not tell."""
    started = _started(pid)
    return f"{boot_id()}:{_pid_namespace()}:{pid}:{started}" if started else None


def is_gone(mark: str | None) -> bool:
    """True only if that process surely has ended: it is of this boot and namespace, and no longer there."""
    if mark is None:
        return False
    boot, _, rest = mark.partition(":")
    namespace, _, rest = rest.partition(":")
    pid, _, started = rest.partition(":")
    if not pid.isdecimal() or boot != boot_id() or namespace != _pid_namespace() or not namespace:
        return False
    return _started(int(pid)) != started


def lineage(pid: int) -> list[str]:
    """The marks of a process and of those it descends from, nearest first.

    The first process of all is nobody's ancestor here: everybody would descend from it."""
    before = f"{boot_id()}:{_pid_namespace()}:"
    marks: list[str] = []
    while pid > (1 if marks else 0) and len(marks) < _GENERATIONS_MAX:
        fields = _stat(pid)
        if not fields:
            break
        marks.append(f"{before}{pid}:{fields[19].decode()}")
        pid = int(fields[1])
    return marks


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is no such process. A zombie has ended too."""
    fields = _stat(pid)
    return "" if not fields or fields[0] in (b"Z", b"X") else fields[19].decode()


def _stat(pid: int) -> list[bytes]:
    """What the system says of a process after its name: state, parent and so on. Empty when there is no such one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in brackets may hold anything, brackets and blanks too.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
