"""One agent is one holder in hooks, shells and MCP, also where its client tells only hooks who it is; and what it holds
ends with its client's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.plugins.harness.conftest import Yard

PROGRAM = Path(__file__).parent / "client_program.py"
pytestmark = [pytest.mark.linux("elsewhere the process above a shell may not be seen"), pytest.mark.full]


class Client:
    """A client with an agent. `session` is the one that its hooks are told."""

    def __init__(self, yard: Yard, session: str, harness: str = "codex", **more: str) -> None:
        self.session, self.harness = session, harness
        self.folder = yard.folder
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), harness],
            env={**yard.env, **more},
            cwd=yard.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, what: str, given: Any, **env: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, given, env]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def hook(self, name: str, tool: str = "", given: Any = None, *, how: str = "hook", session: str = "") -> int:
        document = {"session_id": session or self.session, "cwd": str(self.folder), "hook_event_name": name}
        document |= {"tool_name": tool, "tool_input": given} if tool else {}
        code, _, told = self._ask(how, document)
        assert "because" not in told, told
        return int(code)

    def start(self) -> None:
        assert self.hook("SessionStart") == 0

    def edits(self, file: str, *, how: str = "hook", session: str = "") -> bool:
        given = {"file_path": str(self.folder / file), "content": "y"}
        name = "BeforeTool" if self.harness == "gemini" else "PreToolUse"
        return self.hook(name, "write_file", given, how=how, session=session) == 0

    def shell(self, line: str, **env: str) -> tuple[int, str]:
        code, told, _ = self._ask("shell", line.replace("dibs ", f"{sys.executable} -m dibs "), **env)
        return code, told

    def tool(self, name: str, **arguments: Any) -> Any:
        return self._ask("tool", {"name": name, "arguments": arguments})

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S_MAX)


@pytest.fixture
def client(yard: Yard) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def start(*words: str, **more: str) -> Client:
        made.append(Client(yard, *words, **more))
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.mark.promise("agent:identity")
@pytest.mark.fault("F-142")
def test_a_tools_claim_is_that_of_the_hooks_of_the_same_client(client: Callable[..., Client]) -> None:
    one, two = client("01a1e36e-608e-7973-9d64-cee1c85c03b3"), client("01a1e36e-608e-7973-9d64-00000000aaaa")
    one.start()
    two.start()
    claimed = one.tool("claim_job", job="path:src/a")
    assert (claimed["claimed"], claimed["owner"]) == (True, "codex-03b3 in app@main")
    assert one.edits("src/a")
    assert not two.edits("src/a")
    assert not two.tool("claim_job", job="path:src/a")["claimed"]
    assert two.edits("src/b")


@pytest.mark.promise("agent:identity")
@pytest.mark.fault("F-308")
@pytest.mark.parametrize(("harness", "sign"), [("gemini", "GEMINI_CLI"), ("opencode", "OPENCODE")])
def test_a_shell_that_is_told_only_which_harness_runs_it_is_the_agents(
    client: Callable[..., Client], harness: str, sign: str
) -> None:
    one, two = client("ses_fa2d3fcb1111", harness), client("ses_6f2838812222", harness)
    for each in (one, two):
        each.start()
    code, told = one.shell("dibs claim path:src/a && dibs claim issue-7", **{sign: "1"})
    assert (code, f"{harness}-" in told) == (0, True), told
    assert one.edits("src/a")
    assert not two.edits("src/a")
    assert one.shell("dibs heartbeat issue-7", **{sign: "1"})[0] == 0
    # Its own id is no other name.
    assert one.shell("dibs heartbeat issue-7 --actor ses_fa2d3fcb1111", **{sign: "1"})[0] == 0
    assert one.shell("dibs heartbeat issue-7 --actor ses_6f2838812222", **{sign: "1"})[0] == 64
    # A script of the agent is not the agent.
    assert one.shell("bash -c 'dibs claim issue-7 || exit 9'; exit $?", **{sign: "1"})[0] == 9
    assert one.shell("bash -c 'dibs release issue-7 || exit 9'; exit $?", **{sign: "1"})[0] == 0


def test_the_files_of_a_client_that_was_killed_are_free_at_once(client: Callable[..., Client]) -> None:
    one, two = client("s-1", "gemini"), client("s-2", "gemini")
    one.start()
    two.start()
    assert one.edits("src/a")
    assert not two.edits("src/a")
    one.end()
    assert "src/a" not in two.shell("dibs list")[1]
    assert two.edits("src/a")


def test_a_process_that_becomes_known_after_the_first_claim_is_watched_then(client: Callable[..., Client]) -> None:
    one, two = client("s-1", "gemini"), client("s-2", "gemini")
    assert one.edits("src/a")  # the first hook: nothing is known of its client yet
    assert one.edits("src/b")
    one.end()
    assert two.edits("src/a")
    assert two.edits("src/b")


@pytest.mark.promise("agent:identity")
def test_a_client_that_runs_two_sessions_is_neither(client: Callable[..., Client]) -> None:
    one = client("s-1", "gemini")
    for session in ("s-1", "s-2"):
        assert one.hook("SessionStart", session=session) == 0
    assert one.edits("src/a", session="s-1")
    assert not one.edits("src/a", session="s-2")
    assert not one.tool("claim_job", job="path:src/a")["claimed"]
    assert one.tool("claim_job", job="issue-7")["owner"].startswith("c-")
    assert one.hook("SessionEnd", session="s-2") == 0
    assert one.shell("dibs claim path:src/a", GEMINI_CLI="1")[0] == 0


def test_a_wrapper_that_ends_with_each_hook_is_not_taken_for_the_client(client: Callable[..., Client]) -> None:
    one, two = client("s-1", "gemini"), client("s-2", "gemini")
    for file in ("src/a", "src/b", "src/a"):
        assert one.edits(file, how="wrapped hook")
    assert not two.edits("src/a")
    assert not two.edits("src/b")


def test_a_resumed_session_keeps_its_files_though_its_first_hook_does_not_know_its_process(
    client: Callable[..., Client],
) -> None:
    one, two = client("s-1", "gemini"), client("s-2", "gemini")
    one.start()
    assert one.edits("src/a")
    one.end()
    again = client("s-1", "gemini")
    assert again.edits("src/b")
    assert not two.edits("src/a")
    assert again.edits("src/c")
    again.end()
    assert two.edits("src/a")


@pytest.mark.parametrize("order", ["tool first", "hook first"])
@pytest.mark.fault("F-143")
def test_a_killed_claude_frees_its_files_whether_it_claims_by_a_tool_or_a_hook_first(
    client: Callable[..., Client], yard: Yard, order: str
) -> None:
    one = client("3f2a77c0-1111", "claude")
    environment = {"CLAUDE_CODE_SESSION_ID": one.session}
    hooked = {**environment, "CLAUDE_PID": str(one.process.pid)}
    given = {"file_path": str(yard.folder / "src/b"), "content": "y"}
    edit: dict[str, Any] = {"session_id": one.session, "cwd": str(yard.folder), "hook_event_name": "PreToolUse"}
    edit |= {"tool_name": "Write", "tool_input": given}
    asks: list[tuple[str, Any, dict[str, str]]] = [
        ("tool", {"name": "claim_job", "arguments": {"job": "issue-42"}}, environment),
        ("hook", edit, hooked),
    ]
    for what, asked, env in asks if order == "tool first" else reversed(asks):
        one._ask(what, asked, **env)
    two = client("9b01cdef-2222", "claude")
    assert not two.edits("src/b")
    one.end()
    assert two.edits("src/b")
    assert two.shell("dibs claim issue-42")[0] == 0


def test_notes_of_clients_that_have_ended_are_removed(client: Callable[..., Client], yard: Yard) -> None:
    folder = Path(yard.env["XDG_STATE_HOME"]) / "dibs" / "clients"
    for number in range(3):
        one = client(f"s-{number}")
        one.start()
        assert len(os.listdir(folder)) == 1
        assert (folder / os.listdir(folder)[0]).stat().st_mode & 0o777 == 0o600
        one.end()
