"""The examples work as described: five agents at once, ten jobs, each done once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugins.agents.connection import Agent
from tests.programs import WAIT_S_MAX, ServerProcess
from tests.programs import dibs as run_dibs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [pytest.mark.e2e, pytest.mark.full]
EXAMPLES = Path(__file__).parents[3] / "examples"
CONFIGS = sorted((EXAMPLES / "mcp").iterdir())
JOBS = [f"issue-{number}" for number in range(1, 11)]
AGENTS = 5


@pytest.fixture
def work(tmp_path: Path) -> list[str]:
    """What an agent runs for a job: notes it, in a file that all of them write to."""
    script = tmp_path / "work"
    script.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/done\n')
    script.chmod(0o755)
    return [str(script)]


def end_all(agents: list[subprocess.Popen[bytes]]) -> None:
    """Cleans up after a failed test, too: its leftovers would fail the next one."""
    for agent in agents:
        with agent:  # closes its pipe and waits for its end
            agent.kill()


def assert_each_is_done_once(folder: Path, env: dict[str, str]) -> None:
    assert Counter((folder / "done").read_text().split()) == Counter(JOBS)
    assert run_dibs(env, "list", "--json").data["locks"] == []
    refused = run_dibs(env, "claim-any", *JOBS, "--json").error["details"]["refused"]
    assert [each["status"] for each in refused] == ["done"] * len(JOBS)


@pytest.mark.promise("excl")
@pytest.mark.parametrize(
    "words", [["bash", "shell-agent"], [sys.executable, "python-agent.py"]], ids=["shell", "python"]
)
def test_five_agents_do_ten_jobs_once_each(
    words: list[str],
    env: dict[str, str],
    work: list[str],
    tmp_path: Path,
    need_program: Callable[[str], str],
) -> None:
    need_program("bash")
    backlog = tmp_path / "backlog"
    backlog.write_text("".join(f"{job}\n" for job in JOBS))
    command = [words[0], str(EXAMPLES / words[1]), str(backlog), *work]
    agents = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(AGENTS)
    ]
    try:
        for agent in agents:
            said = agent.communicate(timeout=3 * WAIT_S_MAX)[0]
            assert agent.returncode == 0, said
    finally:
        end_all(agents)
    assert_each_is_done_once(tmp_path, env)


@pytest.mark.promise("attempts")
@pytest.mark.parametrize("example", ["shell-agent", "python-agent.py"])
def test_two_agents_do_not_starve_behind_a_job_that_always_fails(
    example: str, env: dict[str, str], tmp_path: Path
) -> None:
    backlog = tmp_path / "backlog"
    backlog.write_text("poison\nissue-1\nissue-2\n")
    script = tmp_path / "work"
    script.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/tried\n[ "$1" != poison ]\n')
    script.chmod(0o755)
    words = ["bash"] if example == "shell-agent" else [sys.executable]
    agents = [
        subprocess.Popen(
            [*words, str(EXAMPLES / example), str(backlog), str(script)],
            env=env | {"RETRY_SECONDS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    try:
        for agent in agents:
            said = agent.communicate(timeout=3 * WAIT_S_MAX)[0]
            assert agent.returncode == 1, said
            assert b"parked" in said
    finally:
        end_all(agents)
    tried = Counter((tmp_path / "tried").read_text().split())
    assert tried == {"poison": 3, "issue-1": 1, "issue-2": 1}
    parked = run_dibs(env, "owner", "poison", "--json").error["details"]
    assert (parked["status"], parked["previous"]["how"], parked["previous"]["attempt"]) == (
        "parked",
        "failed",
        3,
    )


# MCP configurations


def server_of(config: Path) -> dict[str, Any]:
    text = config.read_text()
    document = tomllib.loads(text) if config.suffix == ".toml" else json.loads(text)
    servers = document.get("mcpServers") or document.get("servers") or document["mcp_servers"]
    assert list(servers) == ["dibs"]
    entry: dict[str, Any] = servers["dibs"]
    return entry


def address_of(entry: dict[str, Any]) -> str | None:
    """Clients differ in the word for it."""
    found: list[str] = [entry[word] for word in ("url", "httpUrl", "serverUrl") if word in entry]
    return found[0] if found else None


async def loop_of_an_agent(agent: Agent, note: Callable[[str], None]) -> None:
    """Acts as a model that was told to work through the backlog."""
    left = list(JOBS)
    while left:
        answer = await agent.call("claim_any_job", jobs=left)
        if answer["claimed"]:
            await asyncio.sleep(0)  # let the others in
            note(answer["job"])
            await agent.call("release_job", job=answer["job"], lease_id=answer["lease_id"], done=True)
        else:
            left = [each["job"] for each in answer["refused"] if each["status"] != "done"]


async def five_at_once(connect: Callable[[], Any], folder: Path) -> None:
    async def one() -> None:
        async with connect() as agent:
            await loop_of_an_agent(agent, note)

    def note(job: str) -> None:
        with (folder / "done").open("a") as file:
            file.write(f"{job}\n")

    async with asyncio.timeout(WAIT_S_MAX):
        await asyncio.gather(*[one() for _ in range(AGENTS)])


@pytest.mark.promise("excl")
def test_five_clients_with_a_process_each_do_ten_jobs_once_each(env: dict[str, str], tmp_path: Path) -> None:
    entries = [entry for entry in map(server_of, CONFIGS) if address_of(entry) is None]
    assert len(entries) == 8
    # They differ in where a client looks for them. What they start is the same, and so is run once.
    [(command, *args)] = {(entry["command"], *entry["args"]) for entry in entries}

    @asynccontextmanager
    async def connect() -> AsyncIterator[Agent]:
        from mcp import Client, StdioServerParameters

        found = str(Path(env["PATH"].split(os.pathsep)[0]) / command)
        async with Client(StdioServerParameters(command=found, args=args, env=env)) as client:
            yield Agent(client)

    asyncio.run(five_at_once(connect, tmp_path))
    assert_each_is_done_once(tmp_path, env)


@pytest.mark.promise("excl")
def test_five_clients_of_one_server_do_ten_jobs_once_each(env: dict[str, str], tmp_path: Path) -> None:
    entries = [entry for entry in map(server_of, CONFIGS) if address_of(entry) is not None]
    assert len(entries) == 6
    assert {address_of(entry) for entry in entries} == {"http://127.0.0.1:3427/mcp"}
    with ServerProcess(tmp_path) as server:
        # A client puts the token in where the configuration says so. Codex is told the variable's name alone.
        said = [entry["headers"]["Authorization"] for entry in entries if "headers" in entry]
        said += [f"Bearer ${{{entry['bearer_token_env_var']}}}" for entry in entries if "headers" not in entry]
        assert len(said) == 6
        [header] = {re.sub(r"\$\{.*\}", server.token, each) for each in said}

        @asynccontextmanager
        async def connect() -> AsyncIterator[Agent]:
            import httpx2
            from mcp import Client
            from mcp.client.streamable_http import streamable_http_client

            async with httpx2.AsyncClient(headers={"Authorization": header}, timeout=60) as http:
                transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
                async with Client(transport) as client:
                    yield Agent(client)

        asyncio.run(five_at_once(connect, tmp_path))
        assert_each_is_done_once(tmp_path, {**env, "DIBS_URL": server.url, "DIBS_TOKEN": server.token})


def test_a_script_that_says_grite_lock_gets_dibs_and_grite_for_all_else(tmp_path: Path) -> None:
    for folder, program in (("real", "grite"), ("real", "dibs")):
        (tmp_path / folder).mkdir(exist_ok=True)
        stand_in = tmp_path / folder / program
        stand_in.write_text(f'#!/bin/sh\necho {program} "$@"\n')
        stand_in.chmod(0o755)

    def typed(*words: str, path: str) -> str:
        env = {"PATH": f"{EXAMPLES}:{path}:/usr/bin:/bin"}
        return subprocess.run(["grite", *words], env=env, capture_output=True, text=True, check=False).stdout.strip()

    real = str(tmp_path / "real")
    assert typed("lock", "acquire", "issue:1", path=real) == "dibs lock acquire issue:1"
    assert typed("--actor", "a", "--json", "lock", "status", path=real) == "dibs --actor a --json lock status"
    assert typed("issue", "comment", "lock", path=real) == "grite issue comment lock"
    assert typed("--actor", "lock", "sync", path=real) == "grite --actor lock sync"
    assert typed("sync", path=str(tmp_path)) == ""


def test_every_example_is_on_the_page_of_examples() -> None:
    page = (EXAMPLES / "README.md").read_text()
    there = {
        str(file.relative_to(EXAMPLES))
        for file in EXAMPLES.rglob("*")
        if file.is_file() and file.name != "README.md" and "__pycache__" not in file.parts
    }
    assert set(re.findall(r"\]\(([^)]+)\)", page)) == there
