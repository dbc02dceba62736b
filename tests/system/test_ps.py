"""Processes as `ps` shows them, which really runs here."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from dibs.system.processes import ABOUT, LinuxProcesses, ProcessTable
from dibs.system.ps_processes import PsProcesses, parsed_entry
from tests.programs import wait_until


def test_ps_and_proc_say_the_same() -> None:
    seen, known = PsProcesses(), LinuxProcesses()
    with subprocess.Popen(["sh", "-c", "read x; exit"], stdin=subprocess.PIPE) as child:
        one, other = seen.entry(child.pid), known.entry(child.pid)
        assert one is not None
        assert other is not None
        assert one.parent == other.parent == os.getpid()
        assert not one.has_ended
        assert child.pid in seen.pids()
        assert sorted(seen.children(os.getpid())) == sorted(known.children(os.getpid()))
        command = seen.command(child.pid)
        assert command is not None
        assert command[0] == "sh"
        child.communicate()
    assert seen.entry(child.pid) is None
    assert seen.command(child.pid) is None
    assert not seen.is_dead(child.pid)


def test_a_child_that_was_not_collected_is_dead() -> None:
    child = subprocess.Popen(["true"])
    wait_until(lambda: PsProcesses().is_dead(child.pid), "it has ended")
    child.wait()


def test_a_process_has_the_same_start_at_every_look_and_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = PsProcesses().entry(os.getpid())
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    again = PsProcesses().entry(os.getpid())
    assert first is not None
    assert again is not None
    assert first.started == again.started
    assert first.started.startswith(ABOUT + "20")


def test_a_line_of_ps_is_read_or_nothing_is_known() -> None:
    found = parsed_entry(b"    1 Ss+  Mon Nov  9 05:06:07 2026\n")
    assert found is not None
    assert (found.parent, found.started, found.has_ended) == (1, "~20261109050607", False)
    ended = parsed_entry(b"7 Z Mon Nov  9 05:06:07 2026")
    assert ended is not None
    assert ended.has_ended
    half = parsed_entry(b"7 Zl Mon Nov  9 05:06:07 2026")  # other threads live
    assert half is not None
    assert not half.has_ended
    for line in (b"", b"x", b"1 S 05:06", b"1 S Mon Foo 9 05:06:07 2026", b"- S Mon Nov 9 05:06:07 2026"):
        assert parsed_entry(line) is None


def test_without_ps_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.system.ps_processes._PROGRAM", "/nonexistent/ps")
    seen = PsProcesses()
    assert (seen.entry(1), seen.pids(), seen.children(1), seen.command(1)) == (None, [], [], None)


def test_a_system_that_shows_nothing_proves_nothing() -> None:
    seen = ProcessTable()
    assert seen.namespace() == ""
    assert (seen.entry(1), seen.pids(), seen.children(1), seen.command(1)) == (None, [], [], None)
    assert not any((seen.has_our_numbers(), seen.shows_all(), seen.is_listed(1), seen.is_dead(1)))
    assert seen.environment(1) is None


@pytest.mark.parametrize("seen", [PsProcesses(), LinuxProcesses()])
def test_a_group_has_its_living_processes(seen: ProcessTable) -> None:
    words = ["sh", "-c", "sleep 600 & true & echo $!; read x"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = seen.group(child.pid)
        assert child.pid in found
        assert len(found) >= 2
        assert os.getpid() not in found
        os.killpg(child.pid, signal.SIGKILL)
    wait_until(lambda: seen.group(child.pid) == [], "all of the group have ended")
