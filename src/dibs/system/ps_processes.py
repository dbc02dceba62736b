"""Processes as the program `ps` shows them, with options that Linux, macOS and the BSDs share.

It shows start times to the second, and some systems compute them from the wall clock. So a start time may tell two
shells apart, but it never proves that a process is gone: a number that came again counts as the same process. It shows
no environments. Each look runs a program, which takes about 10 ms.
"""

from __future__ import annotations

import os

from dibs.base.errors import StoreUnavailable
from dibs.base.git_program import LOCAL_MS_MAX, run_program
from dibs.system.processes import ABOUT, ProcessEntry, ProcessTable

_PROGRAM = "/bin/ps"
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC0"}
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_DATE_WORDS = 5  # Sun Nov 15 15:46:35 2026


class PsProcesses(ProcessTable):
    """Of all processes of the machine: systems that use this have no PID namespaces."""

    def namespace(self) -> str:
        return "ps"

    def has_our_numbers(self) -> bool:
        return True

    def pids(self) -> list[int]:
        own, shown = _run("-A", "-o", "pid=")
        return [int(word) for word in shown.split() if int(word) != own]

    def entry(self, pid: int) -> ProcessEntry | None:
        return parsed_entry(_run("-o", "ppid=", "-o", "stat=", "-o", "lstart=", "-p", str(pid))[1])

    def children(self, pid: int) -> list[int]:
        own, shown = _run("-A", "-o", "pid=", "-o", "ppid=")
        pairs = [line.split() for line in shown.splitlines()]
        return [int(pair[0]) for pair in pairs if pair[1:] == [b"%d" % pid] and int(pair[0]) != own]

    def group(self, number: int) -> list[int]:
        shown = _run("-A", "-o", "pid=", "-o", "pgid=", "-o", "stat=")[1]
        rows = [line.split() for line in shown.splitlines()]
        return [int(row[0]) for row in rows if row[1:2] == [b"%d" % number] and row[2][:1] != b"Z"]

    def command(self, pid: int) -> tuple[str, bytes] | None:
        """The words are joined by blanks. A program whose path has a blank is not recognised."""
        words = _run("-ww", "-o", "args=", "-p", str(pid))[1].strip()
        if not words:
            return None
        first = words.split(None, 1)[0]
        return os.fsdecode(first.removeprefix(b"-")), words  # a login shell begins with a dash


def parsed_entry(line: bytes) -> ProcessEntry | None:
    """Parent, state and start of one process; None if the line has another form."""
    words = line.split()
    if len(words) != 2 + _DATE_WORDS or not words[0].isdigit():
        return None
    _, month, day, clock, year = words[2:]
    if month not in _MONTHS:
        return None
    date = b"%b%02d%b%b" % (year, _MONTHS.index(month) + 1, day.rjust(2, b"0"), clock.replace(b":", b""))
    # On Linux, `l` tells that more threads live than the one that ended.
    has_ended = words[1][:1] == b"Z" and b"l" not in words[1]
    return ProcessEntry(int(words[0]), ABOUT + date.decode("ascii", "replace"), has_ended=has_ended)


def _run(*words: str) -> tuple[int, bytes]:
    """The number of the process that ran ps, which lists itself, and what it printed: nothing if it cannot be run."""
    try:
        ran = run_program([_PROGRAM, *words], env=_ENVIRONMENT, given=b"", timeout_ms=LOCAL_MS_MAX)
    except StoreUnavailable:
        return 0, b""
    return ran.pid, ran.out
