"""What macOS tells, with a stand-in for its C library: none of this was run on macOS."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dibs.base.clock import boot_session
from dibs.system.macos_processes import (
    BSDINFO_BYTES,
    SHORTBSDINFO_BYTES,
    MacosProcesses,
    parsed_arguments,
)

ZOMBIE, SLEEPS = 5, 3


def info(pid: int, parent: int, started: tuple[int, int], status: int = SLEEPS) -> bytes:
    """`struct proc_bsdinfo` of <sys/proc_info.h>, written as its declaration reads."""

    class BsdInfo(ctypes.Structure):
        _fields_ = [
            *[(name, ctypes.c_uint32) for name in "flags status xstatus pid ppid".split()],
            *[(name, ctypes.c_uint32) for name in "uid gid ruid rgid svuid svgid rfu_1".split()],
            ("comm", ctypes.c_char * 16),
            ("name", ctypes.c_char * 32),
            *[(name, ctypes.c_uint32) for name in "nfiles pgid pjobc e_tdev e_tpgid".split()],
            ("nice", ctypes.c_int32),
            ("start_tvsec", ctypes.c_uint64),
            ("start_tvusec", ctypes.c_uint64),
        ]

    made = BsdInfo(pid=pid, ppid=parent, status=status, start_tvsec=started[0], start_tvusec=started[1])
    assert ctypes.sizeof(made) == BSDINFO_BYTES
    return bytes(made)


def short_info(pid: int, group: int) -> bytes:
    """`struct proc_bsdshortinfo`, in the same way."""

    class ShortInfo(ctypes.Structure):
        _fields_ = [
            *[(name, ctypes.c_uint32) for name in "pid ppid pgid status".split()],
            ("comm", ctypes.c_char * 16),
            *[(name, ctypes.c_uint32) for name in "flags uid gid ruid rgid svuid svgid rfu".split()],
        ]

    made = ShortInfo(pid=pid, ppid=1, pgid=group, status=SLEEPS, uid=501)
    assert ctypes.sizeof(made) == SHORTBSDINFO_BYTES
    return bytes(made)


class StandIn:
    """libSystem, as far as it is called."""

    def __init__(self) -> None:
        self.processes = {
            1: info(1, 0, (1_700_000_000, 5)),
            70: info(70, 1, (1_700_000_100, 250)),
            71: info(71, 70, (1_700_000_200, 0), ZOMBIE),
        }
        self.groups = {1: 1, 70: 69}
        words = (2).to_bytes(4, "little") + b"/bin/zsh\0\0\0\0-zsh\0-l\0HOME=/h\0A=b=c\0\0junk\0"
        self.arguments = {70: words}

    def proc_pidinfo(self, pid: int, flavor: int, arg: Any, buffer: Any, size: int) -> int:
        if (flavor, arg.value, size) == (13, 0, SHORTBSDINFO_BYTES) and pid in self.groups:
            buffer[:size] = short_info(pid, self.groups[pid])
            return size
        if pid not in self.processes or flavor == 13:
            return 0
        assert (flavor, arg.value, size) == (3, 1, BSDINFO_BYTES)
        buffer[:size] = self.processes[pid]
        return size

    def proc_pidpath(self, pid: int, buffer: Any, size: int) -> int:
        if pid != 70:
            return 0
        buffer[:8] = b"/bin/zsh"
        return 8

    def proc_listallpids(self, buffer: Any, size: int) -> int:
        for place, pid in enumerate(self.processes):
            buffer[place] = pid
        return len(self.processes)

    def sysctl(self, name: Any, words: int, buffer: Any, size: Any, new: None, new_size: Any) -> int:
        assert list(name)[:2] == [1, 49]
        found = self.arguments.get(name[2])
        if found is None:
            return -1
        buffer[: len(found)] = found
        size._obj.value = len(found)
        return 0

    def sysctlbyname(self, name: bytes, buffer: Any, size: Any, new: None, new_size: Any) -> int:
        if name != b"kern.bootsessionuuid":
            return -1
        text = b"0F1E2D3C-0000-4000-8000-ABCDEF012345\0"
        buffer[: len(text)] = text
        size._obj.value = len(text)
        return 0


@pytest.fixture
def seen() -> MacosProcesses:
    return MacosProcesses(StandIn())


def test_a_process_is_known_by_its_parent_and_its_start_to_the_microsecond(seen: MacosProcesses) -> None:
    found = seen.entry(70)
    assert found is not None
    assert (found.parent, found.started, found.has_ended) == (1, "1700000100000250", False)
    assert seen.entry(72) is None
    assert seen.pids() == [1, 70, 71]
    assert seen.children(1) == [70]


def test_a_process_that_nobody_collected_has_ended(seen: MacosProcesses) -> None:
    assert seen.is_dead(71)
    assert not seen.is_dead(70)
    assert not seen.is_dead(72)  # who is not seen is not proven dead


def test_program_words_and_environment_are_told_apart(seen: MacosProcesses) -> None:
    assert seen.command(70) == ("/bin/zsh", b"-zsh\0-l\0")
    assert seen.environment(70) == b"HOME=/h\0A=b=c\0"
    assert seen.command(71) is None
    assert seen.environment(71) is None


def test_a_hidden_environment_is_not_an_empty_one() -> None:
    assert parsed_arguments((1).to_bytes(4, "little") + b"/bin/sh\0\0sh\0") == (b"sh\0", b"")
    hidden = StandIn()
    hidden.arguments[70] = (1).to_bytes(4, "little") + b"/bin/sh\0\0sh\0\0"
    assert MacosProcesses(hidden).environment(70) is None


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff\xff\xff\xff", b"\1\0\0\0/bin/sh"])
def test_arguments_that_are_cut_off_are_read_without_an_error(content: bytes) -> None:
    words, variables = parsed_arguments(content)
    assert variables == b"" or words == b""


def test_not_all_is_shown_so_no_command_is_proven_gone(seen: MacosProcesses) -> None:
    assert not seen.shows_all()


def test_the_boot_is_named_by_the_system() -> None:
    assert boot_session(StandIn()) == "0F1E2D3C-0000-4000-8000-ABCDEF012345"


def test_the_living_processes_of_a_group_are_found_also_of_other_users() -> None:
    assert MacosProcesses(StandIn()).group(69) == [70]
    assert MacosProcesses(StandIn()).group(71) == []
