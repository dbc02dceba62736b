"""What the operating system says about this process. A number that it does not say is None."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple


class ProcessNumbers(NamedTuple):
    cpu_s: float
    resident_bytes: int | None
    open_files: int | None
    files_max: int | None


def process_numbers() -> ProcessNumbers:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessNumbers(
        cpu_s=usage.ru_utime + usage.ru_stime,
        resident_bytes=_resident_bytes(),
        open_files=_open_files(),
        files_max=None if files_max == resource.RLIM_INFINITY else files_max,
    )


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    """Linux 6.2 and later give the number as the size of the folder. Reading the folder takes as long as there are
    files."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None
