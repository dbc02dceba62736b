"""The only file that reads a clock. Everything else is given the time.

Leases are measured on a clock that counts suspend and that nobody can step: CLOCK_BOOTTIME. Wall time is read once per
boot and store, to anchor it (see the stores), and never again for a decision.
"""

from __future__ import annotations

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
    """Names this boot of this machine: steady time means nothing across two of them."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        # Without it, boots are told apart by when they happened, to the ten minutes: a stepped clock may then cost an
        # anchor, which can only make leases later, never earlier.
        return f"boot-{(wall_ms() - steady_ms()) // 600_000}"
