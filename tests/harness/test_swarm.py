"""Agents of several harnesses in one checkout at once, each hook call a process of its own."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.processes import WAIT_S_MAX

if TYPE_CHECKING:
    from tests.harness.conftest import AgentProcess, Yard

FILES = ("src/a", "src/b")
ROUNDS = 3
STOPS = {"claude": "Stop", "codex": "Stop", "gemini": "AfterAgent", "cursor": "stop"}


def work(agent: AgentProcess) -> tuple[int, int]:
    """Edit in turns: how many edits were made, and how many were gone before the agent let go of the file."""
    made = overwritten = 0
    for number in range(ROUNDS):
        file = agent.folder / FILES[number % len(FILES)]
        if not agent.edit(str(file.relative_to(agent.folder))):
            continue
        made += 1
        text = f"{agent.session} {number}\n"
        file.write_text(text)
        agent.shell("make test")
        overwritten += file.read_text() != text
        file.write_text("x\n")  # as committed
        agent.send(agent.document(STOPS[agent.harness]))
    return made, overwritten


@pytest.mark.promise("agent:guard")
def test_no_edit_is_overwritten_when_agents_of_four_harnesses_edit_the_same_files(yard: Yard) -> None:
    agents = [yard.agent(f"swarm-{number}{number}", name) for number, name in enumerate(STOPS)]
    with ThreadPoolExecutor(len(agents)) as pool:
        results = list(pool.map(work, agents))
    assert sum(made for made, _ in results) > 0
    assert sum(overwritten for _, overwritten in results) == 0


@pytest.mark.promise("agent:guard")
@pytest.mark.parametrize("harness", sorted(STOPS))
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
