"""Every way in has the same `path:` jobs: Python, MCP, the command line, rlock and the hooks of one repository."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.plugins.shells.conftest import Shells

pytestmark = [pytest.mark.e2e, pytest.mark.full]
TOKEN = "dibs_" + "7" * 64


def repository(shells: Shells, name: str, origin: str = "") -> Path:
    folder = shells.home / name
    script = f"git init -q {name} && cd {name} && git config dibs.policy require && dibs hook install -q"
    ran = shells(script + (f" && git remote add origin {origin}" if origin else ""))
    assert ran.exit == 0, ran
    return folder


def python(shells: Shells, script: str, folder: Path, **env: str) -> str:
    (shells.folder / "program.py").write_text(script, encoding="utf-8")
    ran = shells(f"python3 {shells.folder}/program.py", cwd=folder, **env)
    assert ran.exit == 0, ran
    return ran.out


@pytest.fixture(autouse=True)
def python3(shells: Shells) -> None:
    import sys

    shells.program("python3", f'exec {sys.executable} "$@"')


class Mcp:
    """`dibs mcp` and a client at its pipes."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._id = 0
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        self._ask("initialize", hello)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdout is not None
        self._id += 1
        self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        return answer["result"]  # type: ignore[no-any-return]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self._ask("tools/call", {"name": tool, "arguments": arguments})

    def close(self) -> None:
        self._child.communicate(timeout=WAIT_S_MAX)


def test_a_hook_refuses_a_commit_for_what_an_mcp_agent_claimed(shells: Shells) -> None:
    folder = repository(shells, "one", "git@github.com:acme/app.git")
    agent = Mcp(shells.start("exec dibs mcp --owner agent-7", cwd=folder))
    claimed = agent.call("claim_job", job="path:src")["structuredContent"]
    assert claimed["claimed"]
    assert claimed["namespace"].startswith("acme-app.")
    assert shells("dibs owner -q path:src", cwd=folder).out == "agent-7\n"
    commit = "mkdir -p src && touch src/a && git add src && git commit -qm m"
    refused = shells(commit, cwd=folder)
    assert refused.exit == 1
    assert "agent-7 has path:src" in refused.err
    # Listed with the rest, and not to be claimed together with it.
    assert shells("dibs claim issue-1 --owner ann", cwd=shells.home).exit == 0
    jobs = agent.call("list_claimed_jobs")["structuredContent"]["jobs"]
    assert [job["job"] for job in jobs] == ["issue-1", "path:src"]
    mixed = agent.call("claim_any_job", jobs=["issue-2", "path:docs"])
    assert mixed["isError"]
    assert "Claim them apart" in mixed["content"][0]["text"]
    assert agent.call("release_job", job="path:src")["structuredContent"]["released"]
    assert shells(commit, cwd=folder).exit == 0
    agent.close()


PROGRAM = """
import dibs, os
with dibs.claim("path:src", owner="python") as claim, dibs.claim("issue-1", owner="python"):
    print(claim.leases[0].namespace, flush=True)
    os.chdir("/")
    claim.checkpoint("half")  # where it was made, wherever the program is now
    assert dibs.Client().owner("path:src").status == "free"
    os.chdir(os.environ["PWD"])
    os.system("dibs owner -q path:src; dibs owner -q issue-1 --namespace default")
    print([job.name for job in dibs.Client().list()])
    try:
        with dibs.claim_all(["path:docs", "issue-2"]):
            raise AssertionError
    except dibs.InvalidInput as error:
        assert "Claim them apart" in str(error), error
    print(os.system("touch a; mkdir -p src; touch src/a; git add .; git commit -qm m") >> 8)
    try:
        dibs.Client(owner="eve").acquire("path:src/a")
    except dibs.JobHeld as held:
        print(held.answer["namespace"] == claim.leases[0].namespace)
"""


@pytest.mark.parametrize("served", [False, True])
def test_python_has_the_paths_of_the_repository_around_it(shells: Shells, served: bool) -> None:
    folder = repository(shells, "one", "git@github.com:acme/app.git")
    env = {"DIBS_URL": shells.serve(f"ann:{TOKEN}:agent\n"), "DIBS_TOKEN": TOKEN} if served else {}
    out = python(shells, PROGRAM, folder, **env).splitlines()
    assert out[0].startswith("acme-app.")
    assert out[1:] == ["python", "python", "['issue-1', 'path:src']", "1", "True"]


ASYNC = """
import asyncio, dibs, sys
async def main():
    async with dibs.AsyncClient(owner=sys.argv[0]) as client:
        async with client.claim("path:src") as claim:
            print(claim.leases[0].namespace, (await client.owner("path:src")).namespace)
asyncio.run(main())
"""


@pytest.mark.parametrize("served", [False, True])
def test_two_repositories_do_not_meet_through_python(shells: Shells, served: bool) -> None:
    one, two = repository(shells, "one"), repository(shells, "two")
    env = {"DIBS_URL": shells.serve(f"ann:{TOKEN}:agent\n"), "DIBS_TOKEN": TOKEN} if served else {}
    assert shells("dibs claim path:src --owner ann", cwd=one, **env).exit == 0
    first, again = python(shells, ASYNC, two, **env).split()
    assert first == again
    assert first.startswith("work-two.")
    refused = shells(f"python3 {shells.folder}/program.py", cwd=one, **env)
    assert "JobHeld: ann has path:src" in refused.err


def test_what_was_named_counts_for_all_names(shells: Shells) -> None:
    folder = repository(shells, "one")
    claim = "print([each.acquire('path:src').namespace for each in ({})])"
    make = "import dibs; from dibs import Client; "
    assert python(shells, make + claim.format("Client(namespace='team'),"), folder) == "['team']\n"
    assert python(shells, make + claim.format("Client(),"), folder, DIBS_NAMESPACE="mine") == "['mine']\n"
    assert shells("git config dibs.namespace ours; dibs trust", cwd=folder).exit == 0
    assert python(shells, make + claim.format("Client(),"), folder) == "['ours']\n"
    assert python(shells, make + claim.format("Client(),"), shells.home) == "[None]\n"


def test_rlock_has_the_paths_of_the_repository_around_it(shells: Shells) -> None:
    folder = repository(shells, "one")
    start = "from dibs.compat.action_llama.rlock import rlock; rlock()"
    assert shells("dibs claim path:src --owner ann", cwd=folder).exit == 0
    assert '"holder":"ann"' in shells(f"python3 -c '{start}' path:src/a", cwd=folder).out
    assert '"ok":true' in shells(f"python3 -c '{start}' path:src/a", cwd=shells.home).out


def test_a_plain_name_asks_git_for_nothing_and_a_path_once(shells: Shells) -> None:
    folder = repository(shells, "one")
    git = shells("command -v git").out.strip()
    shells.program("git", f'echo "$7" >> {shells.folder}/asked; exec {git} "$@"')  # after a folder and two settings
    script = "import dibs\nfor job in {}:\n    with dibs.claim(job): pass\n    dibs.Client().owner(job)\n"
    python(shells, script.format(["a", "b"]), folder)
    assert not (shells.folder / "asked").exists()
    python(shells, script.format(["path:a", "path:b", "repo:c"]), folder)
    assert (shells.folder / "asked").read_text().split() == ["rev-parse", "config"]


def test_a_repository_that_git_does_not_report_is_an_error_and_not_another_namespace(shells: Shells) -> None:
    """In a container, root finds a work tree of somebody else's; or there is no git. A claim in `default` would keep
    out nobody who claims with git."""
    folder = repository(shells, "one")
    shells.program("git", 'echo "fatal: dubious ownership. git config --global --add safe.directory x" >&2; exit 128')
    for refused in (
        shells("dibs claim path:src", cwd=folder),
        shells("python3 -c \"import dibs; dibs.Client().acquire('path:src')\"", cwd=folder),
    ):
        assert "name the namespace: DIBS_NAMESPACE" in refused.err
    assert shells("dibs claim issue-1", cwd=folder).exit == 0
    assert shells("dibs claim path:src", cwd=folder, DIBS_NAMESPACE="app").exit == 0
