"""When dibs cannot work: a server that is silent, refuses or does not know the token, git that hangs, folders that
cannot be written. The hook answers before its harness gives up, `require` holds, and the agent is told once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from dibs.agents.harness import hook_transport
from dibs.agents.harness.configuration import _SECONDS
from dibs.agents.harness.hook_transport import ANSWER_MS, SILENCE_MS, note_path, note_silence, was_silent
from dibs.base.clock import wall_ms
from tests.programs import DIBS, WAIT_S_MAX, dibs_here, wait_until
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.plugins.harness.conftest import Yard

pytestmark = pytest.mark.full

HEARD = {"claude": "PreToolUse", "codex": "PreToolUse", "gemini": "AfterTool", "copilot": "preToolUse"}


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(WAIT_S_MAX)
            for each in kept:
                each.close()


@pytest.fixture
def refusing() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def _requires(yard: Yard) -> None:
    (yard.folder / ".dibs.toml").write_text("[agent]\nrequire = true\n")


@pytest.mark.fault("F-315")
@pytest.mark.parametrize("harness", ["claude", "codex", "gemini", "copilot", "cursor", "opencode"])
def test_a_silent_server_refuses_where_the_repository_requires_to_know(
    yard: Yard, silent: str, harness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_transport, "ANSWER_MS", 200)
    _requires(yard)
    yard.env["DIBS_URL"] = silent
    agent = yard.agent("one-1111", "claude" if harness == "opencode" else harness)
    assert not agent.edit("src/a")
    assert not agent.edit("src/b")


@pytest.mark.e2e
@pytest.mark.fault("F-315")
def test_a_silent_server_is_waited_for_once_and_well_below_the_harness_s_limit(yard: Yard, silent: str) -> None:
    _requires(yard)
    yard.env["DIBS_URL"] = silent
    agent = yard.agent("one-1111")
    begun_s = monotonic()
    assert not agent.edit("src/a")
    assert monotonic() - begun_s >= ANSWER_MS / 1000
    assert is_in_time(begun_s, _SECONDS)
    begun_s = monotonic()
    assert not agent.edit("src/b")  # it was silent a moment ago
    assert is_in_time(begun_s, ANSWER_MS / 1000)


def test_a_harness_waits_longer_than_a_hook_takes() -> None:
    from dibs.agents.commands.agent_hook import _END_MS_MAX, _MS_MAX
    from dibs.agents.harness.configuration import _SECONDS_AT_THE_END

    assert ANSWER_MS < _MS_MAX < _SECONDS * 1000
    assert _END_MS_MAX < _SECONDS_AT_THE_END * 1000


@pytest.mark.fault("F-316")
@pytest.mark.parametrize("harness", HEARD)
def test_each_agent_is_told_once_in_its_session_that_nothing_is_claimed(
    yard: Yard, refusing: str, harness: str
) -> None:
    yard.env["DIBS_URL"] = refusing
    agent, other = yard.agent("one-1111", harness), yard.agent("two-2222", harness)
    start = "sessionStart" if harness == "copilot" else "SessionStart"
    for each in (agent, other):
        done = each.send(each.document(start, source="startup"), "--client", harness)
        assert done.stdout, "nothing was said"
        told = json.loads(done.stdout)
        context = told["additionalContext"] if harness == "copilot" else told["hookSpecificOutput"]["additionalContext"]
        assert "dibs does not work now" in context
        assert refusing in context
        assert "The work goes on" in context
        assert "Do not begin" not in context
        again = each.send(each.document(start, source="startup"), "--client", harness)
        assert (again.returncode, again.stdout) == (0, "")
        assert "nothing was claimed" in again.stderr


@pytest.mark.fault("F-316")
def test_an_agent_that_was_not_told_at_its_start_is_told_with_its_next_edit(yard: Yard, refusing: str) -> None:
    agent = yard.agent("one-1111")
    assert agent.edit("src/a")
    yard.env["DIBS_URL"] = refusing
    given = {"file_path": str(yard.folder / "src/b")}
    first, again = (agent.send(agent.document("PreToolUse", "Edit", given)) for _ in range(2))
    assert "does not work now" in json.loads(first.stdout)["hookSpecificOutput"]["additionalContext"]
    assert "permissionDecision" not in first.stdout
    assert (again.returncode, again.stdout) == (0, "")
    found = dibs_here(yard.env, yard.folder, "agent", "status", "--json")
    assert json.loads(found.stdout)["error"]["details"]["trouble"]["why"].startswith("No server answers")


@pytest.mark.fault("F-362")
def test_a_person_sees_why_edits_are_refused_where_the_check_is_required(yard: Yard, refusing: str) -> None:
    _requires(yard)
    yard.env["DIBS_URL"] = refusing
    assert not yard.agent("one-1111").edit("src/a")
    assert "could not do its work: No server answers" in dibs_here(yard.env, yard.folder, "agent", "status").stdout


@pytest.mark.fault("F-316")
def test_a_token_that_was_revoked_is_trouble_and_no_empty_answer(yard: Yard, tmp_path: Path) -> None:
    from tests.client.scripted import ScriptedServer, reply_of

    refused = reply_of(401, {"error": "unauthorized", "code": "unauthorized", "details": "This token is not known."})
    with ScriptedServer([refused] * 5) as server:
        yard.env |= {"DIBS_URL": server.url, "DIBS_TOKEN": "dibs_old"}
        assert "This token is not known" in yard.agent("one-1111").tell("SessionStart", source="startup")


@pytest.mark.fault("F-316")
def test_nor_does_nobody_have_a_file_for_a_token_that_was_revoked(yard: Yard) -> None:
    from tests.client.scripted import ScriptedServer, reply_of

    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    refused = reply_of(401, {"error": "unauthorized", "code": "unauthorized", "details": "This token is not known."})
    with ScriptedServer([refused] * 5) as server:
        yard.env |= {"DIBS_URL": server.url, "DIBS_TOKEN": "dibs_old"}
        done = two.send(two.document("PreToolUse", "Bash", {"command": "./codemod src/a"}))
    assert "This token is not known" in done.stdout


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/nowhere", path)], ids=["pipe", "link"])
def test_an_agent_is_told_where_that_cannot_be_noted(
    yard: Yard, refusing: str, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "state" / "dibs").mkdir(parents=True, exist_ok=True)
    for name in ("told", "agent-trouble"):
        make(tmp_path / "state" / "dibs" / name)
    yard.env["DIBS_URL"] = refusing
    assert "does not work now" in yard.agent("one-1111").tell("SessionStart", source="startup")
    assert dibs_here(yard.env, yard.folder, "agent", "status").returncode == 1


# The note of a silent server.


def test_a_note_counts_for_a_while_and_only_as_a_file_of_the_user_s_own(tmp_path: Path) -> None:
    path = note_path({"XDG_STATE_HOME": str(tmp_path)}, "http://127.0.0.1:9")
    assert not was_silent(path)
    note_silence(path)
    assert was_silent(path)
    for age_ms, counts in ((SILENCE_MS + 1000, False), (-60_000, False), (1000, True)):
        at_s = (wall_ms() - age_ms) / 1000
        os.utime(path, (at_s, at_s))
        assert was_silent(path) is counts


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_note_that_somebody_put_there_is_neither_followed_nor_opened(tmp_path: Path, kind: str) -> None:
    path = note_path({"XDG_STATE_HOME": str(tmp_path)}, "http://127.0.0.1:9")
    os.makedirs(os.path.dirname(path))
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    if kind == "link":
        os.symlink(precious, path)
    else:
        {"pipe": os.mkfifo, "folder": os.mkdir}[kind](path)
    assert not was_silent(path)
    note_silence(path)
    assert precious.read_text() == "mine\n"
    assert was_silent(path) is (kind != "folder")


@pytest.mark.parametrize("is_required", [False, True])
def test_a_state_folder_that_cannot_be_made_is_reported_and_refuses_only_if_required(
    yard: Yard, tmp_path: Path, is_required: bool
) -> None:
    (tmp_path / "file").write_text("")
    yard.env["XDG_STATE_HOME"] = str(tmp_path / "file")
    if is_required:
        _requires(yard)
    given = {"file_path": str(yard.folder / "src/a")}
    agent = yard.agent("one-1111")
    done = agent.send(agent.document("PreToolUse", "Edit", given))
    assert done.returncode == (2 if is_required else 0)
    assert "dibs" in (done.stderr if is_required else done.stdout)


# git that hangs.


def _hangs(yard: Yard) -> Path:
    pipe = yard.folder.parent / "pipe"
    os.mkfifo(pipe)
    yard.git("config", "include.path", str(pipe))
    return pipe


def _readers(pipe: Path) -> list[int]:
    """Processes that would read the pipe: git with this folder in its command line."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == b"git" and os.fsencode(pipe.parent / "app") in words:
            found.append(int(pid))
    return found


@pytest.mark.e2e
@pytest.mark.fault("F-313")
def test_a_pipe_in_the_configuration_ends_the_hook_in_time_and_refuses_if_required(yard: Yard) -> None:
    _requires(yard)
    pipe = _hangs(yard)
    begun_s = monotonic()
    assert not yard.agent("one-1111").edit("src/a")
    assert is_in_time(begun_s, _SECONDS)
    assert _readers(pipe) == []


@pytest.mark.e2e
@pytest.mark.fault("F-313")
def test_git_ends_with_a_hook_that_is_killed(yard: Yard) -> None:
    pipe = _hangs(yard)
    agent = yard.agent("one-1111")
    with subprocess.Popen([*DIBS, "agent", "hook"], env=yard.env, cwd=yard.folder, stdin=subprocess.PIPE) as hook:
        assert hook.stdin is not None
        given = {"file_path": str(yard.folder / "src/a")}
        hook.stdin.write(json.dumps(agent.document("PreToolUse", "Edit", given)).encode())
        hook.stdin.close()
        wait_until(lambda: _readers(pipe), "git reads the pipe")
        hook.kill()
        hook.wait(WAIT_S_MAX)
    wait_until(lambda: not _readers(pipe), "git has ended")


@pytest.mark.parametrize("name", ["HEAD", "commondir"])
def test_a_pipe_in_the_place_of_a_file_of_git_s_does_not_stop_the_hook(yard: Yard, name: str) -> None:
    path = yard.folder / ".git" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    given = {"file_path": str(yard.folder / "src/a")}
    agent = yard.agent("one-1111")
    assert agent.send(agent.document("PreToolUse", "Edit", given)).returncode == 0
