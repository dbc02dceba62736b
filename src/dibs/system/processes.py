"""The processes of this system: what it shows of them, and a handle on one. `ProcessTable` shows nothing, and so proves
nothing. Linux, macOS and `ps` know more, each as far as its system does.
"""

from __future__ import annotations

import os

from dibs.base import platforms
from dibs.base.files import content

# A file that becomes readable when a process ends. Only Linux has one; elsewhere the process is looked at again.


def process_handle(pid: int) -> int | None:
    """A handle on the process, if the system gives one. None proves nothing."""
    if not platforms.IS_LINUX:
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError, OverflowError):
        return None


def let_go_of_files(*kept: int | None) -> None:
    """Close all files but these; standard input, output and errors are nothing from then on."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    ends = sorted([number for number in kept if number is not None])
    for low, high in zip((2, *ends), (*ends, 65536), strict=True):
        os.closerange(low + 1, high)


# Begins a start time that is too coarse, or too dependent on the wall clock, to prove that a process is another one.
ABOUT = "~"


class ProcessEntry:
    """One process. `started` is written as the system tells it; the same process always has the same."""

    __slots__ = ("has_ended", "is_kernel", "parent", "started")

    def __init__(self, parent: int, started: str, *, has_ended: bool = False, is_kernel: bool = False) -> None:
        self.parent = parent
        self.started = started
        self.has_ended = has_ended
        self.is_kernel = is_kernel


class ProcessTable:
    """The table of a system that shows nothing."""

    def namespace(self) -> str:
        """Names the set of processes in which a number means one process. Empty where that is not known."""
        return ""

    def has_our_numbers(self) -> bool:
        """Return whether the numbers in this table are those that this process uses."""
        return False

    def shows_all(self) -> bool:
        """Return whether the list is complete, and the environment of every process of this user can be read."""
        return False

    def pids(self) -> list[int]:
        return []

    def entry(self, pid: int) -> ProcessEntry | None:
        """None if there is no such process, or if it cannot be seen."""
        return None

    def is_listed(self, pid: int) -> bool:
        return self.entry(pid) is not None

    def is_dead(self, pid: int) -> bool:
        """Return whether the process has ended and only its entry is left. False when that cannot be seen."""
        found = self.entry(pid)
        return found is not None and found.has_ended

    def children(self, pid: int) -> list[int]:
        """Empty if the process is gone, or if they cannot be seen."""
        return []

    def group(self, number: int) -> list[int]:
        """The living processes of a process group, of all users. Empty if they cannot be seen."""
        return []

    def command(self, pid: int) -> tuple[str, bytes] | None:
        """The path of the program, and its words."""
        return None

    def environment(self, pid: int) -> bytes | None:
        """The variables with which a process was started, each ended by a NUL byte; None if the system does not show
        them."""
        return None


# Processes as Linux shows them in /proc.

_ENDED = (b"Z", b"X", b"x")
_KERNEL_THREAD = 0x0020_0000
_STATE, _PARENT, _GROUP, _FLAGS, _STARTED = 0, 1, 2, 6, 19


class LinuxProcesses(ProcessTable):
    """A process began `started` ticks after the boot."""

    def namespace(self) -> str:
        try:
            return os.readlink("/proc/self/ns/pid").strip("pid:[]")
        except OSError:
            return ""

    def has_our_numbers(self) -> bool:
        """Not in a PID namespace with the outer /proc: there our entry lists a number for each namespace up to ours."""
        try:
            with open("/proc/self/status", "rb") as file:
                for line in file:
                    if line.startswith(b"NSpid:"):
                        return line.split()[1:] == [b"%d" % os.getpid()]
            return os.readlink("/proc/self") == str(os.getpid())
        except OSError:
            return False

    def shows_all(self) -> bool:
        return self.has_our_numbers() and not _hides_processes()

    def pids(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        except OSError:
            return []

    def entry(self, pid: int) -> ProcessEntry | None:
        """Has ended: its first thread has. The process has only if all its threads have."""
        fields = _stat(f"/proc/{pid}/stat")
        if not fields:
            return None
        return ProcessEntry(
            int(fields[_PARENT]),
            fields[_STARTED].decode(),
            has_ended=fields[_STATE] in _ENDED,
            is_kernel=bool(int(fields[_FLAGS]) & _KERNEL_THREAD),
        )

    def is_listed(self, pid: int) -> bool:
        return os.path.isdir(f"/proc/{pid}")

    def is_dead(self, pid: int) -> bool:
        if not self.has_our_numbers():
            return False
        found = self.entry(pid)
        if found is None or not found.has_ended:
            return False
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return False
        others = [_stat(f"/proc/{pid}/task/{thread}/stat") for thread in threads if thread != str(pid)]
        # A thread that ended meanwhile cannot be read. Then the process counts as alive until the next look.
        return all(each and each[_STATE] in _ENDED for each in others)

    def children(self, pid: int) -> list[int]:
        """The children of all threads."""
        found: list[int] = []
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                    found += [int(word) for word in file.readall().split()]
        except FileNotFoundError:
            return self._children_by_parent(pid) if self.is_listed(pid) else []
        except OSError:
            return []
        return found

    def _children_by_parent(self, pid: int) -> list[int]:
        """The same for kernels without a list of children: looks at the parent of every process."""
        wanted = str(pid).encode()
        return [each for each in self.pids() if _stat(f"/proc/{each}/stat")[1:2] == [wanted]]

    def group(self, number: int) -> list[int]:
        found = [(pid, _stat(f"/proc/{pid}/stat")) for pid in self.pids()]
        return [pid for pid, each in found if each and int(each[_GROUP]) == number and each[_STATE] not in _ENDED]

    def command(self, pid: int) -> tuple[str, bytes] | None:
        words = content(f"/proc/{pid}/cmdline")
        try:
            program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        except OSError:
            return None
        return None if words is None else (program, words)

    def environment(self, pid: int) -> bytes | None:
        return content(f"/proc/{pid}/environ")


def _stat(path: str) -> list[bytes]:
    """The fields after the name: state, parent and so on. Empty if they cannot be read."""
    # The name in brackets may hold anything, brackets and blanks too.
    return (content(path) or b"").rpartition(b")")[2].split()


def _hides_processes() -> bool:
    """Return whether /proc is mounted so that it does not list other users' processes."""
    lines = (content("/proc/self/mountinfo") or b"").splitlines()
    found = [line.split() for line in lines if b" /proc " in line]
    last = b",".join(found[-1]) if found else b""
    return not found or (b"hidepid=" in last and not any(word in last for word in (b"hidepid=0", b"hidepid=off")))
