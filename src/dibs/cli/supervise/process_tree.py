"""Everything that a process started, also what left its process group: how it is found, and kept findable.

On Linux a process can be made the one that orphans fall to (a "child subreaper"), so that whatever was started below it
stays below it, however often it forks, and can be found by walking from parent to children. Elsewhere there is no such
thing: what left the process group is out of sight there.
"""

from __future__ import annotations

import os

from dibs import proc

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = 9
_SIGCONT = 18
_RTLD_NOW = 2


def adopt_orphans() -> bool:
    """From now on orphans among our descendants become our children. False where the system has no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """In a child: be killed when `parent`, which forked it, ends. Does nothing where there is no such thing."""
    if _prctl(_PR_SET_PDEATHSIG, _SIGKILL) and os.getppid() != parent:
        os._exit(128 + _SIGKILL)  # it ended before we could say so


def wake_with_parent() -> None:
    """Be continued, should we be paused, when our parent ends. Does nothing where there is no such thing."""
    _prctl(_PR_SET_PDEATHSIG, _SIGCONT)


def _prctl(option: int, value: int) -> bool:
    words = (option, value, 0, 0, 0)
    try:
        # The C part of ctypes alone: importing the rest of it takes as long as claiming a job.
        from _ctypes import call_function, dlopen, dlsym

        program = dlopen(None, _RTLD_NOW)  # type: ignore[arg-type]  # None is this program; typeshed has names only
        return bool(call_function(dlsym(program, "prctl"), words) == 0)
    except (ImportError, AttributeError):
        pass
    except OSError:  # no such function: not Linux
        return False
    try:
        from ctypes import CDLL

        return bool(CDLL(None).prctl(*words) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def children(pid: int) -> list[int]:
    """The children of a process, those of all its threads. Empty too when it is gone, or nobody can tell."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += [int(word) for word in file.readall().split()]
    except FileNotFoundError:
        return _children_by_parent(pid) if os.path.isdir(f"/proc/{pid}") else []
    except OSError:
        return []
    return found


def _children_by_parent(pid: int) -> list[int]:
    """The same for kernels without the list of children: every process is asked for its parent."""
    wanted = str(pid).encode()
    return [each for each in proc.pids() if proc.stat(each)[1:2] == [wanted]]


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on, parents first. Those who fork meanwhile may be missing: look again."""
    found = children(pid)
    for each in found:
        found += children(each)  # grows while it is walked, which is how it gets to the end
    return found
