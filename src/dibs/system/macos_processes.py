"""Processes as macOS shows them through libproc and sysctl. NOT RUN ON macOS: tested with a stand-in.

The start of a process is recorded once, to the microsecond, so a process with another start is another process. The
kernel tells it of processes of the same user only; others count as alive while their number is taken. There
are no PID namespaces: containers run in virtual machines. Environments of programs that belong to the system are
hidden, so the list is never taken for complete.
"""

from __future__ import annotations

import os

from dibs.system.process_table import ProcessEntry, ProcessTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.system.macos_library import MacosLibrary

_ENDED = 5  # SZOMB
# Where the fields of `struct proc_bsdinfo` are.
_STATUS, _PARENT, _SECONDS, _MICROSECONDS = slice(4, 8), slice(16, 20), slice(120, 128), slice(128, 136)
_SHORT_GROUP = slice(8, 12)  # the same in `struct proc_bsdshortinfo`


class MacosProcesses(ProcessTable):
    def __init__(self, library: MacosLibrary) -> None:
        self._library = library

    def namespace(self) -> str:
        return "macos"

    def has_our_numbers(self) -> bool:
        return True

    def pids(self) -> list[int]:
        return self._library.pids()

    def entry(self, pid: int) -> ProcessEntry | None:
        info = self._library.bsd_info(pid)
        return None if info is None else parsed_info(info)

    def is_dead(self, pid: int) -> bool:
        found = self.entry(pid)
        return found is not None and found.has_ended

    def children(self, pid: int) -> list[int]:
        return [
            each for each in self.pids() if (found := self.entry(each)) is not None and found.parent == pid
        ]

    def group(self, number: int) -> list[int]:
        found = [(pid, self._library.short_info(pid)) for pid in self.pids()]
        return [pid for pid, info in found if info is not None and _number(info[_SHORT_GROUP]) == number]

    def command(self, pid: int) -> tuple[str, bytes] | None:
        path, arguments = self._library.path(pid), self._library.arguments(pid)
        if path is None or arguments is None:
            return None
        return os.fsdecode(path), parsed_arguments(arguments)[0]

    def environment(self, pid: int) -> bytes | None:
        """None also for an empty one, because the kernel leaves out what it hides."""
        arguments = self._library.arguments(pid)
        return None if arguments is None else parsed_arguments(arguments)[1] or None


def parsed_info(info: bytes) -> ProcessEntry:
    started = str(_number(info[_SECONDS]) * 1_000_000 + _number(info[_MICROSECONDS]))
    return ProcessEntry(_number(info[_PARENT]), started, has_ended=_number(info[_STATUS]) == _ENDED)


def parsed_arguments(content: bytes) -> tuple[bytes, bytes]:
    """The words and the variables, each ended by a NUL byte. Before them are the number of words and the path of the
    program, filled up with NUL bytes."""
    count = int.from_bytes(content[:4], "little")
    rest = content[4:].partition(b"\0")[2].lstrip(b"\0")
    parts = rest.split(b"\0")
    words, after = parts[:count], parts[count:]
    variables = after[: after.index(b"")] if b"" in after else after
    return _joined(words), _joined(variables)


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little")


def _joined(parts: list[bytes]) -> bytes:
    return b"".join([part + b"\0" for part in parts])
