"""Finds all processes of a command by a token in their environment.

A child inherits its parent's environment, even if it leaves the process group, is orphaned, or closes all files. So
when a command's guards are gone, its remaining processes can be found in /proc. `none_is_left` is true only if it is
proven. A process that began after the command and cannot be examined (it belongs to another user, or overwrote its
environment) may be part of it; then only the TTL frees the job.

A process with a new, readable environment, as made by `env -i`, cannot be found.
"""

from __future__ import annotations

import os

from dibs.proc import has_ended, has_own_proc, is_dead_leader, is_kernel_thread, pids, stat

# Names the tokens of all commands that a process is part of: one `dibs run` inside another adds its own.
VARIABLE = "DIBS_GUARDED"
_LISTS_MAX = 100


def with_token(inherited: str | None, token: str) -> str:
    """The value of the variable for a command that has its own token, below others."""
    return f"{inherited} {token}" if inherited else token


def marked(token: str) -> list[int]:
    """The processes that carry the token, as far as they may be examined."""
    return [pid for pid in pids() if _carries(pid, token.encode())]


def none_is_left(token: str, since: int) -> bool:
    """Whether surely no process carries the token. `since`: when the first process that could carry it began, in ticks
    since boot. A process may start another one and end before it is examined. The next list then has the other one, so
    lists are made until one has no new process."""
    if not has_own_proc() or _hides_processes():
        return False
    seen: set[int] = set()
    for _ in range(_LISTS_MAX):
        new = [pid for pid in pids() if pid not in seen]
        if not new:
            return bool(seen)
        if any(_may_carry(pid, token.encode(), since) for pid in new):
            return False
        seen.update(new)
    return False


def _carries(pid: int, token: bytes) -> bool:
    return _is_in(token, _environment(pid))


def _may_carry(pid: int, token: bytes, since: int) -> bool:
    fields = stat(pid)
    if not fields:  # it ended since it was listed, or it is hidden
        return os.path.isdir(f"/proc/{pid}")
    if is_kernel_thread(fields) or int(fields[19]) < since:
        return False
    environment = _environment(pid)
    if _is_whole(environment):
        return _is_in(token, environment)
    return not (has_ended(fields) and is_dead_leader(pid)) and os.path.isdir(f"/proc/{pid}")


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _is_whole(environment: bytes) -> bool:
    """Whether the environment is still complete. Some programs write their title over it; a process that is just being
    started has none yet."""
    return environment.endswith(b"\0") and all(b"=" in each for each in environment[:-1].split(b"\0"))


def _is_in(token: bytes, environment: bytes) -> bool:
    start = VARIABLE.encode() + b"="
    return any(
        each.startswith(start) and token in each[len(start) :].split() for each in environment.split(b"\0")
    )


def _hides_processes() -> bool:
    """Whether /proc is mounted so that it does not list other users' processes."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            found = [line.split() for line in file if b" /proc " in line]
    except OSError:
        return True
    last = b",".join(found[-1]) if found else b""
    return not found or (
        b"hidepid=" in last and not any(word in last for word in (b"hidepid=0", b"hidepid=off"))
    )
