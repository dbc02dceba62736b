"""The guardian's own judgement, without the processes around it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.supervise import guardian as guardians
from dibs.cli.supervise import survivors
from dibs.cli.supervise.guardian import Guardian
from tests.programs import clean_env, dibs_here, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.full

PR_GET_CHILD_SUBREAPER = 37


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    ends = (*os.pipe(), *os.pipe())
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.promise("loss:told")
def test_a_command_that_ends_the_moment_it_is_looked_at_has_ended_and_was_not_lost(
    pipes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing, _, said, telling = pipes
    command = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, command.pid, ended), "the command has ended")
    guardian = Guardian(hearing, telling, ["sh"], kill_after_ms=0, leaves_children=False, terminal=None)
    guardian._pid = command.pid
    guardian._adopts = True
    real, too_early = os.waitid, [True]

    def waitid(kind: int, pid: int, options: int) -> Any:
        return None if options & os.WEXITED and too_early and too_early.pop() else real(kind, pid, options)

    monkeypatch.setattr(os, "waitid", waitid)
    assert guardian._has_ended() is False
    assert guardian._has_ended() is True
    assert os.read(said, 100) == b"E 7\n"
    command.wait()
    for end in (guardian._waking, guardian._waker):
        os.close(end)


INTERRUPTED = """
import os, signal, sys
from dibs.cli.supervise.child import Child
from tests.programs import wait_until
def is_in_state(pid, state):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return state in file.read()
reading, writing = os.pipe()
os.set_inheritable(writing, True)
script = f"trap 'exit 0' TERM; echo $$ >&{writing}; while :; do sleep 0.05; done"
child = Child(["/bin/sh", "-c", script if sys.argv[1] == "during" else "exit 0"], kill_after_ms=0)
child.start(os.environ, 1 << 60)
if sys.argv[1] == "during":  # the command gets the signal first, and has ended before the guardian passes on another
    command = int(os.read(reading, 16))
    os.kill(child.guardian_pid, signal.SIGSTOP)
    wait_until(lambda: is_in_state(child.guardian_pid, b" T "), "the guardian is paused")
    os.kill(command, signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: is_in_state(command, b" Z "), "the command has ended")
    os.kill(child.guardian_pid, signal.SIGCONT)
child.wait(lambda: 1000)
if sys.argv[1] == "after":
    os.kill(os.getpid(), signal.SIGTERM)
print(child.code, child.was_interrupted)
"""


@pytest.mark.fault("F-332")
@pytest.mark.fault("F-370")
@pytest.mark.parametrize(("moment", "interrupted"), [("during", True), ("after", False)])
def test_a_signal_interrupts_a_command_whose_end_was_not_heard_of(moment: str, interrupted: bool) -> None:
    """`systemctl stop` sends one to all processes of a service at once."""
    words = [sys.executable, "-c", INTERRUPTED, moment]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    assert ran.stdout == f"0 {interrupted}\n", ran


TOO_LATE = """
import os
from dibs.cli.supervise.child import Child
child = Child(["touch", "begun"], kill_after_ms=0)
child.start(os.environ, 0)
child.wait(lambda: 0)
print(child.was_stopped, child.all_gone, child.code, os.path.exists("begun"))
"""


@pytest.mark.promise("loss:told")
def test_a_command_whose_claim_is_over_before_it_begins_is_never_begun(tmp_path: Path) -> None:
    """`dibs run` was paused between the yes of the store and the start."""
    ran = subprocess.run(
        [sys.executable, "-c", TOO_LATE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.stdout == "True True None False\n", ran


KILLED_EARLY = """
import os, signal
from dibs.cli.supervise.child import Child
child = Child(["true"], kill_after_ms=0)
os.kill(child.guardian_pid, signal.SIGKILL)
child.start(os.environ, 1 << 60)
child.wait(lambda: 0)
print(child.was_stopped, child.all_gone, child.code)
"""


def test_a_guardian_that_is_killed_before_it_said_anything_means_lost_and_not_that_nothing_ran() -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED_EARLY], capture_output=True, text=True, timeout=50, check=False)
    assert ran.stdout == "True True None\n", ran


@pytest.mark.quick
@pytest.mark.fault("F-450")
@pytest.mark.linux("only Linux lets a process adopt orphans")
def test_a_program_that_called_dibs_run_adopts_no_orphans_afterwards(tmp_path: Path) -> None:
    """It would not collect them. A guard of `dibs-lease run` that had ended was taken for one that stays behind."""
    assert dibs_here(clean_env(tmp_path), tmp_path, "run", "job", "--", "true").returncode == 0
    adopts = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    assert adopts.value == 0


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process in a group of its own. Tests refuse to signal it, as a system does if it is of another user."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.send_signal(signal.SIGKILL)


def test_without_adoption_a_group_that_may_not_be_signalled_is_not_taken_for_ended(
    pipes: tuple[int, int, int, int], stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    guardian = Guardian(pipes[0], pipes[3], ["sh"], kill_after_ms=0, leaves_children=False, terminal=None)
    guardian._pid = stranger
    monkeypatch.setattr(guardians, "signalled", lambda pid, number: False)
    assert guardian._survivors() == set()
    assert guardian._untouchable == {stranger}
    for end in (guardian._waking, guardian._waker):
        os.close(end)


def test_a_guard_that_is_left_alone_does_not_take_such_a_group_for_ended_either(
    stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = survivors.Survivors("notoken", ())
    found.has_group(stranger)
    monkeypatch.setattr(survivors, "signalled", lambda pid: False)
    assert not found.end(lambda: [])
    assert found.untouchable == {stranger}
