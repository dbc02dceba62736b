"""The commands about resources: they can be held, and nothing else."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from dibs.cli.main import run
from dibs.wire.codes import USAGE
from tests.programs import clean_env, dibs_here

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal

FILE = "path:src/a.py"
WORDS = f"{FILE} is a resource, not a job: it can be held, but not be done, fail or be parked. Leave out "


@pytest.fixture(autouse=True)
def one_namespace(terminal: Terminal) -> None:
    """For jobs and resources, so that they can be claimed together."""
    terminal.env["DIBS_NAMESPACE"] = "one"


@pytest.mark.fault("F-290")
@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("release", FILE, "--actor", "a", "--done"), "--done"),
        (("release", FILE, "repo:x", "--actor", "a", "--done=1h", "--result", "r"), "--done"),
        (("release", FILE, "--actor", "a", "--failed", "--reason", "r"), "--failed"),
        (("claim", FILE, "--max-attempts", "3"), "--max-attempts"),
        (("claim-any", FILE, "branch:x", "--max-attempts", "3"), "--max-attempts"),
        (("claim-all", FILE, "branch:x", "--max-attempts", "3"), "--max-attempts"),
        (("hold", FILE, "--max-attempts", "3"), "--max-attempts"),
        (("run", FILE, "--done", "--", "true"), "--done"),
        (("run", FILE, "--retry-after", "5m", "--", "true"), "--retry-after"),
        (("run", FILE, "--max-attempts", "3", "--", "true"), "--max-attempts"),
    ],
)
def test_flags_that_only_jobs_have_are_refused_for_resources_before_anything_is_done(
    terminal: Terminal, words: tuple[str, ...], flag: str
) -> None:
    terminal.claim(FILE, "--actor", "a")
    before = terminal("list", "--json").data
    refused = terminal(*words)
    assert refused.exit == USAGE
    assert f"{WORDS}{flag}." in refused.err
    assert terminal("list", "--json").data == before


@pytest.mark.fault("F-290")
def test_of_a_job_and_a_file_that_are_released_as_done_only_the_job_is_done(terminal: Terminal) -> None:
    terminal("claim-all", FILE, "issue-1", "--actor", "a")
    released = terminal("release", FILE, "issue-1", "--actor", "a", "--done")
    assert released.exit == 0
    assert f"Released {FILE}. It can be claimed." in released.out
    assert "Released issue-1. Marked done for" in released.out
    assert terminal("claim", "issue-1", "--actor", "b").exit == 4
    assert terminal("claim", FILE, "--actor", "b").exit == 0


@pytest.mark.parametrize("ending", ["--done", "--failed"])
def test_all_that_an_actor_holds_is_released_and_only_jobs_are_done_or_fail(terminal: Terminal, ending: str) -> None:
    for name in (FILE, "branch:main", "issue-1"):
        terminal.claim(name, "--actor", "a")
    assert terminal("release", "--mine", "--actor", "a", ending).exit == 0
    for name in (FILE, "branch:main"):
        again = terminal("claim", name, "--actor", "b", "--json")
        assert (again.exit, again.data["attempt"]) == (0, 1)
    job = terminal("claim", "issue-1", "--actor", "b", "--json")
    assert job.exit == 4 if ending == "--done" else job.data["attempt"] == 2


@pytest.mark.fault("F-290")
def test_hold_refuses_the_orders_done_and_fail_for_a_resource_and_goes_on(terminal: Terminal, tmp_path: Path) -> None:
    orders, out = tmp_path / "orders", io.StringIO()
    orders.write_text("done 1h\nfail why\nrelease\n")
    with orders.open("rb") as stdin:
        assert run(("hold", FILE, "--until-eof"), terminal.env, out, io.StringIO(), stdin, terminal._open) == 0
    assert out.getvalue().count("is a resource, not a job") == 2
    assert terminal("claim", FILE, "--json").data["attempt"] == 1


def test_a_resource_can_be_overdue_because_a_hold_of_it_can_end_well(terminal: Terminal) -> None:
    terminal("release", "repo:backup", "--lease", terminal.claim("repo:backup"))
    assert terminal("overdue", "repo:backup", "--within", "1h").exit == 0
    terminal.wait(7200)
    assert terminal("overdue", "repo:backup", "--within", "1h").exit != 0


@pytest.mark.fault("F-290")
def test_a_command_that_fails_on_a_resource_releases_it_plainly(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    failed = dibs_here(env, tmp_path, "run", FILE, "--", "sh", "-c", "exit 3")
    assert (failed.returncode, failed.stderr) == (3, "")
    again = dibs_here(env, tmp_path, "run", FILE, "--json", "--", "true")
    held = json.loads(again.stdout)["data"]
    assert (held["attempt"], held["previous"]["how"]) == (1, "released")
    assert dibs_here(env, tmp_path, "run", FILE, "--", "false").returncode == 1
    assert dibs_here(env, tmp_path, "overdue", FILE, "--within", "1d").returncode == 0
