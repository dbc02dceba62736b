"""dibs run under faults: no process that it started outlives the claim, whichever process is killed or paused."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.client.transport import Ask
from dibs.system import table
from dibs.system.session_mark import process_mark
from tests.processes.machine import SETSID, Machine, finished, first_line, guards_of
from tests.programs import ServerProcess, wait_until, wait_until_stopped

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.promise("loss:told"), pytest.mark.full]

TTL_MS = 10_000
# A command, its child, one that left the group (Linux only), and one that is nobody's child; all say their number.
FAMILY = (
    f"sleep 600 & echo child $!; {SETSID}sh -c 'echo leaver $$; exec sleep 600' & "
    f"({SETSID}sh -c 'sleep 600 & echo orphan $!' &); echo command $$; exec sleep 600"
)
STUBBORN = "trap '' TERM; " + FAMILY


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def start_family(machine: Machine, *flags: str, script: str = FAMILY) -> tuple[subprocess.Popen[str], dict[str, int]]:
    child = machine.start("run", "job", *flags, "--", "/bin/sh", "-c", script)
    said = [first_line(child).split() for _ in range(4)]
    return child, {who: int(pid) for who, pid in said}


def living(family: dict[str, int]) -> list[str]:
    return [who for who, pid in family.items() if process_mark(pid) is not None]


def test_a_killed_wrapper_takes_everything_along_before_the_next_owner_comes(machine: Machine) -> None:
    child, family = start_family(machine)
    assert len(living(family)) == 4
    waiter = machine.start("claim", "job", "-q", "--wait", "50s")
    machine.until(lambda: machine.look("job").get("waiting") == 1)
    child.kill()
    assert finished(waiter)[0] == 0
    assert living(family) == []


def test_who_does_not_want_to_end_is_made_to_and_the_next_owner_waits_for_that(machine: Machine) -> None:
    child, family = start_family(machine, "--kill-after", "500ms", script=STUBBORN)
    waiter = machine.start("claim", "job", "-q", "--wait", "50s")
    machine.until(lambda: machine.look("job").get("waiting") == 1)
    began_ms = steady_ms()
    child.kill()
    assert finished(waiter)[0] == 0
    assert steady_ms() - began_ms >= 500
    assert living(family) == []


def test_a_paused_wrapper_does_not_keep_the_command_past_the_claim(machine: Machine) -> None:
    child, family = start_family(machine, "--ttl", "10s", "--kill-after", "2s", script=STUBBORN)
    child.send_signal(signal.SIGSTOP)
    wait_until_stopped(child.pid)
    # Whoever is next asks all the time, and gets it only when nobody is left. The guardian is still there, so this is
    # not because a dead process was seen.
    waiter = machine.start("claim", "job", "-q", "--wait", "50s")
    assert finished(waiter)[0] == 0
    assert living(family) == []
    assert table().children(child.pid) != []
    child.send_signal(signal.SIGCONT)
    assert finished(child)[0] == 20


def test_a_wrapper_that_was_paused_for_a_moment_goes_on(machine: Machine) -> None:
    child = machine.start("run", "job", "--", "cat", stdin=-1)
    machine.until(lambda: machine.look("job").get("owner") is not None)
    child.send_signal(signal.SIGSTOP)
    wait_until_stopped(child.pid)
    child.send_signal(signal.SIGCONT)
    out, _ = child.communicate("typed", timeout=50)
    assert (child.returncode, out) == (0, "typed")


def test_a_killed_command_frees_the_job_at_once(machine: Machine) -> None:
    child, family = start_family(machine)
    os.kill(family["command"], signal.SIGKILL)
    assert finished(child)[0] == 137
    assert living(family) == []
    assert machine.look("job")["status"] == "free"


def test_without_its_guardian_the_command_is_stopped_too(machine: Machine) -> None:
    child, family = start_family(machine)
    guardian, _second = guards_of(child.pid)
    os.kill(guardian, signal.SIGKILL)
    assert finished(child)[0] == 20
    assert living(family) == []


def test_a_job_that_was_taken_by_force_stops_the_command(machine: Machine) -> None:
    child, family = start_family(machine, "--ttl", "10s")
    assert machine.run("break", "job", "--reason", "stuck")[0] == 0
    _, err = child.communicate(timeout=50)
    assert child.returncode == 20
    assert "stuck" in err
    assert living(family) == []


def waiting_for(machine: Machine) -> list[str]:
    """The sessions that wait for the job."""
    found = (machine.transport.ask(Ask("sessions")).body or {})["sessions"]
    return [each["session_id"] for each in found if "job" in each["waits"]]


@pytest.mark.parametrize("command", ["run", "hold"])
def test_one_whose_session_ends_while_it_waits_opens_another_and_waits_on(machine: Machine, command: str) -> None:
    lease = machine.transport.ask(Ask("acquire", "job", {"ttl_seconds": 600})).body or {}
    words = ("--", "echo", "ran") if command == "run" else ("--for", "1s")
    child = machine.start(command, "job", "--wait", "25s", *words)
    machine.until(lambda: len(waiting_for(machine)) == 1)
    (first,) = waiting_for(machine)
    machine.transport.ask(Ask("session-end", first))
    machine.until(lambda: len(waiting_for(machine)) == 1)
    assert waiting_for(machine) != [first]
    machine.transport.ask(Ask("release", "job", {"lease_id": lease["lease_id"]}))
    code, out = finished(child)
    assert code == 0
    assert ("ran" if command == "run" else "acquired") in out.lower()


def test_one_that_was_paused_past_its_session_while_it_waited_waits_on(machine: Machine) -> None:
    lease = machine.transport.ask(Ask("acquire", "job", {"ttl_seconds": 600})).body or {}
    child = machine.start("run", "job", "--ttl", "2s", "--wait", "25s", "--", "echo", "ran")
    machine.until(lambda: len(waiting_for(machine)) == 1)
    child.send_signal(signal.SIGSTOP)
    wait_until_stopped(child.pid)
    machine.until(lambda: waiting_for(machine) == [])
    child.send_signal(signal.SIGCONT)
    machine.until(lambda: len(waiting_for(machine)) == 1)
    machine.transport.ask(Ask("release", "job", {"lease_id": lease["lease_id"]}))
    assert finished(child) == (0, "ran\n")


def test_one_whose_session_ends_again_and_again_still_stops_waiting_in_time(machine: Machine) -> None:
    machine.transport.ask(Ask("acquire", "job", {"ttl_seconds": 600}))
    child = machine.start("run", "job", "--wait", "2s", "--", "echo", "ran")
    while child.poll() is None:
        for session in waiting_for(machine):
            machine.transport.ask(Ask("session-end", session))
        machine.transport.news(50)
    assert finished(child) == (1, "")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    folder = tmp_path / "server"
    folder.mkdir()
    with ServerProcess(folder, bind="127.0.0.1:0") as first:
        pass
    port = re.sub(r".*:", "", first.url)
    with ServerProcess(folder, bind=f"127.0.0.1:{port}") as server:
        yield server


def run_at(machine: Machine, server: ServerProcess, *words: str) -> subprocess.Popen[str]:
    machine.env["DIBS_TOKEN"] = server.token
    return machine.start("--url", server.url, "run", "job", "--ttl", "10s", *words, stdin=-1)


def renewals(server: ServerProcess) -> Callable[[], str]:
    transport = server.transport()
    return lambda: (transport.ask(Ask("sessions")).body or {})["sessions"][0]["expires_at"]


def test_a_server_that_comes_back_in_time_costs_nothing(machine: Machine, server: ServerProcess) -> None:
    child = run_at(machine, server, "--", "/bin/sh", "-c", "echo ready; cat")
    assert first_line(child) == "ready"
    expiry = renewals(server)
    first = expiry()
    server.kill()
    server.start()
    wait_until(lambda: expiry() != first, "the session is renewed")
    out, err = child.communicate("typed", timeout=50)
    assert (child.returncode, out, err) == (0, "typed", "")


def test_a_server_that_is_gone_for_good_stops_the_command_in_time(machine: Machine, server: ServerProcess) -> None:
    began_ms = steady_ms()
    child = run_at(machine, server, "--", "/bin/sh", "-c", "echo $$; exec sleep 600")
    pid = int(first_line(child))
    server.kill()
    wait_until(lambda: not living({"command": pid}), "the command is stopped")
    assert steady_ms() - began_ms < TTL_MS
    _, err = child.communicate(timeout=50)
    assert child.returncode == 20
    assert "No server answers" in err


def test_a_server_that_hangs_does_not_keep_the_deadline_from_being_kept(
    machine: Machine, server: ServerProcess
) -> None:
    began_ms = steady_ms()
    child = run_at(machine, server, "--", "/bin/sh", "-c", "echo $$; exec sleep 600")
    pid = int(first_line(child))
    server.pause()
    wait_until(lambda: not living({"command": pid}), "the command is stopped")
    assert steady_ms() - began_ms < TTL_MS
    server.resume()
    child.communicate(timeout=50)
    assert child.returncode == 20
