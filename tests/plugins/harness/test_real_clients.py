"""Real coding agents with a scripted model: Claude Code, Codex, Gemini CLI and Copilot, set up by `dibs agent install`.
`scripts/dev/clients` installs them and runs this; DIBS_CLIENTS is the folder in which they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.client.naming import namespace_around
from tests.plugins.harness.scripted_model import Call, ScriptedModel
from tests.programs import pause, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tests.plugins.harness.scripted_model import Script, Told

    Turn = Generator[Call | str, Told, Told]

CLIENTS = os.environ.get("DIBS_CLIENTS", "")
# A client starts its MCP server while it works; on a busy machine that takes long.
CLIENT_S_MAX = 420
TRIES_MAX = 60
# How long a guarded command waits: longer than hooks once had, shorter than tools wait for it.
GATE_S = 12
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * CLIENT_S_MAX),
    pytest.mark.skipif(not CLIENTS, reason="needs real clients: scripts/dev/clients installs them and runs this"),
]
INSTALLED = [name for name in ("claude", "codex", "gemini", "copilot") if os.path.isdir(os.path.join(CLIENTS, name))]
_CODEX = """model = "gpt-5.5"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.scripted]
name = "scripted"
base_url = "http://127.0.0.1:1/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
[analytics]
enabled = false
[projects."{}"]
trust_level = "trusted"
"""
_GEMINI = {
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
}


class Checkout:
    """A repository in which a client is installed, and a user's home around it."""

    def __init__(self, folder: Path, client: str) -> None:
        self.client, self.home, self.top = client, folder / "home", folder / "app"
        self.home.mkdir()
        (self.top / "src").mkdir(parents=True)
        node = Path(CLIENTS) / "node" / "node_modules"
        paths = [*[str(each / "bin") for each in node.glob("node-*")], str(Path(sys.executable).parent)]
        self.env = {
            "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
            "HOME": str(self.home),
            "USER": "tester",
            "SHELL": "/bin/bash",
            "TERM": "xterm",
            "LANG": "C.UTF-8",
        }
        for name in "abcd":
            (self.top / "src" / f"{name}.py").write_text(f"{name.upper()} = 1\n")
        self.run("git", "init", "-q", "-b", "main")
        self.run("git", "config", "user.email", "a@example.org")
        self.run("git", "config", "user.name", "a")
        self.run("dibs", "agent", "install", "--client", client)
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", "first")
        if client == "codex":
            (self.home / ".codex").mkdir()
            (self.home / ".codex" / "config.toml").write_text(_CODEX.format(self.top))
        if client == "copilot":
            (self.home / ".copilot").mkdir(exist_ok=True)
            (self.home / ".copilot" / "config.json").write_text(json.dumps({"trusted_folders": [str(self.top)]}))
        if client == "gemini":
            (self.home / ".gemini").mkdir()
            (self.home / ".gemini" / "settings.json").write_text(json.dumps(_GEMINI))

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.top, env=self.env, capture_output=True, text=True, timeout=120, check=check
        )

    def text(self, name: str) -> str:
        return (self.top / "src" / f"{name}.py").read_text()

    def client_pids(self) -> list[int]:
        """The processes that hooks have noted as clients."""
        notes = (self.home / ".local/state/dibs/clients").glob("*")
        return [int(each.read_text().split(":")[2]) for each in notes]


class Agent:
    """A client that runs, with its model."""

    def __init__(self, checkout: Checkout, script: Script, resumes: Agent | None = None) -> None:
        self.model: ScriptedModel = ScriptedModel(script, None if resumes is None else resumes.model)
        words, more = _command(checkout.client, self.model.url, again=resumes is not None)
        self.log = (checkout.home / f"{id(self)}.log").open("w+")
        self.process = subprocess.Popen(
            words,
            cwd=checkout.top,
            env={**checkout.env, **more},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def wait(self) -> None:
        try:
            ended = self.process.wait(CLIENT_S_MAX)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the client does not end: {self.said()}")
        if ended:
            print(f"the client ended with {ended}: {self.said()}")

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:]

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
        self.model.close()
        self.log.close()


def _command(client: str, url: str, *, again: bool) -> tuple[list[str], dict[str, str]]:
    """How a client is started without a person, a login or the internet. `again`: it resumes its last session."""
    program = str(Path(CLIENTS) / client / "node_modules" / ".bin" / client)
    if client == "claude":
        quiet = dict.fromkeys(("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "IS_SANDBOX"), "1")
        quiet |= {"DISABLE_AUTOUPDATER": "1", "ANTHROPIC_API_KEY": "x", "ANTHROPIC_BASE_URL": url}
        flags = ["--model", "claude-sonnet-4-5", "--permission-mode", "bypassPermissions"]
        return [program, "-p", "go", *flags, *(["--continue"] if again else [])], quiet
    if client == "codex":
        address = f'model_providers.scripted.base_url="{url}/v1"'
        flags = ["-c", address, "--dangerously-bypass-hook-trust", "--json", *(["resume", "--last"] if again else [])]
        return [program, "exec", *flags, "go"], {"SCRIPTED_KEY": "x"}
    if client == "gemini":
        flags = ["-m", "gemini-2.5-pro", "--approval-mode", "yolo", "--skip-trust"]
        flags += ["--resume", "latest"] if again else []
        return [program, *flags, "-p", "go"], {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": url}
    # Only a new session may be told to trust the folder; `Checkout` has noted that it does.
    flags = ["--disable-client-telemetry", "--allow-all-tools", "--allow-all-paths"]
    flags += ["--continue"] if again else ["--trust-folder"]
    about = {"COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false", "COPILOT_PROVIDER_BASE_URL": f"{url}/v1"}
    return [program, *flags, "-p", "go"], {
        **about,
        "COPILOT_PROVIDER_API_KEY": "x",
        "COPILOT_MODEL": "claude-sonnet-4.5",
    }


def edit(checkout: Checkout, name: str, old: int, new: int) -> Turn:
    """Change a number in a file with the client's own tool. Returns what the model is told then."""
    path, letter = str(checkout.top / "src" / f"{name}.py"), name.upper()
    before, after = f"{letter} = {old}", f"{letter} = {new}"
    if checkout.client == "codex":
        patch = f"*** Begin Patch\n*** Update File: src/{name}.py\n@@\n-{before}\n+{after}\n*** End Patch\n"
        return (yield Call("apply_patch", patch, kind="custom_tool_call"))
    if checkout.client == "copilot":
        return (yield Call("edit", {"path": path, "old_str": before, "new_str": after}))
    given = {"file_path": path, "old_string": before, "new_string": after}
    if checkout.client == "gemini":
        return (yield Call("replace", {**given, "instruction": "change it"}))
    yield Call("Read", {"file_path": path})
    return (yield Call("Edit", given))


def create(checkout: Checkout, file: str) -> Turn:
    """Make a new file with the client's own tool."""
    path, text = str(checkout.top / file), "SELECT 1;"
    if checkout.client == "codex":
        patch = f"*** Begin Patch\n*** Add File: {file}\n+{text}\n*** End Patch\n"
        return (yield Call("apply_patch", patch, kind="custom_tool_call"))
    if checkout.client == "copilot":
        return (yield Call("create", {"path": path, "file_text": text}))
    name = "write_file" if checkout.client == "gemini" else "Write"
    return (yield Call(name, {"file_path": path, "content": text}))


def shell(checkout: Checkout, command: str, **more: str) -> Turn:
    name, key = {"claude": ("Bash", "command"), "codex": ("exec_command", "cmd")}.get(
        checkout.client, ("bash" if checkout.client == "copilot" else "run_shell_command", "command")
    )
    about: dict[str, object] = {"yield_time_ms": 60_000} if checkout.client == "codex" else {"description": "x"}
    return (yield Call(name, {key: command, **about, **more}))


def tool(checkout: Checkout, name: str, **given: object) -> Turn:
    """Call an MCP tool of dibs, once the client offers it."""
    for _ in range(TRIES_MAX):
        if checkout.client == "claude":
            told = yield Call("ToolSearch", {"query": f"select:mcp__dibs__{name}"})
            call = Call(f"mcp__dibs__{name}", given)
        elif checkout.client == "codex":
            told = yield Call("tool_search", {"query": f"{name} dibs", "limit": 3}, kind="tool_search_call")
            call = Call(name, given, namespace="mcp__dibs")
        else:
            told = yield from shell(checkout, "sleep 2")
            call = Call(f"mcp_dibs_{name}" if checkout.client == "gemini" else f"dibs-{name}", given)
        if call.tool in told.tools or (checkout.client in ("claude", "codex") and name in told.result):
            return (yield call)
        yield from shell(checkout, "sleep 2")
    pytest.fail("the client never offered the tools of dibs")


@pytest.fixture(params=INSTALLED)
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Checkout:
    # Paths of a client's sockets and logs grow with it.
    return Checkout(tmp_path, request.param)


@pytest.fixture
def start(checkout: Checkout) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def started(script: Script, resumes: Agent | None = None) -> Agent:
        agents.append(Agent(checkout, script, resumes))
        return agents[-1]

    yield started
    for pid in checkout.client_pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for agent in agents:
        agent.close()
    shutil.rmtree(checkout.home, ignore_errors=True)


def test_a_second_agent_cannot_write_what_the_first_has_in_any_way_and_goes_on_elsewhere(
    checkout: Checkout, start: Callable[[Script], Agent]
) -> None:
    has_edited, may_end = threading.Event(), threading.Event()
    told: dict[str, str] = {}

    def first() -> Script:
        yield from edit(checkout, "a", 1, 2)
        has_edited.set()
        may_end.wait(CLIENT_S_MAX)
        yield "done"

    def second() -> Script:
        begun = yield from edit(checkout, "a", 2, 3)
        told["start"], told["edit"] = begun.request, begun.result
        told["shell"] = (yield from shell(checkout, "echo 'A = 4' > src/a.py")).result
        told["cd"] = (yield from shell(checkout, "cd src && sed -i s/2/5/ a.py")).result
        if checkout.client == "codex":
            patch = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-A = 2\n+A = 6\n*** End Patch"
            told["patch"] = (yield from shell(checkout, f"apply_patch <<'X'\n{patch}\nX\n")).result
        if checkout.client == "gemini":
            told["dir_path"] = (yield from shell(checkout, "echo 'A = 7' > a.py", dir_path="src")).result
        # A command that names the file and is no known reader, whatever it does with it.
        writes = "open('src/a.py', 'a').write('# x\\n')"
        told["python"] = (yield from shell(checkout, f'python3 -c "{writes}"')).result
        told["pattern"] = (yield from shell(checkout, "perl -pi -e s/2/8/ src/[a].py")).result
        told["reads"] = (yield from shell(checkout, "grep -c A src/a.py && git diff --stat src/a.py")).result
        # A name that the command only makes is seen afterwards, also if it fails: then the model is told.
        after = yield from shell(checkout, "ls src | head -1 | xargs -I{} sh -c 'echo \"# x\" >> src/{}'; exit 3")
        told["after"] = after.request
        yield from edit(checkout, "c", 1, 2)
        # The model takes the step that the refusal names, and the first agent ends meanwhile.
        step = told["edit"].partition("wait with `")[2].partition("`")[0]
        may_end.set()
        told["step"] = (yield from shell(checkout, f"PATH={Path(sys.executable).parent}:$PATH {step}")).result
        yield from edit(checkout, "a", 2, 3)
        yield "done"

    one = start(first())
    assert has_edited.wait(CLIENT_S_MAX), "the first agent did not edit"
    two = start(second())
    one.wait()
    two.wait()
    print(json.dumps({key: value[-400:] for key, value in told.items()}, indent=1))
    for way in set(told) - {"start", "reads", "after", "step"}:
        assert ("Not run" if way in ("python", "pattern") else "Not written") in told[way], (way, told[way])
        assert f"{checkout.client}-" in told[way]
    assert "dibs" not in told["reads"], told["reads"]
    assert "Others work in this checkout (dibs)" in told["start"]
    assert "These files changed while the command ran" in told["after"]
    assert checkout.text("a").startswith("A = 3\n"), told["step"]
    assert checkout.text("c") == "C = 2\n"
    assert json.loads(checkout.run("dibs", "list", "--json").stdout)["data"]["locks"] == []


def test_a_second_agent_takes_neither_the_stash_nor_the_changes_of_the_first_and_hears_whose_it_takes_over(
    checkout: Checkout, start: Callable[[Script], Agent]
) -> None:
    has_changed, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()
    told: dict[str, str] = {}

    def first() -> Script:
        yield from edit(checkout, "a", 1, 2)
        yield from shell(checkout, "git stash")
        yield from edit(checkout, "b", 1, 2)
        has_changed.set()
        may_end.wait(CLIENT_S_MAX)
        yield "done"

    def second() -> Script:
        told["pop"] = (yield from shell(checkout, "git stash; git stash pop")).result
        told["own"] = (yield from shell(checkout, "git stash pop")).result
        told["reset"] = (yield from shell(checkout, "git reset --hard")).result
        may_end.set()
        has_ended.wait(CLIENT_S_MAX)
        told["over"] = (yield from edit(checkout, "b", 2, 3)).request
        yield "done"

    one = start(first())
    assert has_changed.wait(CLIENT_S_MAX), "the first agent did not edit"
    two = start(second())
    one.wait()
    has_ended.set()
    two.wait()
    print(json.dumps({key: value[-600:] for key, value in told.items()}, indent=1))
    for way in ("pop", "own", "reset"):
        assert "Not run" in told[way], (way, told[way])
    assert (checkout.text("a"), checkout.text("b")) == ("A = 1\n", "B = 3\n")
    assert checkout.run("git", "stash", "list").stdout.count("stash@") == 1
    assert ("has uncommitted changes of" in told["over"]) == (checkout.client != "gemini")


def test_a_session_that_is_resumed_has_its_unfinished_files_again(
    checkout: Checkout, start: Callable[..., Agent]
) -> None:
    has_edited, may_end = threading.Event(), threading.Event()
    told: dict[str, str] = {}

    def first() -> Script:
        yield from edit(checkout, "a", 1, 2)
        yield "done"

    def resumed() -> Script:
        told["start"] = (yield from edit(checkout, "b", 1, 2)).request
        has_edited.set()
        may_end.wait(CLIENT_S_MAX)
        yield "done"

    one = start(first())
    one.wait()
    left = json.loads(checkout.run("dibs", "list", "--json").stdout)["data"]["unfinished"]
    two = start(resumed(), one)
    assert has_edited.wait(CLIENT_S_MAX), "the resumed agent did not edit"
    held = json.loads(checkout.run("dibs", "list", "--json").stdout)["data"]
    may_end.set()
    two.wait()
    assert [each["file"] for each in left] == ["src/a.py"]
    assert {each["owner"] for each in held["locks"]} == {left[0]["owner"]}
    assert "path:src/a.py" in [each["name"] for each in held["locks"]]
    assert held.get("unfinished", []) == []
    assert "This session has its uncommitted files claimed again (dibs)" in told["start"]


def test_the_second_migration_with_one_number_is_refused_with_the_next(
    checkout: Checkout, start: Callable[..., Agent]
) -> None:
    series = '[[agent.file]]\nmatch = "migrations/{n}_*.sql"\nclaim = "migration:{n}"\n'
    (checkout.top / ".dibs.toml").write_text(series)
    (checkout.top / "migrations").mkdir()
    told: dict[str, str] = {}

    def first() -> Script:
        yield from create(checkout, "migrations/0436_one.sql")
        yield "done"

    def second() -> Script:
        told["refused"] = (yield from create(checkout, "migrations/0436_two.sql")).result
        told["shell"] = (yield from shell(checkout, "echo x > migrations/0436_two.sql")).result
        yield from create(checkout, "migrations/0437_two.sql")
        yield "done"

    start(first()).wait()
    os.rename(checkout.top / "migrations/0436_one.sql", checkout.home / "on-a-branch.sql")
    start(second()).wait()
    print(json.dumps(told, indent=1))
    for way in told.values():
        assert "Name the file with 0437, which is free." in way
        assert f"{checkout.client}-" in way
    assert os.listdir(checkout.top / "migrations") == ["0437_two.sql"]


def test_a_guarded_command_waits_in_the_client_until_its_turn_comes(
    checkout: Checkout, start: Callable[..., Agent]
) -> None:
    gate = '[[agent.command]]\nmatch = "make test"\nclaim = "test-gate"\nwait = "100s"\n'
    (checkout.top / ".dibs.toml").write_text(gate)
    recipe = "echo begin >>log; while [ ! -e go ]; do sleep 0.1; done; echo end >>log"
    (checkout.top / "Makefile").write_text(f"test:\n\t@{recipe}\n")
    log = checkout.top / "log"
    told: dict[str, str] = {}

    def run_tests(name: str) -> Script:
        told[name] = (yield from shell(checkout, "make test && echo passed")).result
        yield "done"

    def waiting() -> bool:
        place = str(namespace_around(checkout.env, str(checkout.top)))
        words = ("dibs", "owner", "test-gate", "--json", "--namespace", place)
        return bool(json.loads(checkout.run(*words, check=False).stdout)["data"].get("waiting") == 1)

    one = start(run_tests("one"))
    wait_until(log.exists, "the first agent runs the tests", CLIENT_S_MAX)
    two = start(run_tests("two"))
    wait_until(waiting, "the second agent stands in line", CLIENT_S_MAX)
    pause(GATE_S)
    assert log.read_text().split() == ["begin"]
    (checkout.top / "go").touch()
    one.wait()
    two.wait()
    print(json.dumps(told, indent=1))
    assert log.read_text().split() == ["begin", "end"] * 2
    assert all("passed" in each for each in told.values())


def test_a_claim_by_a_tool_is_the_agents_own_and_all_is_free_after_a_kill(
    checkout: Checkout, start: Callable[[Script], Agent]
) -> None:
    is_thinking = threading.Event()
    told: dict[str, str] = {}

    def script() -> Script:
        told["claim"] = (yield from tool(checkout, "claim_job", job="path:src/a.py")).result
        told["issue"] = (yield from tool(checkout, "claim_job", job="issue-42")).result
        told["edit"] = (yield from edit(checkout, "a", 1, 2)).result
        yield from edit(checkout, "b", 1, 2)
        # A client's login shell may have another PATH.
        dibs = Path(sys.executable).parent / "dibs"
        told["shell"] = (yield from shell(checkout, f"{dibs} heartbeat issue-42 && {dibs} claim issue-43")).result
        is_thinking.set()
        threading.Event().wait(CLIENT_S_MAX)
        yield "done"

    agent = start(script())
    assert is_thinking.wait(CLIENT_S_MAX), told
    print(json.dumps({key: value[-600:] for key, value in told.items()}, indent=1))
    assert "is yours" in told["claim"]
    assert (checkout.text("a"), checkout.text("b")) == ("A = 2\n", "B = 2\n")
    assert "Claimed issue-43" in told["shell"]
    owners = {lock["owner"] for lock in json.loads(checkout.run("dibs", "list", "--json").stdout)["data"]["locks"]}
    assert len(owners) == 1
    assert checkout.run("dibs", "claim", "path:src/b.py", check=False).returncode == 1
    pids = checkout.client_pids()
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    for job in ("path:src/a.py", "path:src/b.py", "issue-42", "issue-43"):
        asked = partial(checkout.run, "dibs", "claim", job, check=False)
        wait_until(lambda asked=asked: asked().returncode == 0, f"{job} is free", 10)  # type: ignore[misc]
    agent.process.kill()


def test_the_job_of_a_killed_agent_goes_to_the_next_with_its_checkpoint(
    checkout: Checkout, start: Callable[[Script], Agent]
) -> None:
    has_it, was_refused, is_killed = threading.Event(), threading.Event(), threading.Event()
    told: dict[str, str] = {}

    def first() -> Script:
        yield from tool(checkout, "claim_job", job="issue-42")
        yield from tool(checkout, "heartbeat_job", job="issue-42", checkpoint="tests pass")
        has_it.set()
        threading.Event().wait(CLIENT_S_MAX)
        yield "done"

    def second() -> Script:
        told["refused"] = (yield from tool(checkout, "claim_job", job="issue-42")).result
        was_refused.set()
        is_killed.wait(CLIENT_S_MAX)
        told["claimed"] = (yield from tool(checkout, "claim_job", job="issue-42")).result
        told["released"] = (yield from tool(checkout, "release_job", job="issue-42", done=True)).result
        yield "done"

    one = start(first())
    assert has_it.wait(CLIENT_S_MAX), "the first agent has no claim"
    owner = json.loads(checkout.run("dibs", "owner", "issue-42", "--json").stdout)["data"]["owner"]
    (pid,) = checkout.client_pids()
    two = start(second())
    assert was_refused.wait(CLIENT_S_MAX), "the second agent did not claim"
    os.kill(pid, signal.SIGKILL)
    one.process.wait(60)
    is_killed.set()
    two.wait()
    print(json.dumps(told, indent=1))
    assert owner in told["refused"]
    assert "is yours" not in told["refused"]
    assert "is yours" in told["claimed"]
    assert "tests pass" in told["claimed"]
    assert checkout.run("dibs", "claim", "issue-42", check=False).returncode == 4, told["released"]
