"""The only file that reads a clock. Everything else is given the time.

Leases are measured on a clock that counts suspend and that nobody can step: CLOCK_BOOTTIME. Wall time is read once per
boot and store, to anchor it (see the stores), and never again for a decision.
"""

from __future__ import annotations

import os
import time

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC_RAW counts suspend. Elsewhere monotonic time is the best there is.
_STEADY_ID: int = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC))


def steady_ms() -> int:
    """Milliseconds since boot, suspend included. The same number for every process of the machine."""
    return time.clock_gettime_ns(_STEADY_ID) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970 by the machine's wall clock, which anybody may step."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Names what steady time is counted from: this boot of this machine, and this time namespace of it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        return _boot_id_elsewhere()
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:  # a kernel without time namespaces
        return boot
    return boot if namespace == _FIRST_TIME_NAMESPACE else f"{boot} {namespace}"


# The one that every process is in unless somebody made another. Fixed in the kernel's headers (PROC_TIME_INIT_INO).
_FIRST_TIME_NAMESPACE = "time:[4026531834]"


def _boot_id_elsewhere() -> str:
    """macOS and others: the system's own name for its boot, or one made of when it happened, to the ten minutes.

    The last is the weakest: a wall clock stepped far while dibs runs looks like a new boot."""
    if hasattr(os, "uname") and os.uname().sysname == "Darwin":
        import subprocess  # only here, and only there

        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        if found.stdout.strip():
            return found.stdout.strip()
    return f"boot-{(wall_ms() - steady_ms()) // 600_000}"
