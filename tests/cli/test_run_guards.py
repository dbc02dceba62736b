"""dibs run when those who guard its command are killed or paused, two or all of them: never two at the same work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.cli.supervise.process_tree import children
from dibs.client.embedded import process_mark
from tests.cli.processes import Machine, finished, first_line
from tests.processes import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.promise("loss:told")]

STAMPER = Path(__file__).with_name("stamper.py")
# Prints when it began.
NEXT = (sys.executable, "-c", "import time; print(time.clock_gettime_ns(time.CLOCK_BOOTTIME))")
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def _is_paused(pid: int) -> bool:
    """One that has ended meanwhile stands still as well."""
    if process_mark(pid) is None:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Work:
    """A command under a claim: it, its child and its grandchild, all of which leave the process group."""

    def __init__(self, machine: Machine, folder: Path, *flags: str) -> None:
        self._folder = folder
        words = (sys.executable, str(STAMPER), str(folder / "stamp"), "2")
        self.run = machine.start("run", "job", *flags, "--", *words)
        self.family = [int(first_line(self.run)) for _ in range(3)]
        guardian, warden = children(self.run.pid)
        self.guards = {"run": self.run.pid, "guardian": guardian, "warden": warden}

    def hit(self, **signals: int) -> None:
        """Send a signal to each guard that is named, in that order. On a machine that is too slow to renew in time they
        may be gone already, as they should be."""
        for who, number in signals.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.guards[who], number)
            if number == STOP:
                wait_until(lambda pid=self.guards[who]: _is_paused(pid), f"{who} is paused")  # type: ignore[misc]

    @property
    def living(self) -> list[int]:
        return [pid for pid in self.family if process_mark(pid) is not None]

    @property
    def last_ns(self) -> int:
        """When any of them was last seen alive."""
        return max(int(path.read_text()) for path in self._folder.glob("stamp*"))

    def close(self) -> None:
        for pid in [*self.guards.values(), *self.living]:
            for number in (signal.SIGCONT, KILL):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


@contextlib.contextmanager
def work(machine: Machine, folder: Path, *flags: str) -> Iterator[Work]:
    begun = Work(machine, folder, *flags)
    try:
        yield begun
    finally:
        begun.close()


def next_owner(machine: Machine) -> subprocess.Popen[str]:
    """Somebody who waits for the job and says when it began to work."""
    waiter = machine.start("run", "job", "--wait", "25s", "--", *NEXT)
    machine.until(lambda: machine.look("job").get("waiting") == 1 or waiter.poll() is not None)
    return waiter


def check_no_overlap(machine: Machine, folder: Path, **signals: int) -> None:
    with work(machine, folder, "--ttl", "6s", "--kill-after", "1s") as begun:
        waiter = next_owner(machine)
        begun.hit(**signals)
        code, out = finished(waiter)
        assert code == 0
        assert begun.living == []
        assert begun.last_ns < int(out)


FAULTS = {
    "run and guardian killed": {"run": KILL, "guardian": KILL},
    "guardian and run killed": {"guardian": KILL, "run": KILL},
    "run paused, guardian killed": {"run": STOP, "guardian": KILL},
    "guardian killed": {"guardian": KILL},
    "guardian and warden killed": {"guardian": KILL, "warden": KILL},
    "guardian paused, run killed": {"guardian": STOP, "run": KILL},
    "run killed, guardian paused": {"run": KILL, "guardian": STOP},
    "run and guardian paused": {"run": STOP, "guardian": STOP},
    "warden paused, run killed": {"warden": STOP, "run": KILL},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_is_killed_or_paused_the_work_is_over_before_the_next_owner_begins(
    fault: str, machine: Machine, tmp_path: Path
) -> None:
    check_no_overlap(machine, tmp_path, **FAULTS[fault])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS)
def test_and_so_it_is_every_time(fault: str, tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        machine = Machine(folder)
        try:
            check_no_overlap(machine, folder, **FAULTS[fault])
        finally:
            machine.close()


def test_when_all_guards_are_killed_the_job_is_kept_while_anything_of_the_command_lives(
    machine: Machine, tmp_path: Path
) -> None:
    with work(machine, tmp_path, "--ttl", "20s") as begun:
        waiter = next_owner(machine)
        begun.hit(run=KILL, guardian=KILL, warden=KILL)
        wait_until(lambda: len(begun.living) == 2, "the command itself went with its guardian")
        for _ in range(5):
            assert machine.run("claim", "job")[0] == 1
        assert waiter.poll() is None
        for pid in begun.living:
            os.kill(pid, KILL)
        code, out = finished(waiter)
        assert code == 0
        assert begun.last_ns < int(out)


def test_a_wrapper_that_was_killed_is_told_as_lost_and_its_job_is_free_at_once(
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
    guards = children(child.pid)
    assert len(guards) == 2
    child.communicate("\n", timeout=30)
    wait_until(lambda: all(process_mark(pid) is None for pid in guards), "the guards are gone")


def test_a_run_inside_a_run_is_stopped_with_the_outer_one(machine: Machine, tmp_path: Path) -> None:
    inner = f"exec $DIBS run inner -- {sys.executable} {STAMPER} {tmp_path / 'stamp'} 1"
    outer = machine.start("run", "job", "--ttl", "3s", "--", "sh", "-c", inner)
    family = [int(first_line(outer)) for _ in range(2)]
    guardian, _ = children(outer.pid)
    os.kill(outer.pid, KILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(guardian, KILL)
    wait_until(lambda: all(process_mark(pid) is None for pid in family), "all of it is gone")
    machine.until(lambda: machine.look("job")["status"] == "free")
    machine.until(lambda: machine.run("claim", "inner")[0] == 0)
