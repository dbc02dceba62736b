"""Guarded commands that stand in line: first come, first served, over agents and work trees, and never longer than the
client waits for its hook."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.repository.settings import AgentSettings
from dibs.base.errors import InvalidInput
from dibs.client.naming import namespace_around
from tests.docs.pages import DOCS, blocks, read
from tests.faults.cluster import TOKEN, Cluster
from tests.programs import DIBS, WAIT_S_MAX, dibs_here

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.harness.conftest import AgentProcess, Yard

WAITING = """\
[[agent.command]]
match = "make test"
claim = "test-gate"
wait = "60s"

[[agent.command]]
match = "git push"
claim = "branch:{branch}"
"""


@pytest.fixture
def gated(yard: Yard) -> Yard:
    (yard.folder / ".dibs.toml").write_text(WAITING)
    return yard


class Asking:
    """A hook in a process of its own, before a shell command."""

    def __init__(self, agent: AgentProcess, command: str, limit: str = "60s") -> None:
        document = agent.document("PreToolUse", "Bash", {"command": command})
        self._process = subprocess.Popen(
            [*DIBS, "agent", "hook", "--limit", limit],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=agent.env,
            cwd=agent.folder,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document))
        self._process.stdin.close()
        self._process.stdin = None

    def answer(self) -> tuple[int, str]:
        _, err = self._process.communicate(timeout=WAIT_S_MAX)
        return self._process.returncode, err

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=WAIT_S_MAX)

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None


def ended(agent: AgentProcess, command: str = "make test") -> None:
    agent.tell("PostToolUse", tool_name="Bash", tool_input={"command": command})


def gate(yard: Yard) -> dict[str, Any]:
    """How the job stands. In a repository that nobody trusts it is the repository's own."""
    place = str(namespace_around(yard.env, str(yard.folder)))
    told = dibs_here(yard.env, yard.folder, "owner", "test-gate", "--json", "--namespace", place).stdout
    found: dict[str, Any] = json.loads(told)["data"]
    return found


def until_waiting(yard: Yard, count: int, asking: Asking) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < end:
        if gate(yard).get("waiting", 0) == count:
            return
        assert not asking.is_over, asking.answer()
        time.sleep(0.02)
    raise AssertionError(f"{count} never waited")


@pytest.mark.e2e
@pytest.mark.promise("agent:gate")
def test_a_guarded_command_runs_when_its_turn_comes_in_the_order_of_arrival(gated: Yard) -> None:
    agents = [gated.agent(f"{number}{number}{number}{number}-{number}") for number in range(4)]
    assert agents[0].shell("make test")
    line = []
    for number, agent in enumerate(agents[1:], 1):
        line.append(Asking(agent, "timeout 60 make -j2 test"))
        until_waiting(gated, number, line[-1])
    for before, agent, asking in zip(agents, agents[1:], line, strict=False):
        assert not asking.is_over
        ended(before)
        assert asking.answer() == (0, "")
        assert gate(gated)["owner"].startswith(f"claude-{agent.session[:4]}")


@pytest.mark.e2e
@pytest.mark.promise("agent:gate")
def test_a_hook_refuses_before_its_client_gives_up_and_the_next_ask_keeps_the_place(gated: Yard) -> None:
    one, two, three = [gated.agent(f"{name}-1") for name in ("1111", "2222", "3333")]
    assert one.shell("make test")
    begun = time.monotonic()
    asking = Asking(two, "make test", "4s")
    exit_code, text = asking.answer()
    assert (exit_code, time.monotonic() - begun < WAIT_S_MAX) == (2, True)
    assert "it is not your turn yet" in text
    assert "claude-1111" in text
    assert "number 1 in line" in text
    assert "Ask again" in text
    later = Asking(three, "make test")
    until_waiting(gated, 2, later)
    again = Asking(two, "make test")
    ended(one)
    assert again.answer() == (0, "")
    assert not later.is_over
    ended(two)
    assert later.answer() == (0, "")


@pytest.mark.e2e
def test_a_turn_that_comes_while_nobody_listens_does_not_last_as_long_as_the_agent(gated: Yard) -> None:
    one, two = gated.agent("1111-1"), gated.agent("2222-2")
    assert one.shell("make test")
    asking = Asking(two, "make test")
    until_waiting(gated, 1, asking)
    asking.kill()
    ended(one)
    assert gate(gated)["remaining_ms"] <= 20_000
    assert two.shell("make test")  # the agent that comes back has it, and now it lasts
    assert gate(gated)["remaining_ms"] > 60_000


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.fault("F-622")
@pytest.mark.promise("agent:gate")
def test_a_turn_comes_over_servers_too_and_another_server_knows_the_place_when_one_is_killed(
    gated: Yard, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, f"sqlite://{tmp_path}/shared.db", stack)
        cluster.start(2)
        gated.env = {**gated.env, "DIBS_URL": cluster.url, "DIBS_TOKEN": TOKEN}
        one, two, three = [gated.agent(f"{name}-1") for name in ("1111", "2222", "3333")]
        assert one.shell("make test")
        asking = Asking(two, "make test")
        until_waiting(gated, 1, asking)
        ended(one)
        assert asking.answer() == (0, "")
        assert gate(gated)["remaining_ms"] > 60_000, "it lasts as long as the agent"
        asking = Asking(three, "make test")
        until_waiting(gated, 1, asking)
        cluster.hit("killed")
        ended(two)
        assert asking.answer() == (0, "")
        assert gate(gated)["owner"].startswith("claude-3333")


@pytest.mark.fault("F-623")
@pytest.mark.promise("agent:command")
def test_a_guarded_command_that_goes_on_in_the_background_keeps_its_job_until_the_agent_stops(gated: Yard) -> None:
    claude, copilot, gemini = [gated.agent(f"{name}-1", name) for name in ("claude", "copilot", "gemini")]
    other = gated.agent("2222-2")
    long = "<command with shellId: 0 is still running after 30 seconds. The command is still running but hasn't …>"
    background = {"command": "git push", "run_in_background": True}
    for agent, after in (
        (claude, claude.document("PostToolUse", "Bash", background)),
        (gemini, gemini.document("AfterTool", "run_shell_command", {"command": "git push", "is_background": True})),
        (
            copilot,
            copilot.document("postToolUse", "bash", {"command": "git push"}, toolResult={"textResultForLlm": long}),
        ),
    ):
        assert agent.shell("git push")
        assert agent.send(after).returncode == 0
        assert not other.shell("git push"), agent.harness
        agent.send(agent.document("AfterAgent" if agent is gemini else "Stop"))
        assert other.shell("git push"), agent.harness
        ended(other, "git push")


def test_a_command_without_a_wait_is_refused_at_once(gated: Yard) -> None:
    one, two = gated.agent("1111-1"), gated.agent("2222-2")
    assert one.shell("git push")
    done = two.send(two.document("PreToolUse", "Bash", {"command": "make test && git push"}), "--limit", "60s")
    assert done.returncode == 2
    assert "branch:main" in done.stderr
    assert "your turn" not in done.stderr
    assert one.shell("make test")  # nothing of what was refused is left


@pytest.mark.parametrize("limit", ["0s", "3s"])
def test_a_limit_that_leaves_no_time_to_wait_refuses_at_once(gated: Yard, limit: str) -> None:
    one, two = gated.agent("1111-1"), gated.agent("2222-2")
    assert one.shell("make test")
    done = two.send(two.document("PreToolUse", "Bash", {"command": "make test"}), "--limit", limit)
    assert (done.returncode, "your turn" in done.stderr) == (2, False)


@pytest.mark.parametrize("wait", ["soon", "", 5, "-1s"])
def test_a_wait_that_is_no_time_is_refused_and_named(wait: object) -> None:
    with pytest.raises(InvalidInput, match="here: "):
        AgentSettings({"command": [{"match": "x", "claim": "y", "wait": wait}]}, "here")


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.promise("agent:gate")
def test_the_recipe_of_a_merge_queue_merges_four_branches_at_once_with_real_git(yard: Yard, tmp_path: Path) -> None:
    page = blocks(read(DOCS / "how-to" / "recipes.md"))
    recipe = next(block.text for block in page if "merge-queue" in block.text)
    (yard.folder / ".dibs.toml").write_text(recipe)
    yard.git("add", ".dibs.toml")
    yard.git("commit", "-q", "-m", "gate")
    agents = []
    for number in range(4):
        tree = tmp_path / f"tree-{number}"
        yard.git("worktree", "add", "-q", "-b", f"agent-{number}", str(tree))
        (tree / f"made-{number}").write_text("x\n")
        for words in (("add", "-A"), ("commit", "-q", "-m", f"made {number}")):
            yard.git("-C", str(tree), *words)
        agents.append(yard.agent(f"{number}{number}{number}{number}-{number}", folder=tree))

    def merge(number: int) -> tuple[int, str]:
        agent, command = agents[number], f"cd {yard.folder} && git merge --no-ff -m 'merge {number}' agent-{number}"
        answered = Asking(agent, command).answer()
        if answered[0]:
            return answered
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, "merge", "-q", "--no-ff", "-m", f"merge {number}", f"agent-{number}"],
            cwd=yard.folder,
            env=yard.env,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )
        ending = agent.document("PostToolUse", "Bash", {"command": command})
        assert agent.send(ending).returncode == 0
        return done.returncode, done.stderr

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(merge, range(4))) == [(0, "")] * 4
    assert {path.name for path in yard.folder.glob("made-*")} == {f"made-{number}" for number in range(4)}
