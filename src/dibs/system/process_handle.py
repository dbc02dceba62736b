"""A file that becomes readable when a process ends. Only Linux has one; elsewhere the process is looked at again."""

from __future__ import annotations

import os

from dibs.system import ways


def process_handle(pid: int) -> int | None:
    """A handle on the process, if the system gives one. None proves nothing."""
    if not ways.IS_LINUX:
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError, OverflowError):
        return None
