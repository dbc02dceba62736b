"""Finds all descendants of a process, even those that left its process group.

On Linux a process can adopt the orphans below it (a "child subreaper"). Then all its descendants stay below it,
however often they fork, and can be found by walking from parent to children. Other systems have no such thing: there,
processes that left the process group cannot be found.
"""

from __future__ import annotations

import os

from dibs.system import ways
from dibs.system.processes import table

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = 9
_SIGCONT = 18
_RTLD_NOW = 2


def adopt_orphans() -> bool:
    """From now on, orphans among our descendants become our children. False if the system does not support it."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """In a child: be killed when `parent`, which forked it, ends. Does nothing if the system does not support it."""
    if _prctl(_PR_SET_PDEATHSIG, _SIGKILL) and os.getppid() != parent:
        os._exit(128 + _SIGKILL)  # it ended before this call


def wake_with_parent() -> None:
    """If this process is paused when its parent ends, continue it. Does nothing if the system does not support it."""
    _prctl(_PR_SET_PDEATHSIG, _SIGCONT)


def _prctl(option: int, value: int) -> bool:
    if not ways.IS_LINUX:
        return False
    words = (option, value, 0, 0, 0)
    try:
        # Only the C part of ctypes: importing the rest takes as long as claiming a job.
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


def descendants(pid: int) -> list[int]:
    """All descendants, parents first. Processes that fork meanwhile may be missing, so call it again."""
    children = table().children
    found = children(pid)
    for each in found:
        found += children(each)  # the list grows during the loop
    return found
