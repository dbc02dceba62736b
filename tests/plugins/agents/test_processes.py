"""`dibs mcp` as a process: what happens when the client goes, and when the server does."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import pytest

from dibs.system import table
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, clean_env, dibs, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]

# A client that starts `dibs mcp` on pipes of its own, passes on what it is told, and can be killed.
CLIENT = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(server.pid, flush=True)
for line in sys.stdin.buffer:
    server.stdin.write(line)
    server.stdin.flush()
    if b'"id"' in line:
        sys.stdout.buffer.write(server.stdout.readline())
        sys.stdout.buffer.flush()
"""
OF_AGENTS = pytest.mark.linux("ps does not show environments, which tell an agent's shell")
HELLO = {
    "capabilities": {},
    "clientInfo": {"name": "test client", "version": "1"},
}


class Connection:
    """JSON-RPC over the pipes of a process, line by line."""

    def __init__(self, env: Mapping[str, str], words: list[str], folder: Path | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, env=env, cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        self.process.wait(WAIT_S_MAX)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def send(self, document: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(document).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._id += 1
        self.send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        return json.loads(self.line())["result"]

    def begin(self, version: str = "2025-11-25") -> Self:
        assert self.ask("initialize", {**HELLO, "protocolVersion": version})["protocolVersion"] == version
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]

    def close_stdin(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S_MAX)


def connected(env: Mapping[str, str]) -> Connection:
    return Connection(env, [*DIBS, "mcp"]).begin()


def is_held(env: Mapping[str, str], job: str) -> bool:
    return dibs(env, "owner", job).exit == 0


def test_a_client_that_closes_its_end_lets_go_of_everything(env: dict[str, str]) -> None:
    with connected(env) as client:
        answer = client.call("claim_job", job="issue-42")
        assert answer["owner"].startswith("test-client-")
        assert is_held(env, "issue-42")
        assert client.close_stdin() == 0
        assert not is_held(env, "issue-42")
        assert dibs(env, "session", "list", "--json").data["sessions"] == []


@OF_AGENTS
def test_an_agent_is_one_holder_in_mcp_and_in_its_shells(env: dict[str, str]) -> None:
    agent = {**env, "CLAUDE_CODE_SESSION_ID": "3f2a77c0-1"}
    with connected(agent) as client:
        assert client.call("claim_job", job="issue-42")["owner"].startswith("claude-3f2a in ")
        assert dibs(agent, "claim", "issue-42").exit == 0
        assert dibs(agent, "heartbeat", "issue-42").exit == 0
        assert dibs({**env, "CLAUDE_CODE_SESSION_ID": "9b01cdef-2"}, "claim", "issue-42").exit == 1
        assert dibs(agent, "claim", "issue-43").exit == 0
        assert client.call("claim_job", job="issue-43")["claimed"] is True
        assert dibs(agent, "claim", "issue-44").exit == 0
        assert client.call("release_job", job="issue-44")["released"] is True
        assert dibs(agent, "claim", "issue-45").exit == 0
        assert client.close_stdin() == 0
    assert [is_held(env, f"issue-{number}") for number in (42, 43, 44, 45)] == [False, True, False, True]


def test_an_agent_with_two_connections_keeps_what_the_one_that_stays_has_claimed(env: dict[str, str]) -> None:
    agent = {**env, "CLAUDE_CODE_SESSION_ID": "3f2a77c0-1"}
    with connected(agent) as first, connected(agent) as second:
        assert first.call("claim_job", job="issue-42")["claimed"] is True
        assert second.call("claim_all_jobs", jobs=["issue-42", "issue-43"])["claimed"] is True
        assert second.close_stdin() == 0
        assert [is_held(env, job) for job in ("issue-42", "issue-43")] == [True, False]
        assert first.call("heartbeat_job", job="issue-42")["yours"] is True
        assert first.call("release_job", job="issue-42")["released"] is True


def test_a_client_that_reads_no_more_lets_go_of_everything(env: dict[str, str]) -> None:
    with connected(env) as client:
        client.call("claim_job", job="issue-42")
        assert client.process.stdout is not None
        client.process.stdout.close()
        assert client.process.wait(WAIT_S_MAX) == 128 + signal.SIGPIPE
        assert not is_held(env, "issue-42")


@pytest.mark.promise("attempts")
@pytest.mark.parametrize("of_agent", [[], pytest.param(["env", "CLAUDE_CODE_SESSION_ID=3f2a77c0-1"], marks=OF_AGENTS)])
def test_a_client_that_is_killed_lets_go_of_everything_without_a_verdict(
    env: dict[str, str], of_agent: list[str]
) -> None:
    dibs(env, "claim", "issue-42", "--actor", "before")
    dibs(env, "release", "issue-42", "--actor", "before", "--failed")
    with Connection(env, [sys.executable, "-c", CLIENT, *of_agent, *DIBS, "mcp"]) as client:
        server = int(client.line())
        client.begin()
        assert client.call("claim_job", job="issue-42")["owner"].startswith("claude" if of_agent else "test-client")
        client.process.kill()
        wait_until(lambda: not is_held(env, "issue-42"), "the job is free")
        # Nobody need have waited for it: whoever adopted it may leave its entry in the list of processes.
        wait_until(lambda: (found := table().entry(server)) is None or found.has_ended, "the server has ended")
    history = dibs(env, "history", "issue-42", "--json").data["events"]
    assert (history[-1]["event"], history[-1].get("uncounted")) == ("released", True), history
    assert dibs(env, "claim", "issue-42", "--json").data["attempt"] == 2, "it was no success"


def test_a_server_that_is_told_to_end_lets_go_first(env: dict[str, str]) -> None:
    with connected(env) as client:
        client.call("claim_job", job="issue-42")
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(WAIT_S_MAX) == 128 + signal.SIGTERM
        assert not is_held(env, "issue-42")


@pytest.mark.promise("session")
def test_a_server_that_is_killed_frees_its_jobs_at_once_for_others_on_the_machine(
    env: dict[str, str],
) -> None:
    with connected(env) as client, connected(env) as other:
        client.call("claim_job", job="issue-42")
        client.call("heartbeat_job", job="issue-42", checkpoint="half")
        refused = other.call("claim_job", job="issue-42")
        assert refused["claimed"] is False
        assert refused["refused"][0]["free_in_seconds"] > 30
        client.process.kill()
        client.process.wait(WAIT_S_MAX)
        answer = other.call("claim_job", job="issue-42")
        assert answer["claimed"] is True
        assert answer["previous"]["checkpoint"] == "half"


def test_an_agent_whose_server_is_away_is_told_not_to_begin(env: dict[str, str]) -> None:
    with connected({**env, "DIBS_URL": "http://127.0.0.1:1"}) as client:
        answer = client.ask("tools/call", {"name": "claim_job", "arguments": {"job": "issue-42"}})
    told = answer["content"][0]["text"]
    assert "Do not begin the work; try again later." in told
    assert "nset" not in told
    assert "store of this machine" not in told


def test_it_works_on_a_server_that_dibs_url_names(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        env = {**clean_env(tmp_path), "DIBS_URL": server.url, "DIBS_TOKEN": server.token}
        with connected(env) as client:
            assert client.call("claim_job", job="issue-42")["claimed"] is True
            assert is_held(env, "issue-42")
            assert client.close_stdin() == 0
        assert not is_held(env, "issue-42")


def test_a_client_of_the_oldest_revision_reads_the_answer_as_text_and_survives_its_own_mistakes(
    env: dict[str, str],
) -> None:
    with Connection(env, [*DIBS, "mcp"]).begin("2024-11-05") as client:
        result = client.ask("tools/call", {"name": "claim_job", "arguments": {"job": "issue-42"}})
        assert json.loads(result["content"][0]["text"])["claimed"] is True
        assert client.process.stdin is not None
        client.process.stdin.write(b"{ not json\n\xff\xfe\n[]\n")
        client.process.stdin.flush()
        answer: Any = {}
        client.send({"jsonrpc": "2.0", "id": "last", "method": "ping"})
        while answer.get("id") != "last":
            answer = json.loads(client.line())
        assert "result" in answer


def test_mcp_is_not_imported_by_commands_that_do_not_need_it(env: dict[str, str]) -> None:
    script = "import sys; from dibs.cli.main import run; import os, io\n"
    script += "run(['skill', 'show'], os.environ, io.StringIO(), io.StringIO(), None)\n"
    script += "run(['list'], os.environ, io.StringIO(), io.StringIO(), None)\n"
    script += "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'pydantic', 'anyio')])"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, timeout=WAIT_S_MAX, check=True)
    assert done.stdout == b"[]\n", done


def test_it_needs_no_library(env: dict[str, str]) -> None:
    script = "import sys; sys.path[:] = [each for each in sys.path if 'site-packages' not in each]\n"
    script += "from dibs.cli.main import entry; sys.argv = ['dibs', 'mcp']; sys.exit(entry())"
    with Connection(env, [sys.executable, "-c", script]).begin() as client:
        assert client.call("claim_job", job="issue-42")["claimed"] is True
        assert client.close_stdin() == 0


def test_a_client_that_never_reads_lets_go_of_everything(env: dict[str, str]) -> None:
    script = "import sys; from dibs.agents.mcp import stdio; stdio.UNREAD_BYTES_MAX = 200_000\n"
    script += "from dibs.cli.main import entry; sys.argv = ['dibs', 'mcp']; sys.exit(entry())"
    with Connection(env, [sys.executable, "-c", script]).begin() as client:
        client.call("claim_job", job="issue-42")
        with contextlib.suppress(BrokenPipeError):  # it may have had enough before we have said everything
            for number in range(100):
                client.send({"jsonrpc": "2.0", "id": f"unread {number}", "method": "tools/list"})
        assert client.process.wait(WAIT_S_MAX) == 128 + signal.SIGPIPE
        assert not is_held(env, "issue-42")


def test_a_line_that_is_too_long_is_refused_and_the_next_is_read(env: dict[str, str]) -> None:
    script = "import sys; from dibs.agents.mcp import stdio; stdio.LINE_BYTES_MAX = 10_000\n"
    script += "from dibs.cli.main import entry; sys.argv = ['dibs', 'mcp']; sys.exit(entry())"
    with Connection(env, [sys.executable, "-c", script]).begin() as client:
        client.send({"jsonrpc": "2.0", "id": "long", "method": "ping", "params": {"x": "y" * 50_000}})
        assert json.loads(client.line())["error"]["code"] == -32700
        assert client.ask("ping", {}) == {}
