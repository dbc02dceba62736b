"""Processes as macOS shows them through libproc and sysctl. NOT RUN ON macOS: tested with a stand-in for its library.

The start of a process is recorded once, to the microsecond, so a process with another start is another process. The
kernel shows it only of processes of the same user; others count as alive while their number is taken. There are no PID
namespaces: containers run in virtual machines. Environments of programs that belong to the system are hidden, so the
list is never taken for complete.
"""

from __future__ import annotations

import os
from ctypes import CDLL, byref, c_int, c_size_t, c_uint64, create_string_buffer, sizeof
from typing import Any

from dibs.system.processes import ProcessEntry, ProcessTable

_CTL_KERN = 1
_KERN_PROCARGS2 = 49
_PROC_PIDTBSDINFO = 3
_WITH_ENDED = 1  # include processes that ended and were not collected
_ARGUMENTS_BYTES_MAX = 1024 * 1024  # the kernel's own limit for arguments and environment
_PATH_BYTES_MAX = 4096  # PROC_PIDPATHINFO_MAXSIZE
_PIDS_MAX = 65536
BSDINFO_BYTES = 136
_PROC_PIDT_SHORTBSDINFO = 13
SHORTBSDINFO_BYTES = 64
_ENDED = 5  # SZOMB
# Where the fields of `struct proc_bsdinfo` are.
_STATUS, _PARENT, _SECONDS, _MICROSECONDS = slice(4, 8), slice(16, 20), slice(120, 128), slice(128, 136)
_SHORT_GROUP = slice(8, 12)  # the same in `struct proc_bsdshortinfo`


def loaded() -> MacosProcesses | None:
    """The processes by the C library of this program; None where it has no such functions."""
    library = CDLL(None, use_errno=True)
    names = ("sysctlbyname", "sysctl", "proc_pidinfo", "proc_pidpath", "proc_listallpids")
    return MacosProcesses(library) if all(hasattr(library, name) for name in names) else None


class MacosProcesses(ProcessTable):
    """`library` is macOS's C library (libSystem), or what stands in for it."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def namespace(self) -> str:
        return "macos"

    def has_our_numbers(self) -> bool:
        return True

    def pids(self) -> list[int]:
        buffer = (c_int * _PIDS_MAX)()
        count = self._library.proc_listallpids(buffer, sizeof(buffer))
        return [each for each in buffer[: max(0, count)] if each > 0]

    def entry(self, pid: int) -> ProcessEntry | None:
        """The kernel shows this user's processes only, and to root all of them."""
        info = self._info(pid, _PROC_PIDTBSDINFO, _WITH_ENDED, BSDINFO_BYTES)
        if info is None:
            return None
        started = str(_number(info[_SECONDS]) * 1_000_000 + _number(info[_MICROSECONDS]))
        return ProcessEntry(_number(info[_PARENT]), started, has_ended=_number(info[_STATUS]) == _ENDED)

    def children(self, pid: int) -> list[int]:
        return [each for each in self.pids() if (found := self.entry(each)) is not None and found.parent == pid]

    def group(self, number: int) -> list[int]:
        """The kernel gives the short form for living processes of any user. It has no start time."""
        found = [(pid, self._info(pid, _PROC_PIDT_SHORTBSDINFO, 0, SHORTBSDINFO_BYTES)) for pid in self.pids()]
        return [pid for pid, info in found if info is not None and _number(info[_SHORT_GROUP]) == number]

    def command(self, pid: int) -> tuple[str, bytes] | None:
        buffer = create_string_buffer(_PATH_BYTES_MAX)
        length = self._library.proc_pidpath(pid, buffer, _PATH_BYTES_MAX)
        arguments = self._arguments(pid)
        if not 0 < length <= _PATH_BYTES_MAX or arguments is None:
            return None
        return os.fsdecode(buffer.raw[:length]), parsed_arguments(arguments)[0]

    def environment(self, pid: int) -> bytes | None:
        """None also for an empty one, because the kernel leaves out what it hides."""
        arguments = self._arguments(pid)
        return None if arguments is None else parsed_arguments(arguments)[1] or None

    def _info(self, pid: int, kind: int, argument: int, size: int) -> bytes | None:
        buffer = create_string_buffer(size)
        written = self._library.proc_pidinfo(pid, kind, c_uint64(argument), buffer, size)
        return buffer.raw if written == size else None

    def _arguments(self, pid: int) -> bytes | None:
        """Return how many words, the program, the words, the environment."""
        name = (c_int * 3)(_CTL_KERN, _KERN_PROCARGS2, pid)
        size = c_size_t(_ARGUMENTS_BYTES_MAX)
        buffer = create_string_buffer(size.value)
        if self._library.sysctl(name, 3, buffer, byref(size), None, c_size_t(0)) != 0:
            return None
        return buffer.raw[: size.value]


def parsed_arguments(content: bytes) -> tuple[bytes, bytes]:
    """The words and the variables, each ended by a NUL byte. Before them are the number of words and the path of the
    program, filled up with NUL bytes."""
    count = int.from_bytes(content[:4], "little")
    parts = content[4:].partition(b"\0")[2].lstrip(b"\0").split(b"\0")
    words, after = parts[:count], parts[count:]
    variables = after[: after.index(b"")] if b"" in after else after
    return _joined(words), _joined(variables)


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little")


def _joined(parts: list[bytes]) -> bytes:
    return b"".join([part + b"\0" for part in parts])
