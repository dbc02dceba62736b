"""claim --wait between processes on one file, without a server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dibs.client.transport import Ask
from tests.processes.machine import Machine, finished

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]

# From a release to the next owner's process being done with its answer, interpreter start and exit included.
HAND_OFF_SECONDS_MAX = 3.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def in_line(machine: Machine, job: str, count: int) -> None:
    machine.until(lambda: machine.look(job).get("waiting") == count)


@pytest.mark.promise("queue:fifo")
def test_three_processes_get_the_job_in_the_order_they_came_soon_after_it_is_free(machine: Machine) -> None:
    code, lease = machine.run("claim", "job", "-q")
    assert code == 0
    waiters = []
    for number in range(3):
        waiters.append(machine.start("claim", "job", "-q", "--wait", "60s", "--owner", f"w{number}"))
        in_line(machine, "job", number + 1)
    for number, waiter in enumerate(waiters):
        assert machine.transport.ask(Ask("release", "job", {"lease_id": lease.strip()})).status == 200
        began = time.monotonic()
        code, lease = finished(waiter)
        assert code == 0
        assert time.monotonic() - began < HAND_OFF_SECONDS_MAX
        assert machine.look("job")["owner"] == f"w{number}"
        assert all(later.poll() is None for later in waiters[number + 1 :])


@pytest.mark.promise("queue:no-dead-grant")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_line(machine: Machine, number: int, code: int) -> None:
    machine.run("claim", "job", "-q")
    waiter = machine.start("claim", "job", "--wait", "60s")
    in_line(machine, "job", 1)
    waiter.send_signal(number)
    _, err = waiter.communicate(timeout=50)
    assert waiter.returncode == code
    assert err == ""
    assert machine.look("job")["waiting"] == 0


@pytest.mark.promise("queue:no-dead-grant")
def test_the_job_passes_over_a_waiter_that_was_killed_in_a_session(machine: Machine) -> None:
    _, lease = machine.run("claim", "job", "-q")
    dead = machine.start("session", "run", "--", sys.executable, "-m", "dibs", "claim", "job", "--wait", "60s")
    in_line(machine, "job", 1)
    live = machine.start("claim", "job", "-q", "--wait", "60s", "--owner", "live")
    in_line(machine, "job", 2)
    dead.terminate()  # ends the session, and with it the place
    assert finished(dead)[0] == 143
    machine.transport.ask(Ask("release", "job", {"lease_id": lease.strip()}))
    assert finished(live)[0] == 0


def test_at_a_terminal_one_line_is_drawn_and_wiped(machine: Machine) -> None:
    machine.run("claim", "job", "-q", "--owner", "agent-7", "--ttl", "2m")
    words = [sys.executable, "-m", "dibs", "claim", "job", "--wait", "2s", "--owner", "bob"]
    spawn = f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({words!r})))"
    done = subprocess.run(
        [sys.executable, "-c", spawn],
        env=machine.env | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    line = rb"\rWaiting for job, next in line: agent-7 has it for another 1m 5\ds \(\ds of 2s\)\x1b\[K"
    assert re.fullmatch(rb"(%s)+\r\x1b\[K" % line, done.stdout.partition(b"\x1b[33mNot yet:")[0])
