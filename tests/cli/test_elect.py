"""dibs elect: a command that runs while its process leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.machine import PATIENCE_SECONDS, Machine, finished, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e
JOB = "election:cron"
SHORT = ("--ttl", "9s", "--kill-after", "100ms")  # a loss is noticed with the next heartbeat
SAY = 'echo "$DIBS_ELECTION $DIBS_TERM $DIBS_FENCING_TOKEN"'


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def test_the_leader_runs_the_command_with_its_term_and_resigns(machine: Machine) -> None:
    for term in ("1", "2"):
        code, out = machine.run("elect", "cron", "--", "/bin/sh", "-c", f"{SAY}; exit {term}")
        assert (code, out) == (int(term), f"cron {term} {term}\n")
        assert machine.look(JOB)["status"] == "free"


@pytest.mark.parametrize("name", ["", " cron"])
def test_an_election_without_a_name_is_refused(machine: Machine, name: str) -> None:
    code, out = machine.run("elect", name, "--", "echo", "ran")
    assert code == 64
    assert "ran" not in out.split()


def test_a_plain_run_has_no_term(machine: Machine) -> None:
    machine.env |= {"DIBS_TERM": "7", "DIBS_ELECTION": "of-somebody"}
    assert machine.run("run", "job", "--", "/bin/sh", "-c", 'echo "[$DIBS_ELECTION$DIBS_TERM]"') == (
        0,
        "[]\n",
    )


def test_a_second_candidate_waits_and_then_leads(machine: Machine) -> None:
    leader = machine.start("elect", "cron", "--", "/bin/sh", "-c", f"{SAY}; exec sleep 600")
    assert first_line(leader) == "cron 1 1"
    assert machine.run("elect", "cron", "-n", "-q", "--", "true")[0] == 1
    follower = machine.start("elect", "cron", "--", "/bin/sh", "-c", SAY)
    machine.until(lambda: machine.look(JOB).get("waiting") == 1)
    leader.kill()
    assert finished(follower) == (0, "cron 2 2\n")


@pytest.mark.promise("elect:one-leader")
def test_a_lost_leader_is_stopped_and_campaigns_again(machine: Machine) -> None:
    again = machine.start("elect", "cron", *SHORT, "--", "/bin/sh", "-c", f"{SAY}; exec sleep 600")
    assert first_line(again) == "cron 1 1"
    assert machine.run("break", JOB, "--reason", "stuck")[0] == 0
    assert first_line(again) == "cron 2 2"
    again.terminate()
    assert finished(again)[0] == 143


@pytest.mark.fault("F-753")
def test_a_candidate_that_campaigns_again_imports_nothing_from_the_folder_where_it_stands(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    again = machine.start("elect", "cron", *SHORT, "--", "/bin/sh", "-c", f"{SAY}; exec sleep 600", cwd=folder)
    assert first_line(again) == "cron 1 1"
    (folder / "dibs").mkdir()
    (folder / "dibs" / "__init__.py").write_text("raise SystemExit('not dibs')\n")
    assert machine.run("break", JOB, "--reason", "stuck")[0] == 0
    assert first_line(again) == "cron 2 2"
    again.terminate()
    assert finished(again)[0] == 143


def test_once_ends_with_the_leadership(machine: Machine) -> None:
    once = machine.start("elect", "cron", *SHORT, "--once", "--", "/bin/sh", "-c", f"{SAY}; exec sleep 600")
    assert first_line(once) == "cron 1 1"
    assert machine.run("break", JOB, "--reason", "stuck")[0] == 0
    _, told = once.communicate(timeout=PATIENCE_SECONDS)
    assert once.returncode == 20
    assert "The leadership was lost" in told
    assert "because somebody else may lead now." in told
