"""Work that fails, on the command line: `release --failed`, and what the end of a command says about its job."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from dibs.cli.framework.result import failure
from dibs.wire import codes
from dibs.wire.documents import Reply
from tests.processes.machine import Machine, finished, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Terminal


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def run_sh(machine: Machine, script: str, *flags: str) -> int:
    return machine.run("run", "job", *flags, "--", "/bin/sh", "-c", script)[0]


def last(machine: Machine) -> tuple[str, str | None, int]:
    previous = machine.look("job")["previous"]
    return previous["how"], previous.get("reason"), previous["attempt"]


@pytest.mark.promise("attempts")
def test_release_failed_counts_rests_and_parks(terminal: Terminal) -> None:
    lease = terminal.claim("job", "--max-attempts", "2", "--owner", "agent-7")
    ran = terminal("release", "job", "--lease", lease, "--failed", "--reason", "registry away", "--retry-after", "5m")
    assert ran.exit == 0
    assert ran.out.startswith("Released as failed: job, 1 in a row. It can be claimed in 5m.")
    resting = terminal("claim", "job")
    assert resting.exit == 75
    assert "agent-7 failed at it just now: registry away" in resting.out
    assert terminal("claim-any", "job", "other", "-q").exit == 0
    terminal.wait(301)
    again = terminal("claim", "job", "--json").everything
    assert (again["attempt"], again["previous"]["reason"], again["previous"]["attempt"]) == (
        2,
        "registry away",
        1,
    )
    parked = terminal("release", "job", "--lease", again["lease_id"], "--failed")
    assert "It is parked" in parked.out
    assert terminal("claim", "job").exit == 75
    told = terminal("history", "job").out
    assert "agent-7 failed at it: registry away; to be tried again after 5m" in told


@pytest.mark.parametrize(
    "flags",
    [
        ("--reason", "x"),
        ("--retry-after", "5m"),
        ("--failed", "--done=1h"),
        ("--failed", "--retry-after", "8d"),
    ],
)
def test_flags_of_a_failure_that_cannot_be_meant_are_refused(terminal: Terminal, flags: tuple[str, ...]) -> None:
    lease = terminal.claim("job")
    assert terminal("release", "job", "--lease", lease, *flags).exit == 64
    assert terminal("heartbeat", "job", "--lease", lease).exit == 0


@pytest.mark.e2e
@pytest.mark.promise("attempts")
def test_a_command_that_fails_counts_and_its_job_is_parked_in_the_end(machine: Machine) -> None:
    assert run_sh(machine, "exit 7", "--max-attempts", "2") == 7
    assert last(machine) == ("failed", "exited with 7", 1)
    assert run_sh(machine, "kill -9 $$") == 137
    assert last(machine) == ("failed", "exited with 137", 2)
    assert machine.look("job")["status"] == "parked"
    assert run_sh(machine, "exit 0") == 75


@pytest.mark.e2e
def test_a_command_that_cannot_be_started_has_failed_and_rests_if_told_to(machine: Machine) -> None:
    assert machine.run("run", "job", "--retry-after", "5m", "--", "no-such-command")[0] == 127
    how, reason, _ = last(machine)
    assert how == "failed"
    assert "no such command" in str(reason)
    assert machine.look("job")["status"] == "delayed"


@pytest.mark.e2e
@pytest.mark.parametrize(("codes", "how"), [("1,7", "released"), ("all", "released"), ("1,8", "failed")])
def test_codes_that_are_no_failure_can_be_named(machine: Machine, codes: str, how: str) -> None:
    assert run_sh(machine, "exit 7", "--ok-codes", codes) == 7
    assert last(machine)[0] == how


@pytest.mark.parametrize("codes", ["", "x", "1,", "256", "-1"])
def test_codes_that_are_none_are_refused(terminal: Terminal, codes: str) -> None:
    ran = terminal("run", "job", f"--ok-codes={codes}", "--", "true")
    assert ran.exit == 64
    assert "--ok-codes" in ran.err


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_somebody_stopped_has_not_failed_and_its_count_stays(
    machine: Machine, number: signal.Signals
) -> None:
    assert run_sh(machine, "exit 1") == 1
    child = machine.start("run", "job", "--", "/bin/sh", "-c", "echo up; exec sleep 60")
    assert first_line(child) == "up"
    child.send_signal(number)
    assert finished(child)[0] == 128 + number
    assert last(machine)[0] == "released"
    assert run_sh(machine, "test $DIBS_ATTEMPT = 2") == 0
    assert run_sh(machine, "test $DIBS_ATTEMPT = 1") == 0


@pytest.mark.e2e
@pytest.mark.fault("F-332")
@pytest.mark.promise("overdue")
@pytest.mark.parametrize(
    ("flags", "exits"), [(("--done",), 0), ((), 0), (("--done", "--ok-codes", "all"), 143), (("--ok-codes", "all"), 7)]
)
def test_a_command_that_somebody_stopped_has_not_succeeded_whatever_its_exit_code(
    machine: Machine, flags: tuple[str, ...], exits: int
) -> None:
    assert run_sh(machine, "exit 1") == 1
    trap = "" if exits > 128 else f"trap 'exit {exits}' TERM; "
    script = f"{trap}echo up; while :; do sleep 0.05; done"
    child = machine.start("run", "job", *flags, "--", "/bin/sh", "-c", script, stderr=subprocess.STDOUT)
    assert first_line(child) == "up"
    child.send_signal(signal.SIGTERM)
    code, out = finished(child)
    assert code == exits
    assert ("not marked as done, because the command was interrupted" in out) == (flags == ("--done",))
    assert machine.run("overdue", "job")[0] != 0
    assert run_sh(machine, "test $DIBS_ATTEMPT = 2", "--done") == 0  # the count stays, and it is not done
    assert run_sh(machine, "exit 0") == 4


@pytest.mark.e2e
@pytest.mark.fault("F-332")
@pytest.mark.promise("overdue")
def test_a_hold_that_somebody_stopped_is_no_success_of_its_job(machine: Machine) -> None:
    child = machine.start("hold", "job", "--json")
    assert "acquired" in first_line(child)
    child.send_signal(signal.SIGTERM)
    assert finished(child)[0] == 0
    assert machine.run("overdue", "job")[0] != 0
    assert machine.run("hold", "job", "--for", "1ms")[0] == 0
    assert machine.run("overdue", "job")[0] == 0


@pytest.mark.e2e
@pytest.mark.fault("F-371")
@pytest.mark.promise("overdue")
@pytest.mark.parametrize("end", ["stdin", "stdout"])
def test_a_hold_whose_program_is_gone_is_no_success_of_its_job(machine: Machine, end: str) -> None:
    child = machine.start("hold", "job", "--json", "--ttl", "4s", "--until-eof", stdin=subprocess.PIPE)
    assert "acquired" in first_line(child)
    pipe = getattr(child, end)
    pipe.close()
    setattr(child, end, None)
    assert child.wait(50) == 0
    assert machine.look("job")["previous"]["how"] == "released"
    assert machine.run("overdue", "job")[0] != 0


@pytest.mark.e2e
@pytest.mark.fault("F-333")
def test_a_leaders_command_that_fails_is_no_failure_as_in_python(machine: Machine) -> None:
    for _ in range(2):
        assert machine.run("elect", "cron", "--", "/bin/sh", "-c", "exit 7")[0] == 7
        previous = machine.look("election:cron")["previous"]
        assert (previous["how"], previous["attempt"]) == ("released", 1)


@pytest.mark.e2e
def test_hold_is_told_that_the_work_failed(machine: Machine) -> None:
    child = machine.start("hold", "job", "--until-eof", "--json", stdin=subprocess.PIPE)
    assert "acquired" in first_line(child)
    out = child.communicate("fail no disk\n", timeout=60)[0]
    assert '"failed":true' in out.replace(" ", "")
    assert last(machine) == ("failed", "no disk", 1)


def test_the_second_line_of_an_error_is_indented_and_there_is_no_third() -> None:
    reply = Reply(status=403, body={"code": "forbidden", "details": "No right.\nRun: GRANT\nok   all is well"})
    assert failure(reply).text == "No right.\n  Run: GRANT\\nok   all is well"


@pytest.mark.fault("F-330")
@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        (("--failed",), ("--done",), "This lease was released as failed"),
        ((), ("--done",), "did not mark it as done"),
        (("--done",), ("--failed",), "was released before, and not as failed"),
    ],
)
def test_a_second_release_that_says_otherwise_is_no_success(
    terminal: Terminal, first: tuple[str, ...], then: tuple[str, ...], says: str
) -> None:
    proof = ("--lease", terminal.claim("job"))
    assert terminal("release", "job", *proof, *first).exit == 0
    assert terminal("release", "job", *proof, *first).exit == 0  # a repeat is
    ran = terminal("release", "job", *proof, *then)
    assert ran.exit == codes.NOT_YOURS
    assert says in ran.err
    assert terminal("release", "job", *proof, *then, "--json").error["code"] == "lease_not_current"
    assert terminal("release", "job", *proof).exit == 0
