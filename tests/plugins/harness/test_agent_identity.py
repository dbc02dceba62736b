"""One agent session is one holder, in all of its shells, without a lease id; two agents are two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.agents.harness.agent_identity import Agent, agents_of
from dibs.cli.framework.registry import AGENT_SESSIONS
from tests.programs import WAIT_S_MAX, clean_env

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE, TWO = "3f2a77c0-1111-4a4a-8b8b-000000000001", "9b01cdef-2222-4a4a-8b8b-000000000002"


class Harness:
    """A program that runs an agent: it starts a shell for each command, and names the agent's session there."""

    def __init__(self, env: dict[str, str], folder: Path, session: str, **more: str) -> None:
        self.env = {**env, "CLAUDE_CODE_SESSION_ID": session, **more}
        self.folder = folder

    def __call__(self, line: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            env={**self.env, **more},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "dibs"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dibs "$@"\n')
    program.chmod(0o755)
    return clean_env(tmp_path / "state", PATH=f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True, timeout=WAIT_S_MAX)
    return folder


@pytest.fixture
def one(env: dict[str, str], app: Path) -> Harness:
    return Harness(env, app, ONE)


@pytest.fixture
def two(env: dict[str, str], app: Path) -> Harness:
    return Harness(env, app, TWO)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the harness."""
    made = subprocess.Popen(["sleep", "600"])
    yield made
    made.kill()
    made.wait(WAIT_S_MAX)


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
@pytest.mark.promise("agent:identity")
def test_every_shell_of_an_agent_proves_what_another_shell_claimed(one: Harness, two: Harness) -> None:
    assert one("dibs claim issue-7").returncode == 0
    assert one("dibs claim issue-7").returncode == 0
    assert one("dibs heartbeat issue-7 --checkpoint half").returncode == 0
    refused = two("dibs claim issue-7")
    assert (refused.returncode, "claude-3f2a in app@main" in refused.stdout) == (1, True)
    assert two("dibs release issue-7").returncode == 2
    assert one("dibs release issue-7").returncode == 0
    assert two("dibs claim issue-7").returncode == 0


@pytest.mark.promise("agent:identity")
def test_the_workers_of_a_script_are_not_taken_for_the_agent(one: Harness) -> None:
    (one.folder / "work.sh").write_text("dibs claim -q issue-7 >/dev/null && echo mine >> won\n")
    one("bash work.sh & bash work.sh & bash work.sh & wait")
    assert (one.folder / "won").read_text() == "mine\n"
    python = f"{sys.executable} -c 'import os; os.system(\"dibs claim issue-8\")'"
    one(python)
    assert one("dibs claim issue-8").returncode == 1


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
def test_a_subshell_and_a_pipeline_are_still_the_agent(one: Harness) -> None:
    assert one("(dibs claim issue-7) | cat; timeout 60 dibs claim issue-8").returncode == 0
    assert one("x=$(dibs release issue-7) && dibs release issue-8").returncode == 0


def test_an_empty_actor_turns_it_off_and_a_name_or_a_session_wins(one: Harness) -> None:
    assert one("dibs claim issue-7", DIBS_ACTOR="").returncode == 0
    assert one("dibs release issue-7", DIBS_ACTOR="").returncode == 64
    assert json.loads(one("dibs claim issue-8 --json", DIBS_ACTOR="me").stdout)["data"]["owner"] == "me"
    session = one("dibs session open -q --owner in-session").stdout.strip()
    told = one("dibs claim issue-9 --json", DIBS_SESSION=session).stdout
    assert json.loads(told)["data"]["owner"] == "in-session"


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
@pytest.mark.promise("agent:identity")
@pytest.mark.fault("F-307")
@pytest.mark.parametrize(
    "variable", [AGENT_SESSIONS[0], *[pytest.param(each, marks=pytest.mark.full) for each in AGENT_SESSIONS[1:]]]
)
@pytest.mark.parametrize("how", ['--actor "$ID"', 'DIBS_ACTOR="$ID"'])
def test_an_agent_that_names_itself_by_the_id_of_its_session_is_itself(
    env: dict[str, str], app: Path, variable: str, how: str
) -> None:
    agent = Harness(env, app, ONE)
    del agent.env["CLAUDE_CODE_SESSION_ID"]
    agent.env[variable] = ONE

    def named(command: str) -> str:
        line = f"dibs {command} {how}" if how.startswith("--") else f"{how} dibs {command}"
        return line.replace("$ID", f"${variable}")

    claimed = agent(f"{named('claim path:src/a')} && dibs claim issue-7 && {named('lock acquire path:src')}")
    assert claimed.returncode == 0, claimed
    assert "-3f2a in app@main" in claimed.stdout
    assert agent("dibs heartbeat path:src/a").returncode == 0
    assert agent(named("heartbeat issue-7")).returncode == 0
    assert len(json.loads(agent("dibs session list --json").stdout)["data"]["sessions"]) == 1
    assert agent("dibs claim issue-7 --actor another").returncode == 1
    released = agent(named("release --mine"))
    assert (released.returncode, released.stdout.count("Released")) == (0, 3), released


def test_dibs_run_in_an_agents_shell_excludes_another_run_of_the_same_agent(one: Harness) -> None:
    line = "dibs run issue-7 -- dibs run issue-7 --no-wait -- true; dibs claim issue-7"
    done = one(line)
    assert done.returncode == 0, done


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
def test_the_claims_end_with_the_process_of_the_harness(
    one: Harness, two: Harness, process: subprocess.Popen[bytes]
) -> None:
    one("dibs claim issue-7", CLAUDE_PID=str(process.pid))
    assert two("dibs claim issue-7").returncode == 1
    process.kill()
    process.wait(WAIT_S_MAX)
    assert two("dibs claim issue-7").returncode == 0


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
def test_a_resumed_agent_keeps_its_claims_in_its_new_process(
    one: Harness, two: Harness, process: subprocess.Popen[bytes]
) -> None:
    one("dibs claim issue-7; dibs claim path:src/a", CLAUDE_PID=str(process.pid))
    process.kill()
    process.wait(WAIT_S_MAX)
    assert one("dibs claim issue-8", CLAUDE_PID=str(os.getpid())).returncode == 0
    assert two("dibs claim issue-7").returncode == 1
    assert two("dibs claim path:src/a").returncode == 1
    assert one("dibs release path:src/a", CLAUDE_PID=str(os.getpid())).returncode == 0


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
def test_an_agent_that_an_agent_runs_is_itself(one: Harness, two: Harness) -> None:
    assert one("dibs claim issue-7").returncode == 0
    inner = (
        "import os, subprocess, sys; env = {**os.environ, 'CODEX_THREAD_ID': 'thread-5'};"
        "sys.exit(subprocess.call(['bash', '-c', sys.argv[1]], env=env))"
    )
    assert one(f"{sys.executable} -c \"{inner}\" 'dibs claim issue-7'").returncode == 1
    assert one(f"{sys.executable} -c \"{inner}\" 'dibs claim issue-8 && dibs release issue-8'").returncode == 0


@pytest.mark.linux("ps does not show environments, which tell an agent's shell")
def test_two_first_claims_of_one_agent_at_once_open_one_session(one: Harness) -> None:
    done = one("dibs claim a & dibs claim b & dibs claim c & wait; dibs release a b c")
    assert done.returncode == 0, done


def test_an_agent_whose_sandbox_forbids_the_store_is_told_of_the_tools_outside(one: Harness) -> None:
    refused = one("dibs claim issue-7", DIBS_URL="sqlite:///proc/none/dibs.db")
    assert (refused.returncode, "MCP server" in refused.stderr) == (69, True), refused.stderr


def test_names_shown_are_short_and_printable() -> None:
    assert Agent("claude", ONE).owner("app@main") == "claude-3f2a in app@main"
    assert Agent("codex", "thread-5").owner("") == "codex-5"
    assert Agent("codex", "01a1e36e-608e-7973-9d64-cee1c85c03b3").owner("") == "codex-03b3"
    assert Agent("opencode", "ses_e1a7c6cfdffeT36SQ0dfEpEW91").owner("") == "opencode-EW91"
    assert Agent("claude", "ad2db371-48c8-4381-ae6a-be3c55016ea8").owner("") == "claude-ad2d"
    assert Agent("claude", ONE, "agent-1f2e3d").owner("app") == "claude-3f2a/1f2e in app"
    assert agents_of({"CLAUDE_CODE_SESSION_ID": "no\x1bescape"}) == []
    assert agents_of({"CLAUDE_CODE_SESSION_ID": ""}) == []
