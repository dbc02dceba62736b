"""Marks by which another process on the same machine may see that the worker of a session has ended.

A mark identifies one process permanently: the boot, the PID namespace (containers on one machine share only the boot),
the pid, and the start time, because pids are reused. The start time is left out if it cannot be read.

Dead means certainly dead. `is_gone` is true only if it is proven; a process that cannot be seen counts as alive. A
proof is one of: no process has that number in our own PID namespace; the one that has it began at another time; or it
has ended and its parent has not collected it yet. A process whose first thread ended while others work is alive.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Mapping, Sequence
from dibs.base.clock import boot_id
from dibs.system import table
from dibs.system.processes import ABOUT, process_handle

# Finds all processes of a command by a token in their environment.
#
# A child inherits its parent's environment, even if it leaves the process group, is orphaned, or closes all files. So
# when a command's guards are gone, its remaining processes can be found where the system shows environments (Linux).
# `none_is_left` is true only if it is proven. A process that began after the command and cannot be examined (it belongs
# to another user, or overwrote its environment) may be part of it; then only the TTL frees the job.
#
# A process with a new, readable environment, as made by `env -i`, cannot be found.

# Names the tokens of all commands that a process is part of: one `dibs run` inside another adds its own.
VARIABLE = "DIBS_GUARDED"
_LISTS_MAX = 100


def guarded_env(env: Mapping[str, str], token: str) -> dict[str, str]:
    """The variable by which all processes of a command can be found: its own token, below those of others."""
    inherited = env.get(VARIABLE)
    return {VARIABLE: f"{inherited} {token}" if inherited else token}


def marked(token: str) -> list[int]:
    """The processes that carry the token, as far as they may be examined."""
    return [pid for pid in table().pids() if _is_in(token.encode(), table().environment(pid) or b"")]


def none_is_left(token: str, since: int) -> bool:
    """Return whether surely no process carries the token. `since`: when the first process that could carry it began, in
    ticks since boot. A process may start another one and end before it is examined. The next list then has the other
    one, so lists are made until one has no new process."""
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


def _may_carry(pid: int, token: bytes, since: int) -> bool:
    found = table().entry(pid)
    if found is None:  # it ended since it was listed, or it is hidden
        return table().is_listed(pid)
    if found.is_kernel or int(found.started) < since:
        return False
    environment = table().environment(pid) or b""
    # Programs may write over it; one that starts has none yet.
    is_whole = environment.endswith(b"\0") and all(b"=" in each for each in environment[:-1].split(b"\0"))
    if is_whole:
        return _is_in(token, environment)
    return not (found.has_ended and table().is_dead(pid)) and table().is_listed(pid)


def _is_in(token: bytes, environment: bytes) -> bool:
    start = VARIABLE.encode() + b"="
    return any(each.startswith(start) and token in each[len(start) :].split() for each in environment.split(b"\0"))


_GENERATIONS_MAX = 64
# Begins the mark of a command with guards. No boot has this name.
_GUARDED = "guarded"


def process_mark(pid: int) -> str | None:
    """The mark of a process, or None if there is no such process or it cannot be identified."""
    namespace = table().namespace()
    if not namespace or pid <= 0 or _number_is_free(pid):
        return None
    return f"{boot_id()}:{namespace}:{pid}:{_started(pid)}"


def guarded_mark(token: str, pids: Sequence[int]) -> str | None:
    """The mark of a command: of the processes that guard it, and of everything that has `token` in its environment
    (`VARIABLE`). It is gone when all of these have ended."""
    marks = [process_mark(pid) for pid in pids]
    if None in marks or not token.isalnum():
        return None
    where = f"{boot_id()}:{table().namespace()}"
    return f"{_GUARDED}:{token}:{where}:" + ",".join([str(mark).removeprefix(f"{where}:") for mark in marks])


def is_gone(mark: str | None) -> bool:
    """Return whether the process of the mark, of this boot and namespace, has certainly ended."""
    if mark is None:
        return False
    if mark.startswith(f"{_GUARDED}:"):
        return _is_guarded_gone(mark)
    boot, _, rest = mark.partition(":")
    namespace, _, rest = rest.partition(":")
    return _is_here(boot, namespace) and _is_process_gone(rest)


def _is_guarded_gone(mark: str) -> bool:
    _, token, boot, namespace, rest = [*mark.split(":", 4), "", "", "", ""][:5]
    guards = rest.split(",")
    if not (_is_here(boot, namespace) and token.isalnum() and all(map(_is_process_gone, guards))):
        return False
    starts = [guard.partition(":")[2] for guard in guards]
    # When the first of them began; 0 if that is not known.
    return none_is_left(token, min([int(start) if start.isdecimal() else 0 for start in starts]))


def _is_here(boot: str, namespace: str) -> bool:
    return boot == boot_id() and namespace != "" and namespace == table().namespace()


def _is_process_gone(number_and_start: str) -> bool:
    number, _, started = number_and_start.partition(":")
    if not (number.isascii() and number.isdecimal() and 0 < len(number) < 11 and int(number) > 0):
        return False
    pid = int(number)
    if _number_is_free(pid):
        return True
    if not started or started.startswith(ABOUT):
        return False
    found = _started(pid)
    return bool(found) and found != started


def _number_is_free(pid: int) -> bool:
    """Return whether surely no living process has this number. Uses a process handle, which covers all threads and
    needs no permission, or else signals and the table of processes."""
    handle = process_handle(pid)
    if handle is None:
        return not takes_signals(pid) or table().is_dead(pid)
    try:
        import select

        return bool(select.select([handle], [], [], 0)[0])  # readable once all its threads have ended
    except (OSError, ValueError):  # more files than select can handle
        return table().is_dead(pid)
    finally:
        os.close(handle)


def takes_signals(pid: int) -> bool:
    """False only if there is no such process. A process that we may not signal exists."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def lineage(pid: int) -> list[str]:
    """The marks of a process and its ancestors, nearest first. Empty if the system shows only processes of another
    namespace. Process 1 does not count as an ancestor, because every process descends from it."""
    before = f"{boot_id()}:{table().namespace()}:"
    marks: list[str] = []
    while pid > (1 if marks else 0) and len(marks) < _GENERATIONS_MAX and table().has_our_numbers():
        found = table().entry(pid)
        if found is None:
            break
        marks.append(f"{before}{pid}:{found.started}")
        pid = found.parent
    return marks


def _started(pid: int) -> str:
    """Return when a process started, as the system tells it. Empty if that cannot be read."""
    found = table().entry(pid) if table().has_our_numbers() else None
    return "" if found is None else found.started
