"""dibs run when two or all guards of its command are killed or paused: two commands never work at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base import platforms
from dibs.system.session_mark import process_mark
from tests.processes.machine import LEAVES_GROUP, PATIENCE_SECONDS, SETSID, Machine, finished, first_line, guards_of
from tests.programs import ServerProcess, slowness, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.promise("loss:told"), pytest.mark.full]

STAMPER = Path(__file__).with_name("stamper.py")
MANNER = "leave" if LEAVES_GROUP else "stay"
# Prints when it began.
NEXT = (sys.executable, "-c", "import time; print(time.clock_gettime_ns(time.CLOCK_BOOTTIME))")
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


class Missed(Exception):
    """The fault did not happen, because its target had ended before. Guards end when a slow machine does not renew in
    time, or when they notice the first fault sooner."""


def _is_paused(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "X"
    if state in "XZ":
        raise Missed(f"{pid} has ended")
    return state in "Tt"


class Work:
    """A command under a claim: it, its child and its grandchild, which leave the process group (Linux only)."""

    def __init__(self, machine: Machine, folder: Path, *flags: str) -> None:
        self._folder = folder
        words = (sys.executable, str(STAMPER), str(folder / "stamp"), "2", MANNER)
        self.run = machine.start("run", "job", *flags, "--", *words)
        self.family = [int(first_line(self.run)) for _ in range(3)]
        guardian, second = guards_of(self.run.pid)
        self.guards = {"run": self.run.pid, "guardian": guardian, "second": second}
        self._handles = {who: os.pidfd_open(pid) for who, pid in self.guards.items()}

    def hit(self, **signals: int) -> None:
        """Send a signal to each guard that is named, in that order. Raises Missed when one of them was not there any
        more. A guardian that is paused after `run` was killed is woken: whether one sees it stand still is chance."""
        for who, number in signals.items():
            if process_mark(self.guards[who]) is None:
                raise Missed(f"{who} has ended")
            signal.pidfd_send_signal(self._handles[who], number)
            is_woken = who != "run" and signals.get("run") == KILL and [*signals].index("run") < [*signals].index(who)
            if number == STOP and not is_woken:
                wait_until(lambda pid=self.guards[who]: _is_paused(pid), f"{who} is paused")  # type: ignore[misc]

    @property
    def living(self) -> list[int]:
        return [pid for pid in self.family if process_mark(pid) is not None]

    @property
    def last_ns(self) -> int:
        """When any of them was last seen alive."""
        return max(int(path.read_text()) for path in self._folder.glob("stamp*"))

    def close(self) -> None:
        for handle in self._handles.values():
            for number in (signal.SIGCONT, KILL):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
            os.close(handle)
        for pid in self.living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, KILL)


@contextlib.contextmanager
def work(machine: Machine, folder: Path, *flags: str) -> Iterator[Work]:
    begun = Work(machine, folder, *flags)
    try:
        yield begun
    finally:
        begun.close()


def next_owner(machine: Machine) -> subprocess.Popen[str]:
    """Somebody who waits for the job and says when it began to work."""
    waiter = machine.start("run", "job", "--wait", "50s", "--", *NEXT)
    machine.until(lambda: machine.look("job").get("waiting") == 1 or waiter.poll() is not None)
    return waiter


def check_no_overlap(machine: Machine, folder: Path, **signals: int) -> bool:
    """Whether the fault happened. In both cases no two work at the same time."""
    happened = True
    with work(machine, folder, "--ttl", f"{6 * min(3, slowness())}s", "--kill-after", "1s") as begun:
        waiter = next_owner(machine)
        try:
            begun.hit(**signals)
        except Missed:
            happened = False
        out, err = waiter.communicate(timeout=PATIENCE_SECONDS)
        assert waiter.returncode == 0, f"{err}\n{machine.look('job')}"
        assert begun.living == []
        assert begun.last_ns < int(out)
    return happened


def check_often(tmp_path: Path, fault: str, times: int) -> None:
    """Runs that many rounds. Rounds whose fault came too late do not count, and may be at most as many."""
    happened = 0
    for number in range(2 * times + 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        machine = Machine(folder)
        try:
            happened += check_no_overlap(machine, folder, **FAULTS[fault])
        finally:
            machine.close()
        if happened == times:
            return
    raise AssertionError(f"{fault}: happened {happened} times in {number + 1}")


FAULTS = {
    "run and guardian killed": {"run": KILL, "guardian": KILL},
    "guardian and run killed": {"guardian": KILL, "run": KILL},
    "run paused, guardian killed": {"run": STOP, "guardian": KILL},
    "guardian killed": {"guardian": KILL},
    "both guardians killed": {"guardian": KILL, "second": KILL},
    "guardian paused, run killed": {"guardian": STOP, "run": KILL},
    "run killed, guardian paused": {"run": KILL, "guardian": STOP},
    "run and guardian paused": {"run": STOP, "guardian": STOP},
    "second guardian paused, run killed": {"second": STOP, "run": KILL},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_is_killed_or_paused_the_work_is_over_before_the_next_owner_begins(fault: str, tmp_path: Path) -> None:
    check_often(tmp_path, fault, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_and_so_it_is_every_time(fault: str, tmp_path: Path) -> None:
    check_often(tmp_path, fault, 20)


@pytest.mark.parametrize("number", [STOP, KILL])
def test_without_guards_and_store_the_wrapper_stops_the_command_itself(
    number: int, machine: Machine, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path) as server:
        machine.env["DIBS_TOKEN"] = server.token
        with work(machine, tmp_path, "--ttl", "6s", "--kill-after", "1s", "--url", server.url) as begun:
            waiter = next_owner(machine)  # which opens the file itself, and goes by the TTL
            server.kill()
            begun.hit(second=number, guardian=number)
            code, out = finished(waiter)
            assert code == 0
            assert begun.last_ns < int(out)
            assert begun.living == []
            assert finished(begun.run)[0] == 20


def test_when_all_guards_are_killed_the_job_is_kept_while_anything_of_the_command_lives(
    machine: Machine, tmp_path: Path
) -> None:
    with work(machine, tmp_path, "--ttl", "20s" if platforms.IS_LINUX else "8s") as begun:
        waiter = next_owner(machine)
        begun.hit(run=STOP, second=STOP, guardian=STOP)  # so that none of them acts when the first is gone
        begun.hit(guardian=KILL, second=KILL, run=KILL)
        if platforms.IS_LINUX:
            wait_until(lambda: len(begun.living) == 2, "the command itself went with its guardian")
        for _ in range(5):
            assert machine.run("claim", "job")[0] == 1
        assert waiter.poll() is None
        for pid in begun.living:
            os.kill(pid, KILL)
        code, out = finished(waiter)  # elsewhere than on Linux: when the TTL ends
        assert code == 0
        assert begun.last_ns < int(out)


@pytest.mark.fault("F-732")
def test_a_killed_guardian_of_a_paused_wrapper_costs_no_time(machine: Machine, tmp_path: Path) -> None:
    """The command died with it, and what is left of it has to be gone long before the claim ends."""
    with work(machine, tmp_path, "--ttl", "10m") as begun:
        begun.hit(run=STOP, guardian=KILL)
        wait_until(lambda: begun.living == [], "nothing of the work is left")
        assert machine.look("job")["status"] == "held"


def test_children_that_may_stay_do_so_when_the_guards_go(machine: Machine, tmp_path: Path) -> None:
    """The second guardian sees the end of the first, and is told before that it was in order."""
    child = machine.start("run", "job", "--leave-children", "--", "sh", "-c", f"{SETSID}sleep 60 >&- 2>&- & echo $!")
    left = int(first_line(child))
    _, second = guards_of(child.pid)
    assert finished(child)[0] == 0
    wait_until(lambda: process_mark(second) is None, "the second guardian has ended")
    assert process_mark(left) is not None
    os.kill(left, KILL)


def test_a_wrapper_that_was_killed_is_reported_as_lost_and_its_job_is_free_at_once(
    machine: Machine, tmp_path: Path
) -> None:
    with work(machine, tmp_path, "--ttl", "60s") as begun:
        begun.hit(run=KILL)
        machine.until(lambda: machine.look("job")["status"] == "free")
        assert begun.living == []
    assert machine.look("job")["previous"]["how"] == "expired"


def test_the_guards_go_when_the_command_has(machine: Machine, tmp_path: Path) -> None:
    child = machine.start("run", "job", "--", "sh", "-c", "echo; read x", stdin=-1)
    first_line(child)
    guards = guards_of(child.pid)
    child.communicate("\n", timeout=50)
    wait_until(lambda: all(process_mark(pid) is None for pid in guards), "the guards are gone")


def test_a_run_inside_a_run_is_stopped_with_the_outer_one(machine: Machine, tmp_path: Path) -> None:
    inner = f"exec $DIBS run inner -- {sys.executable} {STAMPER} {tmp_path / 'stamp'} 1 {MANNER}"
    outer = machine.start("run", "job", "--ttl", "3s", "--", "sh", "-c", inner)
    family = [int(first_line(outer)) for _ in range(2)]
    guardian, _ = guards_of(outer.pid)
    os.kill(outer.pid, KILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(guardian, KILL)
    wait_until(lambda: all(process_mark(pid) is None for pid in family), "all of it is gone")
    machine.until(lambda: machine.look("job")["status"] == "free")
    machine.until(lambda: machine.run("claim", "inner")[0] == 0)
