"""The only file that reads a clock. Everything else is given the time.

Leases are measured on a clock that counts suspend and that nobody can step: CLOCK_BOOTTIME. Wall time is read once per
boot and store, to anchor it (see the stores), and never again for a decision.
"""

from __future__ import annotations

import os
import time

from dibs.base import platforms
from dibs.base.cheap import Any

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC_RAW counts suspend (CLOCK_UPTIME_RAW does not, nor does Python's
# time.monotonic there). Elsewhere monotonic time is the best there is.
_STEADY_ID: int = (
    time.CLOCK_BOOTTIME if platforms.IS_LINUX else getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
)

# How far this process's steady clock is ahead of the machine's: one number, once it was looked at.
_zero_ns: list[int] = []


def steady_ms() -> int:
    """Milliseconds since boot, suspend included. The same number for every process of the machine, also for one in a
    time namespace, whose CLOCK_BOOTTIME is ahead or behind by what the kernel says."""
    zero_ns = _zero_ns[0] if _zero_ns else _find_zero()
    return (time.clock_gettime_ns(_STEADY_ID) - zero_ns) // 1_000_000


def stopwatch_us() -> int:
    """Microseconds since some moment. For how long a call took, and for nothing else."""
    return time.perf_counter_ns() // 1_000


stopwatch_s = time.perf_counter  # seconds since some moment, for the same purpose; an alias, because it is called often


def wall_ms() -> int:
    """Milliseconds since 1970 by the machine's wall clock, which anybody may step."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Names what steady time is counted from: this boot of this machine. Where the kernel does not say how far a time
    namespace is off, it is a clock of its own."""
    if not platforms.IS_LINUX:
        return _boot_id_elsewhere()
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        return _boot_by_wall_clock()
    namespace = _time_namespace()
    return boot if namespace is None or _offset_ns(namespace) is not None else f"{boot} {namespace}"


# The one that every process is in unless somebody made another. Fixed in the kernel's headers (PROC_TIME_INIT_INO).
_FIRST_TIME_NAMESPACE = "time:[4026531834]"


def _find_zero() -> int:
    namespace = _time_namespace() if platforms.IS_LINUX else None
    zero_ns = (_offset_ns(namespace) or 0) if namespace is not None else 0
    _zero_ns[:] = [zero_ns]
    return zero_ns


def _time_namespace() -> str | None:
    """The time namespace this process is in; None for the first one, and where there are none."""
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        # A kernel without time namespaces; or a /proc of another PID namespace, in which this process is not.
        return None if os.path.exists("/proc/self") or not os.path.exists("/proc/stat") else "unseen"
    return None if namespace == _FIRST_TIME_NAMESPACE else namespace


def _offset_ns(namespace: str) -> int | None:
    """Return how far CLOCK_BOOTTIME of our time namespace is ahead of the machine's; None: it cannot be known."""
    try:
        if os.readlink("/proc/self/ns/time_for_children") != namespace:
            return None  # what follows would be about the children
        with open("/proc/self/timens_offsets") as file:
            for line in file:
                name, seconds, nanoseconds = line.split()
                if name in ("boottime", "7"):
                    return int(seconds) * 1_000_000_000 + int(nanoseconds)
    except (OSError, ValueError):
        pass
    return None


os.register_at_fork(after_in_child=_zero_ns.clear)  # a child may begin in another time namespace


_BOOT_ERROR_MS = 600_000
_elsewhere: list[str] = []  # one id, once it was looked at


def _boot_id_elsewhere() -> str:
    """macOS: the system's own name for its boot. It does not change while the system runs, unlike `kern.boottime`,
    which moves with every correction of the wall clock."""
    if not _elsewhere:
        session = ""
        if platforms.IS_MACOS:
            from ctypes import CDLL

            session = boot_session(CDLL(None, use_errno=True))
        _elsewhere.append(session or _boot_by_wall_clock())
    return _elsewhere[0]


def boot_session(library: Any) -> str:
    """Read macOS's name for its boot; empty if it has none. `library` is its C library, or what stands in for it."""
    from ctypes import byref, c_size_t, create_string_buffer

    size = c_size_t(256)
    buffer = create_string_buffer(size.value)
    failed = library.sysctlbyname(b"kern.bootsessionuuid", buffer, byref(size), None, c_size_t(0))
    return "" if failed else buffer.value.decode("ascii", "replace").strip()


def _boot_by_wall_clock() -> str:
    """Other systems: when it happened, to the ten minutes. A wall clock that is stepped far looks like a new boot. Then
    no process is proven to be gone, and leases end by their TTL."""
    return f"boot-{(wall_ms() - steady_ms()) // _BOOT_ERROR_MS}"
