"""The functions of macOS that dibs calls in its C library (libSystem). NOT RUN ON macOS: tested with a stand-in."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CTL_KERN = 1
_KERN_PROCARGS2 = 49
_PROC_PIDTBSDINFO = 3
_WITH_ENDED = 1  # also tell of a process that ended and was not collected
_ARGUMENTS_BYTES_MAX = 1024 * 1024  # the kernel's own limit for arguments and environment
_PATH_BYTES_MAX = 4096  # PROC_PIDPATHINFO_MAXSIZE
_PIDS_MAX = 65536
BSDINFO_BYTES = 136
_PROC_PIDT_SHORTBSDINFO = 13
SHORTBSDINFO_BYTES = 64


class MacosLibrary:
    """Calls that return what the kernel wrote, or None. `library` is a ctypes library, or what stands in for it."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def system_name(self, name: bytes) -> bytes | None:
        """A text of `sysctl`, such as kern.bootsessionuuid."""
        from ctypes import byref, c_size_t, create_string_buffer

        size = c_size_t(256)
        buffer = create_string_buffer(size.value)
        if self._library.sysctlbyname(name, buffer, byref(size), None, c_size_t(0)) != 0:
            return None
        return buffer.raw[: size.value].partition(b"\0")[0]

    def bsd_info(self, pid: int) -> bytes | None:
        """`struct proc_bsdinfo` of a process. The kernel tells it of this user's processes only, and root of all."""
        return self._info(pid, _PROC_PIDTBSDINFO, _WITH_ENDED, BSDINFO_BYTES)

    def short_info(self, pid: int) -> bytes | None:
        """`struct proc_bsdshortinfo` of a living process of any user. It has no start."""
        return self._info(pid, _PROC_PIDT_SHORTBSDINFO, 0, SHORTBSDINFO_BYTES)

    def _info(self, pid: int, kind: int, argument: int, size: int) -> bytes | None:
        from ctypes import c_uint64, create_string_buffer

        buffer = create_string_buffer(size)
        written = self._library.proc_pidinfo(pid, kind, c_uint64(argument), buffer, size)
        return buffer.raw if written == size else None

    def arguments(self, pid: int) -> bytes | None:
        """How many words, the program, the words, the environment."""
        from ctypes import byref, c_int, c_size_t, create_string_buffer

        name = (c_int * 3)(_CTL_KERN, _KERN_PROCARGS2, pid)
        size = c_size_t(_ARGUMENTS_BYTES_MAX)
        buffer = create_string_buffer(size.value)
        if self._library.sysctl(name, 3, buffer, byref(size), None, c_size_t(0)) != 0:
            return None
        return buffer.raw[: size.value]

    def path(self, pid: int) -> bytes | None:
        from ctypes import create_string_buffer

        buffer = create_string_buffer(_PATH_BYTES_MAX)
        length = self._library.proc_pidpath(pid, buffer, _PATH_BYTES_MAX)
        return buffer.raw[:length] if 0 < length <= _PATH_BYTES_MAX else None

    def pids(self) -> list[int]:
        from ctypes import c_int, sizeof

        buffer = (c_int * _PIDS_MAX)()
        count = self._library.proc_listallpids(buffer, sizeof(buffer))
        return [each for each in buffer[: max(0, count)] if each > 0]


def loaded() -> MacosLibrary | None:
    """The C library of this program; None where it has no such functions."""
    try:
        from ctypes import CDLL

        library = CDLL(None, use_errno=True)
        for name in ("sysctlbyname", "sysctl", "proc_pidinfo", "proc_pidpath", "proc_listallpids"):
            getattr(library, name)
    except (ImportError, AttributeError, OSError):
        return None
    return MacosLibrary(library)
