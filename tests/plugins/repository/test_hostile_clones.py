"""A folder that somebody else made: a clone, or an unpacked archive with its `.git`. Nothing in it makes dibs run a
program or send a token elsewhere. Each program that git can be told to run leaves a mark here if it runs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.agents.repository.work_tree import NotInWorkTree, Repository, repository_around
from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.client.transport import Ask
from dibs.stores.git import location_of
from tests.programs import DIBS, WAIT_S_MAX, clean_env, dibs_here
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.fault("F-105"), pytest.mark.promise("repo:runs-nothing")]

# Everything that git's own configuration can name as a program, or that leads to one.
PROGRAMS = {
    "fsmonitor": {"core.fsmonitor": "{}"},
    "hooks": {"core.hooksPath": "{folder}"},
    "external diff": {"diff.external": "{}", "diff.mark.command": "{}"},
    "textconv": {"diff.mark.textconv": "{}", "diff.mark.cachetextconv": "true"},
    "clean filter": {"filter.mark.clean": "{}", "filter.mark.required": "true"},
    "filter with an odd name": {"filter.a=b.clean": "{}", "filter.a=b.required": "true"},
    "filter process": {"filter.mark.process": "{}", "filter.mark.required": "true"},
    "merge driver": {"merge.mark.driver": "{}"},
    "signatures": {"gpg.program": "{}", "log.showSignature": "true", "commit.gpgSign": "true"},
    "pager and editor": {"core.pager": "{}", "pager.status": "{}", "pager.config": "{}", "core.editor": "{}"},
    "ssh command": {"core.sshCommand": "{}", "remote.origin.url": "ssh://mark.invalid/x"},
    "ask for a password": {
        "core.askPass": "{}",
        "credential.helper": "!{}",
        "remote.origin.url": "http://127.0.0.1:9/x",
    },
    "remote programs": {"remote.origin.uploadpack": "{}", "remote.origin.receivepack": "{}"},
    "remote helper": {"remote.origin.url": "ext::{}", "protocol.ext.allow": "always"},
    "alternate refs": {"core.alternateRefsCommand": "{}"},
    "include": {"include.path": "{included}"},
}


class Hostile:
    """A repository whose configuration names a program in every way that git knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder.parent / "mark"
        self.program = folder.parent / "evil" / "pre-commit"
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >>"{self.mark}"\ncat >/dev/null 2>&1 </dev/null\nexit 1\n')
        self.program.chmod(0o755)
        for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman", "post-checkout"):
            os.link(self.program, self.program.parent / name)
        folder.mkdir()
        self.env = clean_env(folder.parent / "state", GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
        self.git("init", "-q", "-b", "main")
        (folder / ".gitattributes").write_text("*.mark filter=mark diff=mark merge=mark\n*.odd filter=a=b\n")
        (folder / "a.mark").write_text("one\n")
        (folder / "b.odd").write_text("one\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "one")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *words],
            cwd=self.folder,
            env=self.env,
            check=True,
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
        )
        return done.stdout.strip()

    def configure(self, settings: dict[str, str], file: Path | None = None) -> None:
        included = self.folder.parent / "included"
        for key, value in settings.items():
            text = value.format(self.program, folder=self.program.parent, included=included)
            subprocess.run(
                ["git", "config", "-f", str(file or self.folder / ".git" / "config"), key, text],
                check=True,
                timeout=WAIT_S_MAX,
            )

    def ran(self) -> str:
        return self.mark.read_text() if self.mark.exists() else ""


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    return Hostile(tmp_path / "app")


def _asked_everything(hostile: Hostile, folder: Path) -> None:
    """All that dibs asks git about a work tree. What cannot be answered is no matter here."""
    try:
        repository = Repository.here(hostile.env, str(folder))
    except InvalidInput:
        return
    asked: list[Callable[[], object]] = [
        repository.changed,
        repository.staged,
        repository.settings,
        repository.origin,
        repository.hooks,
        lambda: repository.pushed("origin", [("HEAD", "0" * 40)]),
    ]
    for ask in asked:
        try:
            ask()
        except InvalidInput:
            pass


@pytest.mark.parametrize("way", PROGRAMS)
def test_a_git_folder_that_somebody_else_wrote_makes_dibs_run_no_program(hostile: Hostile, way: str) -> None:
    hostile.configure(PROGRAMS["fsmonitor"] | PROGRAMS["clean filter"], hostile.folder.parent / "included")
    (hostile.folder / "a.mark").write_text("two\n")
    hostile.git("add", "-A")
    for file in ("a.mark", "b.odd"):  # unpacked just now: nothing is as the index remembers it
        (hostile.folder / file).write_text("six\n")
    hostile.configure(PROGRAMS[way])
    _asked_everything(hostile, hostile.folder)
    assert hostile.ran() == ""


def test_objects_that_a_partial_clone_lacks_are_not_fetched_by_its_own_ssh_command(hostile: Hostile) -> None:
    tree = hostile.git("rev-parse", "HEAD^{tree}")
    hostile.configure(PROGRAMS["ssh command"])
    hostile.configure(
        {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.promisor": "true",
            "remote.origin.partialclonefilter": "tree:0",
        }
    )
    (hostile.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    _asked_everything(hostile, hostile.folder)
    assert hostile.ran() == ""


def test_the_configuration_of_a_submodule_runs_nothing(hostile: Hostile, tmp_path: Path) -> None:
    inner = Hostile.__new__(Hostile)
    inner.__dict__ |= hostile.__dict__
    inner.folder = hostile.folder / "inner"
    inner.folder.mkdir()
    inner.git("init", "-q", "-b", "main")
    (inner.folder / ".gitattributes").write_text("*.mark filter=mark\n")
    (inner.folder / "x.mark").write_text("x\n")
    inner.git("add", "-A")
    inner.git("commit", "-q", "-m", "x")
    hostile.git("add", "inner")
    (inner.folder / "x.mark").write_text("y\n")
    inner.configure(PROGRAMS["fsmonitor"] | PROGRAMS["clean filter"])
    _asked_everything(hostile, hostile.folder)
    assert hostile.ran() == ""


def test_a_filter_that_the_user_configured_is_used(hostile: Hostile, tmp_path: Path) -> None:
    """Else every file of git-lfs that was written again would count as changed."""
    settings = tmp_path / "gitconfig"
    hostile.env["GIT_CONFIG_GLOBAL"] = str(settings)
    hostile.configure({"filter.mark.clean": "sed s/six/one/"}, settings)
    (hostile.folder / "a.mark").write_text("six\n")
    assert Repository.here(hostile.env, str(hostile.folder)).changed() == []


def _bare_inside(hostile: Hostile, url: str = "http://127.0.0.1:9") -> Path:
    """A tracked folder that git would take for a bare repository."""
    tool = hostile.folder / "docs" / "tool"
    tool.mkdir(parents=True)
    for name in ("objects", "refs"):
        (tool / name).mkdir()
    (tool / "HEAD").write_text("ref: refs/heads/main\n")
    (tool / "index").write_bytes((hostile.folder / ".git" / "index").read_bytes())
    (tool / "config").write_text("[core]\n repositoryformatversion = 0\n bare = false\n worktree = .\n")
    hostile.configure(PROGRAMS["fsmonitor"] | {"dibs.url": url, "dibs.policy": "require"}, tool / "config")
    return tool


def test_a_bare_repository_in_a_work_tree_is_not_taken_for_the_repository(hostile: Hostile) -> None:
    tool = _bare_inside(hostile)
    found = repository_around(hostile.env, str(tool))
    assert found is not None
    assert os.path.realpath(found.own) == os.path.realpath(hostile.folder / ".git")
    assert "url" not in found.settings()
    _asked_everything(hostile, tool)
    assert hostile.ran() == ""


def test_a_bare_repository_in_a_folder_without_git_is_no_repository(hostile: Hostile) -> None:
    tool = _bare_inside(hostile)
    (hostile.folder / ".git").rename(hostile.folder.parent / "elsewhere")
    with pytest.raises(NotInWorkTree):
        Repository.here(hostile.env, str(tool))


def _bad_line(folder: Path) -> None:
    with (folder / ".git" / "config").open("a") as file:
        file.write("[\n")


def _newer_format(folder: Path) -> None:
    with (folder / ".git" / "config").open("a") as file:
        file.write("[core]\n repositoryformatversion = 1\n[extensions]\n fromTheFuture = true\n")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder.parent / "pipe")
    with (folder / ".git" / "config").open("a") as file:
        file.write(f"[include]\n path = {folder.parent}/pipe\n")


@pytest.mark.fault("F-364")
@pytest.mark.parametrize("spoil", [_bad_line, _newer_format, _pipe])
def test_a_claim_in_a_repository_that_git_cannot_read_does_not_go_elsewhere(
    hostile: Hostile, spoil: Callable[[Path], None]
) -> None:
    renamed = hostile.folder.rename(hostile.folder.parent / "not a git repository")
    spoil(renamed)
    done = dibs_here(hostile.env, renamed, "claim", "path:a", "--actor", "x")
    assert done.returncode == 64
    assert "git does not tell which repository this is" in done.stderr
    assert dibs_here(hostile.env, renamed, "claim", "issue-1", "--actor", "x").returncode == 0


@pytest.mark.fault("F-364")
def test_nor_does_that_of_an_agent_s_hook_in_the_repository_of_another_user(hostile: Hostile) -> None:
    """git lists the user's own settings there, and leaves out the repository's without an error."""
    hostile.env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    assert "safe.directory" in _done(hostile, "edit").stdout


def test_a_git_folder_that_is_hidden_from_an_agent_has_no_settings_and_no_trouble(hostile: Hostile) -> None:
    (hostile.folder / ".git").rename(hostile.folder.parent / "elsewhere")
    (hostile.folder / ".git").mkdir()
    done = _done(hostile, "edit")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_folder_that_was_deleted_is_in_no_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(NotInWorkTree):
        Repository.here({})


def test_a_git_store_in_a_tracked_bare_repository_is_that_of_the_clone(hostile: Hostile) -> None:
    """Else those who stand in that folder would have another store than everybody."""
    tool = _bare_inside(hostile)
    found = location_of("git:", str(tool))
    assert os.path.realpath(found.git.git_dir) == os.path.realpath(hostile.folder / ".git")
    (hostile.folder / ".git").rename(hostile.folder.parent / "elsewhere")
    with pytest.raises(StoreUnavailable, match="GIT_DIR"):
        location_of("git:", str(tool))


@pytest.mark.parametrize("way", PROGRAMS)
def test_a_git_store_in_the_clone_itself_runs_no_program(
    hostile: Hostile, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    hostile.configure(PROGRAMS["fsmonitor"] | PROGRAMS["clean filter"], hostile.folder.parent / "included")
    hostile.configure(PROGRAMS[way])
    monkeypatch.chdir(hostile.folder)
    transport = connect("git:", namespace=None, token=None, timeout_ms=10_000)
    try:
        assert transport.ask(Ask("acquire", "job", {"owner": "one"})).status == 200
    finally:
        transport.close()
    assert hostile.ran() == ""


def test_only_one_function_starts_git() -> None:
    """What every call needs is then in one place."""
    source = Path(dibs.__file__).parent
    named = [file.name for file in source.rglob("*.py") if '["git"' in file.read_text(encoding="utf-8")]
    assert named == ["git_program.py"]


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A stranger's server, and the tokens that were sent to it."""
    tokens: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            tokens.append(self.headers.get("Authorization") or "none")
            self.send_error(500)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", tokens
    finally:
        server.shutdown()
        thread.join(WAIT_S_MAX)
        server.server_close()


# What begins in a folder without a word of the user's, and two commands that read the repository's `url`.
ASKED = {
    "session start": (("agent", "hook"), {"hook_event_name": "SessionStart", "source": "startup"}),
    "edit": (("agent", "hook"), {"hook_event_name": "PreToolUse", "tool_name": "Edit"}),
    "shell": (("agent", "hook"), {"hook_event_name": "PreToolUse", "tool_name": "Bash"}),
    "after a shell": (("agent", "hook"), {"hook_event_name": "PostToolUse", "tool_name": "Bash"}),
    "stop": (("agent", "hook"), {"hook_event_name": "Stop"}),
    "claim --staged": (("claim", "--staged"), {}),
    "hook run": (("hook", "run", "pre-commit"), {}),
}
REMOTES = ("ssh command", "remote programs", "remote helper", "hooks of a folder")


def _archive(hostile: Hostile, remote: str) -> None:
    """An unpacked archive whose `.git` says that claims are at its remote, which is reached by its program."""
    (hostile.folder / "a.mark").write_text("two\n")
    hostile.git("add", "-A")
    there = hostile.folder.parent / "there.git"
    hostile.git("init", "-q", "--bare", str(there))
    if remote == "hooks of a folder":
        for hook in ("pre-receive", "update", "post-receive"):
            os.link(hostile.program, there / "hooks" / hook)
    hostile.configure({"remote.origin.url": str(there), **PROGRAMS.get(remote, {})})
    hostile.configure({"dibs.url": "git:origin", "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*"})


def _done(hostile: Hostile, asked: str, **env: str) -> subprocess.CompletedProcess[str]:
    words, event = ASKED[asked]
    file = str(hostile.folder / "a.mark")
    given = {"command": f"echo three > {file}"} if event.get("tool_name") == "Bash" else {"file_path": file}
    document = {"cwd": str(hostile.folder), "tool_input": given, "session_id": "one-1111", "transcript_path": "/t"}
    return subprocess.run(
        [*DIBS, *words],
        input=json.dumps({**event, **document}),
        cwd=hostile.folder,
        env=hostile.env | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S_MAX,
    )


@pytest.mark.e2e
@pytest.mark.fault("F-310")
@pytest.mark.parametrize("remote", REMOTES)
@pytest.mark.parametrize("asked", ASKED)
def test_an_archive_that_names_its_own_remote_as_the_store_runs_no_program(
    hostile: Hostile, asked: str, remote: str
) -> None:
    _archive(hostile, remote)
    done = _done(hostile, asked)
    assert (hostile.ran(), done.returncode) == ("", 0), done


@pytest.mark.e2e
@pytest.mark.fault("F-310")
@pytest.mark.parametrize("asked", [name for name, (words, _) in ASKED.items() if words[0] == "agent"])
def test_nor_when_the_user_has_all_claims_in_the_remote_of_each_clone(hostile: Hostile, asked: str) -> None:
    """Nobody typed what a hook of an agent does: it asks no remote of a clone that the user does not trust."""
    _archive(hostile, "ssh command")
    done = _done(hostile, asked, DIBS_URL="git:origin")
    assert hostile.ran() == ""
    assert "dibs trust" in done.stdout + done.stderr


def _tool_called(hostile: Hostile) -> str:
    """What an MCP client hears that starts `dibs mcp` in the folder and claims a job, and then standard error."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    claim = {"name": "claim_job", "arguments": {"job": "issue-1"}}
    asked = [("initialize", hello), ("tools/call", claim)]
    messages = [{"jsonrpc": "2.0", "id": at, "method": name, "params": each} for at, (name, each) in enumerate(asked)]
    server = subprocess.Popen(
        [*DIBS, "mcp"],
        cwd=hostile.folder,
        env=hostile.env | {"DIBS_URL": "git:origin"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    limit = threading.Timer(WAIT_S_MAX, server.kill)
    limit.start()
    try:
        heard = []
        for message in messages:
            with suppress(BrokenPipeError):
                server.stdin.write(json.dumps(message) + "\n")
                server.stdin.flush()
            heard.append(server.stdout.readline())
        return "".join([*heard, server.communicate()[1]])
    finally:
        limit.cancel()
        server.kill()
        server.wait()


@pytest.mark.e2e
@pytest.mark.fault("F-360")
@pytest.mark.parametrize("is_bare", [False, True])
def test_nor_does_the_mcp_server_that_an_agents_client_starts_there(hostile: Hostile, is_bare: bool) -> None:
    _archive(hostile, "ssh command")
    if is_bare:  # a git folder that says so, beside a work tree
        hostile.configure({"core.bare": "true"})
    told = _tool_called(hostile)
    assert hostile.ran() == ""
    assert ("not inside the work tree" if is_bare else "dibs trust") in told


@pytest.mark.e2e
@pytest.mark.fault("F-360")
def test_the_mcp_server_reaches_the_remote_of_a_trusted_repository(hostile: Hostile, tmp_path: Path) -> None:
    hostile.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    _archive(hostile, "ssh command")
    subprocess.run([*DIBS, "trust"], cwd=hostile.folder, env=hostile.env, check=True, timeout=WAIT_S_MAX)
    _tool_called(hostile)
    assert "mark.invalid" in hostile.ran()


@pytest.mark.e2e
@pytest.mark.fault("F-310")
def test_the_remote_of_a_trusted_repository_is_reached_as_it_says(hostile: Hostile, tmp_path: Path) -> None:
    hostile.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    _archive(hostile, "ssh command")
    subprocess.run([*DIBS, "trust"], cwd=hostile.folder, env=hostile.env, check=True, timeout=WAIT_S_MAX)
    _done(hostile, "edit")
    assert "mark.invalid" in hostile.ran()


@pytest.mark.e2e
@pytest.mark.fault("F-312")
@pytest.mark.parametrize("source", ["DIBS_TOKEN", "DIBS_TOKEN_FILE", "token_file"])
@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("asked", ["session start", "edit", "claim --staged"])
def test_the_server_of_an_archive_gets_no_token(
    hostile: Hostile, listener: tuple[str, list[str]], tmp_path: Path, asked: str, is_trusted: bool, source: str
) -> None:
    url, tokens = listener
    _archive(hostile, "ssh command")
    hostile.configure({"dibs.url": url})
    hostile.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    (tmp_path / "config" / "dibs").mkdir(parents=True)
    (tmp_path / "token").write_text("dibs_secret_of_the_user\n")
    if source == "token_file":
        (tmp_path / "config" / "dibs" / "config.toml").write_text(f'token_file = "{tmp_path}/token"\n')
    else:
        hostile.env[source] = "dibs_secret_of_the_user" if source == "DIBS_TOKEN" else str(tmp_path / "token")
    if is_trusted:
        subprocess.run([*DIBS, "trust"], cwd=hostile.folder, env=hostile.env, check=True, timeout=WAIT_S_MAX)
    _done(hostile, asked)
    assert set(tokens) == ({"none"} if is_trusted else set())


@pytest.mark.e2e
@pytest.mark.parametrize("words", [("claim", "--staged"), ("hook", "run", "pre-commit"), ("agent", "hook")])
def test_a_command_in_a_tracked_bare_repository_sends_its_token_nowhere_else(
    hostile: Hostile, listener: tuple[str, list[str]], words: tuple[str, ...]
) -> None:
    url, tokens = listener
    tool = _bare_inside(hostile, url)
    edit = {"file_path": str(tool / "HEAD"), "old_string": "x", "new_string": "y"}
    event = {"hook_event_name": "PreToolUse", "cwd": str(tool), "tool_name": "Edit", "tool_input": edit}
    subprocess.run(
        [*DIBS, *words],
        input=json.dumps({**event, "session_id": "one-1111", "transcript_path": "/t"}),
        cwd=tool,
        env=hostile.env | {"DIBS_TOKEN": "dibs_secret_of_the_user"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S_MAX,
    )
    assert (tokens, hostile.ran()) == ([], "")
