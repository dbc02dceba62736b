"""`dibs agent install`: writes each client's own configuration, keeps what is there, and undoes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dibs.harness.configuration import COMMAND, HOOK_FILES, MCP_FILES, SERVER
from dibs.harness.parse import HARNESSES
from tests.cli.conftest import Terminal

OTHERS: dict[str, Any] = {
    "permissions": {"allow": ["Bash(ls)"]},
    "hooks": {
        "PreToolUse": [{"matcher": "Edit", "hooks": [{"type": "command", "command": "lint"}]}],
        "Empty": [],
    },
}


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Terminal()


def commands(found: object) -> list[str]:
    """All hook commands of dibs in a configuration, wherever they stand."""
    if isinstance(found, dict):
        own = [found[key] for key in ("command", "bash") if str(found.get(key, "")).startswith(COMMAND)]
        return own + [each for value in found.values() for each in commands(value)]
    return [each for value in found for each in commands(value)] if isinstance(found, list) else []


@pytest.mark.parametrize("scope", [(), ("--user",)])
@pytest.mark.parametrize("harness", HARNESSES)
def test_it_is_installed_once_and_taken_out_again(
    terminal: Terminal, tmp_path: Path, harness: str, scope: tuple[str, ...]
) -> None:
    words = ("--client", harness, *scope)
    assert terminal("agent", "status", *words).exit == 1
    first = terminal("agent", "install", *words, "--json").data["files"]
    texts = {each["path"]: Path(each["path"]).read_text() for each in first}
    path = HOOK_FILES[harness][1 if scope else 0].replace("~", str(tmp_path / "home"))
    hooks = json.loads((tmp_path / path).read_text())
    assert set(commands(hooks)) == {f"{COMMAND} --client {harness}"}
    again = terminal("agent", "install", *words, "--json").data["files"]
    assert {each["done"] for each in again} == {"unchanged"}
    assert texts == {each["path"]: Path(each["path"]).read_text() for each in again}
    assert terminal("agent", "status", *words).exit == 0
    assert terminal("agent", "uninstall", *words).exit == 0
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("harness", sorted(MCP_FILES))
def test_the_mcp_server_is_added_beside_others(terminal: Terminal, tmp_path: Path, harness: str) -> None:
    path = tmp_path / MCP_FILES[harness][0]
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"mcpServers": {"other": {"command": "x"}}}')
    terminal("agent", "install", "--client", harness)
    assert json.loads(path.read_text())["mcpServers"] == {"other": {"command": "x"}, "dibs": SERVER}
    terminal("agent", "uninstall", "--client", harness)
    assert json.loads(path.read_text()) == {"mcpServers": {"other": {"command": "x"}}}


def test_what_others_wrote_stays(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(json.dumps(OTHERS))
    assert terminal("agent", "install").exit == 0
    made = json.loads(path.read_text())
    assert made["permissions"] == OTHERS["permissions"]
    assert made["hooks"]["PreToolUse"][0] == OTHERS["hooks"]["PreToolUse"][0]
    terminal("agent", "uninstall")
    assert json.loads(path.read_text()) == OTHERS


@pytest.mark.parametrize("content", ["{ // a comment\n}", "[]", '{"hooks": []}', "\x00"])
def test_a_file_that_cannot_be_read_leaves_all_files_as_they_are(
    terminal: Terminal, tmp_path: Path, content: str
) -> None:
    path = tmp_path / ".cursor" / "hooks.json"
    path.parent.mkdir()
    path.write_text(content)
    ran = terminal("agent", "install", "--client", "all")
    assert ran.exit == 64
    assert str(path) in ran.err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert path.read_text() == content


def test_an_unknown_client_is_named(terminal: Terminal) -> None:
    assert "claude, codex" in terminal("agent", "install", "--client", "emacs").err


def test_it_says_what_the_files_cannot_do(terminal: Terminal, tmp_path: Path) -> None:
    assert "dibs is not on PATH here" in terminal("agent", "install", "--client", "claude").out
    (tmp_path / "dibs").write_text("#!/bin/sh\n")
    (tmp_path / "dibs").chmod(0o755)
    terminal.env["PATH"] = str(tmp_path)
    assert "PATH" not in terminal("agent", "install", "--client", "claude").out
    shown = terminal("agent", "install", "--client", "all", "--user").out
    assert "claude mcp add --scope user dibs -- dibs mcp" in shown
    assert "codex mcp add dibs -- dibs mcp" in shown
