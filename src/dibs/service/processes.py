"""Is the worker that opened a session still there? A neighbour on the same machine can see that it is not.

A mark names one process for good: the boot, the pid namespace (containers on one machine share the boot and nothing
else), the pid, and when it started, because pids come again.
"""

from __future__ import annotations

import os

from dibs.clock import boot_id


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


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is no such process. A zombie has ended too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in brackets may hold anything, brackets and blanks too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
