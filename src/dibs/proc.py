"""Facts about processes from Linux's /proc. On other systems every function says that it does not know."""

from __future__ import annotations

import os

_ENDED = (b"Z", b"X", b"x")
_KERNEL_THREAD = 0x0020_0000


def pid_namespace() -> str:
    """Names the PID namespace of this process; empty where that is not known."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def has_own_proc() -> bool:
    """Whether the numbers in /proc are those that this process uses. In a PID namespace that shares the outer /proc
    they are not: there, our own entry lists a number for each namespace on the way to ours."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return line.split()[1:] == [b"%d" % os.getpid()]
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: state, parent and so on. Empty if they cannot be read."""
    return _stat(f"/proc/{pid}/stat")


def _stat(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            # The name in brackets may hold anything, brackets and blanks too.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def environment(pid: int) -> bytes | None:
    """The variables with which a process was started, each ended by a NUL byte. None when the system does not tell."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return None


def pids() -> list[int]:
    """All processes that are listed. Empty where the system does not tell."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def has_ended(fields: list[bytes]) -> bool:
    """Whether the thread whose `stat` this is has ended. The process has only if all its threads have."""
    return bool(fields) and fields[0] in _ENDED


def is_kernel_thread(fields: list[bytes]) -> bool:
    return bool(int(fields[6]) & _KERNEL_THREAD)


def is_dead_leader(pid: int) -> bool:
    """Whether the process has ended and only its entry is left. False when that cannot be seen."""
    if not has_own_proc() or not has_ended(stat(pid)):
        return False
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    others = [_stat(f"/proc/{pid}/task/{thread}/stat") for thread in threads if thread != str(pid)]
    return all(map(has_ended, others))  # one that ended meanwhile cannot be read: the next look tells
