"""Agents of several harnesses in one checkout at once, each hook call a process of its own."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dibs.agents.harness.agent_identity import HARNESSES
from tests.build import tries
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.plugins.harness.conftest import AgentProcess, Yard

pytestmark = [pytest.mark.e2e, pytest.mark.full]
FILES = ("src/a", "src/b")
ROUNDS = tries(2, 3)
STOPS = {"claude": "Stop", "codex": "Stop", "gemini": "AfterAgent", "cursor": "stop", "copilot": "Stop"}
AGENTS = 20
EDITS = tries(10, 200)


def work(agent: AgentProcess, rounds: int = ROUNDS, files: Sequence[str] = FILES) -> tuple[int, int]:
    """Edit in turns: how many edits were made, and how many were gone before the agent let go of the file."""
    made = overwritten = 0
    for number in range(rounds):
        file = agent.folder / files[number % len(files)]
        if not agent.edit(str(file.relative_to(agent.folder))):
            continue
        made += 1
        text = f"{agent.session} {number}\n"
        file.write_text(text)
        agent.shell("make test")
        overwritten += file.read_text() != text
        if agent.harness not in STOPS:
            break  # Windsurf has no such event: it keeps what it has
        file.write_text("x\n")  # as committed
        agent.send(agent.document(STOPS[agent.harness]))
    return made, overwritten


@pytest.mark.promise("agent:guard")
def test_no_edit_is_overwritten_when_agents_of_all_harnesses_edit_the_same_files(yard: Yard) -> None:
    agents = [yard.agent(f"swarm-{number}{number}", name) for number, name in enumerate(HARNESSES)]
    with ThreadPoolExecutor(len(agents)) as pool:
        results = list(pool.map(work, agents))
    assert sum(made for made, _ in results) > 0
    assert sum(overwritten for _, overwritten in results) == 0


@pytest.mark.promise("agent:guard")
@pytest.mark.parametrize(
    "harness",
    [pytest.param(name, marks=() if name in ("claude", "gemini") else pytest.mark.slow) for name in sorted(STOPS)],
)
def test_an_agent_that_is_alone_is_never_refused(yard: Yard, harness: str) -> None:
    one = yard.agent("alone-1111", harness)
    assert one.edit("src/a")
    assert one.shell("sed -i s/x/y/ src/a; echo > src/new; rm -rf src")
    (yard.folder / "src/a").write_text("changed\n")
    one.send(one.document("AfterTool" if harness == "gemini" else "PostToolUse"))
    assert one.edit("src/a", agent_id="sub-1")
    assert one.edit("src/new")
    one.send(one.document(STOPS[harness]))
    assert one.edit("src/a")
    assert one.edit("src/c")


def test_an_agent_that_is_resumed_in_another_process_keeps_its_files(yard: Yard) -> None:
    process = subprocess.Popen(["sleep", "600"])
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    one.env = {**yard.env, "CLAUDE_PID": str(process.pid)}
    try:
        assert one.edit("src/a")
        assert one.edit("src/b")
        assert not two.edit("src/a")
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)
    one.env = {**yard.env, "CLAUDE_PID": str(os.getpid())}
    assert one.edit("src/c")  # resumed, before anybody noticed
    assert not two.edit("src/b")


def test_an_agent_whose_process_is_gone_lets_others_go_on(yard: Yard) -> None:
    process = subprocess.Popen(["sleep", "600"])
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    one.env = {**yard.env, "CLAUDE_PID": str(process.pid)}
    try:
        assert one.edit("src/a")
        assert one.edit("src/a", agent_id="sub-1")
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)
    assert two.edit("src/a")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.promise("agent:guard")
def test_no_edit_of_twenty_agents_is_overwritten(yard: Yard) -> None:
    names = list(STOPS)
    agents = [yard.agent(f"swarm-{number:04}", names[number % len(names)]) for number in range(AGENTS)]
    with ThreadPoolExecutor(AGENTS) as pool:
        results = list(pool.map(lambda agent: work(agent, EDITS, ("src/a", "src/b", "src/c")), agents))
    assert sum(made for made, _ in results) >= EDITS
    assert sum(overwritten for _, overwritten in results) == 0


def test_no_edit_is_overwritten_while_harnesses_crash_beside(yard: Yard) -> None:
    """Agents whose process is killed after every edit, beside one that lives: what the dead had goes on to others."""

    def crash(agent: AgentProcess) -> int:
        made = 0
        for number in range(ROUNDS):
            process = subprocess.Popen(["sleep", "600"])
            agent.session = f"crash-{number}"
            agent.env = {**yard.env, "CLAUDE_PID": str(process.pid)}
            made += agent.edit(FILES[number % len(FILES)])
            process.kill()
            process.wait(WAIT_S_MAX)
        return made

    with ThreadPoolExecutor(2) as pool:
        crashed = pool.submit(crash, yard.agent("crash"))
        made, overwritten = work(yard.agent("steady-1111"), 2 * ROUNDS)
        assert crashed.result() + made > 0
    assert overwritten == 0
    assert yard.agent("last-9999").edit("src/a")


def test_agents_in_two_work_trees_edit_at_once_and_each_is_kept_apart_in_its_own(yard: Yard, tmp_path: Path) -> None:
    other = tmp_path / "other"
    yard.git("worktree", "add", "-q", str(other))
    agents = [
        yard.agent(f"tree-{number}{number}", folder=folder)
        for number, folder in enumerate((yard.folder, yard.folder, other, other))
    ]
    with ThreadPoolExecutor(len(agents)) as pool:
        results = list(pool.map(work, agents))
    assert all(sum(made for made, _ in pair) > 0 for pair in (results[:2], results[2:]))
    assert sum(overwritten for _, overwritten in results) == 0
