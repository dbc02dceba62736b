"""A claim that is interrupted: either the caller got the answer, or nothing is held."""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.client.transport import Ask
from tests.processes.machine import Machine, finished
from tests.programs import ROOT, ServerProcess, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.full]

INTERRUPTED = Path(__file__).with_name("interrupted.py")
KEY = "github://acme/app/issues/1"
CLAIMS = {
    "claim": ("dibs", "claim", "job"),
    "claim --wait": ("dibs", "claim", "job", "--wait", "5s"),
    "claim-any": ("dibs", "claim-any", "job", "other"),
    "claim-all": ("dibs", "claim-all", "job", "other"),
    "run": ("dibs", "run", "job", "--", "true"),
    "run --wait": ("dibs", "run", "job", "--wait", "5s", "--", "true"),
    "hold": ("dibs", "hold", "job"),
    "lock": ("dibs", "lock", "acquire", "--resource", "job"),
    "rlock": ("rlock", KEY),
}
MOMENTS = [
    (claim, moment)
    for claim in CLAIMS
    for moment in ("asked", "committed", "answered", "printing")
    if not (claim.startswith("run") and moment == "printing")  # it prints nothing of its own
]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def strike(machine: Machine, moment: str, number: int, words: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and output of a command that is sent a signal at a moment."""
    ran = subprocess.run(
        [sys.executable, str(INTERRUPTED), moment, str(int(number)), *words],
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        start_new_session=True,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(("claim", "moment"), MOMENTS)
@pytest.mark.promise("idem:acquire")
def test_an_interrupted_claim_leaves_nothing_behind(claim: str, moment: str, machine: Machine) -> None:
    number = SIGNALS[sum(map(ord, claim + moment)) % 3]
    code, _ = strike(machine, moment, number, CLAIMS[claim])
    assert code == (0 if (claim, moment) == ("hold", "printing") else 128 + number)
    for job in ("job", "other", KEY):
        assert machine.look(job)["status"] == "free"
        assert not machine.look(job).get("waiting")


@pytest.mark.parametrize("moment", ["committed", "answered"])
def test_what_the_session_had_before_is_not_given_back(moment: str, machine: Machine) -> None:
    session = machine.run("session", "open", "-q")[1].strip()
    machine.env["DIBS_SESSION"] = session
    assert machine.run("claim", "mine")[0] == 0
    assert strike(machine, "answered", signal.SIGTERM, ("dibs", "claim", "mine"))[0] == 143
    assert machine.look("mine")["status"] == "held"
    assert strike(machine, moment, signal.SIGTERM, ("dibs", "claim", "job"))[0] == 143
    assert machine.look("job")["status"] == "free"
    assert machine.run("session", "show", "-q")[1].split() == ["mine"]


def test_a_claim_with_a_request_key_of_the_callers_own_can_be_asked_for_again(machine: Machine) -> None:
    words = ("dibs", "claim", "job", "-q", "--request-key", "mine")
    assert strike(machine, "answered", signal.SIGTERM, words)[0] == -signal.SIGTERM
    code, lease = machine.run(*words[1:])
    assert code == 0
    assert machine.run("release", "job", "--lease", lease.strip())[0] == 0


def test_a_waiter_that_is_interrupted_as_it_is_granted_gives_back(machine: Machine) -> None:
    lease = machine.run("claim", "job", "-q")[1]
    words = [sys.executable, str(INTERRUPTED), "printing", "15", "dibs", "claim", "job", "--wait", "20s"]
    waiter = subprocess.Popen(words, env=machine.env, stdout=subprocess.PIPE, text=True)
    machine.until(lambda: machine.look("job").get("waiting") == 1)
    assert machine.run("release", "job", "--lease", lease.strip())[0] == 0
    assert finished(waiter)[0] == 143
    assert machine.look("job")["status"] == "free"


def test_an_answer_that_nobody_reads_is_given_back(machine: Machine) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = machine.start("claim", "job", stdout=writing)
    os.close(writing)
    _, err = child.communicate(timeout=50)
    assert child.returncode == 70
    assert "the claim was given back" in err
    assert machine.look("job")["status"] == "free"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    folder = tmp_path / "server"
    folder.mkdir()
    with ServerProcess(folder, bind="127.0.0.1:0") as server:
        yield server


@pytest.mark.parametrize("claim", ["claim", "claim --wait", "claim-all", "run", "hold", "rlock"])
def test_at_a_server_an_interrupted_claim_leaves_nothing_behind(
    claim: str, machine: Machine, server: ServerProcess
) -> None:
    machine.env |= {"DIBS_URL": server.url, "DIBS_TOKEN": server.token}
    transport = server.transport()
    for moment, number in (("asked", signal.SIGINT), ("answered", signal.SIGTERM)):
        assert strike(machine, moment, number, CLAIMS[claim])[0] == 128 + number
        for job in ("job", KEY):
            assert (transport.ask(Ask("inspect", job)).body or {})["status"] == "free"
    transport.close()


def test_at_a_git_remote_an_interrupted_claim_leaves_nothing_behind(
    machine: Machine, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    git = need_program("git")
    remote = tmp_path / "remote.git"
    subprocess.run([git, "init", "-q", "--bare", str(remote)], check=True)
    machine.env |= {"DIBS_URL": f"git+file://{remote}"}
    for moment in ("committed", "answered"):
        assert strike(machine, moment, signal.SIGTERM, CLAIMS["claim"])[0] == 143
    assert machine.run("owner", "job", "--json")[0] == 1


def told_or_free(machine: Machine, chance: random.Random, words: tuple[str, ...], look: Any) -> None:
    """Interrupt a claim at some moment. Exit code 0: it is held by the lease it printed; else it is free."""
    child = machine.start(*words, start_new_session=True)
    pause(chance.uniform(0.02, 0.25))
    child.send_signal(chance.choice(SIGNALS))
    out, err = child.communicate(timeout=50)
    held = look("job").get("status") == "held"
    assert held is (child.returncode == 0), (child.returncode, out, err)
    if held:
        assert machine.run("release", "job", "--lease", out.split()[0])[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [("claim", "job", "-q"), ("claim", "job", "-q", "--wait", "5s")])
def test_at_whatever_moment_it_is_interrupted_it_is_reported_or_free(words: tuple[str, ...], machine: Machine) -> None:
    chance = random.Random(7)
    for _ in range(250):
        told_or_free(machine, chance, words, machine.look)


@pytest.mark.slow
def test_at_a_server_too(machine: Machine, server: ServerProcess) -> None:
    machine.env |= {"DIBS_URL": server.url, "DIBS_TOKEN": server.token}
    transport, chance = server.transport(), random.Random(8)
    for _ in range(250):
        told_or_free(machine, chance, ("claim", "job", "-q"), lambda job: transport.ask(Ask("inspect", job)).body)
    transport.close()


@pytest.mark.quick
@pytest.mark.fault("F-453")
def test_no_source_executes_text() -> None:
    """An interrupt inside `exec` of a text is taken for an unhandled one when the program ends, even if it was
    handled: so nothing of dibs is made that way."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "src").rglob("*.py")
        if re.search(r"\b(exec|eval|compile)\(", text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("exec", "eval", "compile")
    ]
    assert found == []


# It is struck while the first module of what it simulates is looked for.
SIMULATED = """
import os, sys
from dibs.cli.main import entry
class Striking:
    def find_spec(self, name, *_):
        if name == "dibs.testing.simulation":
            os.kill(os.getpid(), int(os.environ["NUMBER"]))
sys.meta_path.insert(0, Striking())
sys.argv = ["dibs", "simulate", "--operations", "1000000000"]
sys.exit(entry())
"""


@pytest.mark.fault("F-487")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_simulation_that_is_interrupted_while_it_is_imported_ends_as_later(number: signal.Signals) -> None:
    env = {**os.environ, "NUMBER": str(int(number))}
    words = [sys.executable, "-c", SIMULATED]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + number, "", "")
