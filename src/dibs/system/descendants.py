"""Finds all processes of a command by a token in their environment.

A child inherits its parent's environment, even if it leaves the process group, is orphaned, or closes all files. So
when a command's guards are gone, its remaining processes can be found where the system shows environments (Linux).
`none_is_left` is true only if it is proven. A process that began after the command and cannot be examined (it belongs
to another user, or overwrote its environment) may be part of it; then only the TTL frees the job.

A process with a new, readable environment, as made by `env -i`, cannot be found.
"""

from __future__ import annotations

from dibs.system.processes import table

# Names the tokens of all commands that a process is part of: one `dibs run` inside another adds its own.
VARIABLE = "DIBS_GUARDED"
_LISTS_MAX = 100


def with_token(inherited: str | None, token: str) -> str:
    """The value of the variable for a command that has its own token, below others."""
    return f"{inherited} {token}" if inherited else token


def marked(token: str) -> list[int]:
    """The processes that carry the token, as far as they may be examined."""
    return [pid for pid in table().pids() if _carries(pid, token.encode())]


def none_is_left(token: str, since: int) -> bool:
    """Whether surely no process carries the token. `since`: when the first process that could carry it began, in ticks
    since boot. A process may start another one and end before it is examined. The next list then has the other one, so
    lists are made until one has no new process."""
    if not table().shows_all():
        return False
    seen: set[int] = set()
    for _ in range(_LISTS_MAX):
        new = [pid for pid in table().pids() if pid not in seen]
        if not new:
            return bool(seen)
        if any(_may_carry(pid, token.encode(), since) for pid in new):
            return False
        seen.update(new)
    return False


def _carries(pid: int, token: bytes) -> bool:
    return _is_in(token, table().environment(pid) or b"")


def _may_carry(pid: int, token: bytes, since: int) -> bool:
    found = table().entry(pid)
    if found is None:  # it ended since it was listed, or it is hidden
        return table().is_listed(pid)
    if found.is_kernel or int(found.started) < since:
        return False
    environment = table().environment(pid) or b""
    if _is_whole(environment):
        return _is_in(token, environment)
    return not (found.has_ended and table().is_dead(pid)) and table().is_listed(pid)


def _is_whole(environment: bytes) -> bool:
    """Whether the environment is still complete. Some programs write their title over it; a process that is just being
    started has none yet."""
    return environment.endswith(b"\0") and all(b"=" in each for each in environment[:-1].split(b"\0"))


def _is_in(token: bytes, environment: bytes) -> bool:
    start = VARIABLE.encode() + b"="
    return any(
        each.startswith(start) and token in each[len(start) :].split() for each in environment.split(b"\0")
    )
