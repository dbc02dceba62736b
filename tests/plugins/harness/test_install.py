"""`dibs agent install`: writes each client's own configuration, keeps what is there, and undoes itself."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dibs.agents import shipped_files
from dibs.agents.harness.agent_identity import HARNESSES
from dibs.agents.harness.configuration import COMMAND, FILES, HOOK_FILES, entry, servers_key, with_hooks
from dibs.agents.harness.json_edit import value_of
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
        own = [found[key] for key in ("command", "bash") if COMMAND in str(found.get(key, ""))]
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
    hooks = (
        commands(json.loads((tmp_path / path).read_text()))
        if path.endswith(".json")
        else [f"; exec {COMMAND} --client {harness}"]
    )
    told = {each.rpartition("; exec ")[2].removesuffix(" --limit 120s") for each in hooks}
    assert told == {f"{COMMAND} --client {harness}"}
    again = terminal("agent", "install", *words, "--json").data["files"]
    assert {each["done"] for each in again} == {"unchanged"}
    assert texts == {each["path"]: Path(each["path"]).read_text() for each in again}
    assert terminal("agent", "status", *words).exit == 0
    assert terminal("agent", "uninstall", *words).exit == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file() or path.name == f".{harness}"]


SERVER_FILES = [(harness, scope) for harness in HARNESSES for scope in (0, 1) if FILES[harness][scope]]


def server_file(tmp_path: Path, harness: str, scope: int) -> Path:
    path = tmp_path / str(FILES[harness][scope]).replace("~", str(tmp_path / "home"))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def servers_in(path: Path) -> Any:
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())["mcp_servers"]
    document = json.loads(path.read_text())
    return document["mcp" if path.name == "opencode.json" else "mcpServers"]


@pytest.mark.parametrize(("harness", "scope"), SERVER_FILES)
def test_the_mcp_server_is_added_beside_others(terminal: Terminal, tmp_path: Path, harness: str, scope: int) -> None:
    path = server_file(tmp_path, harness, scope)
    before = f'{{"{servers_key(harness)}": {{"other": {{"command": "x"}}}}}}'
    if path.suffix == ".toml":
        before = '# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x" # stays'
    path.write_text(before)
    path.chmod(0o600)
    words = ("--client", harness, *(("--user",) if scope else ()))
    assert terminal("agent", "install", *words).exit == 0
    assert servers_in(path) == {"other": {"command": "x"}, "dibs": entry(harness)}
    assert path.stat().st_mode & 0o777 == 0o600
    assert terminal("agent", "status", *words).exit == 0
    assert terminal("agent", "uninstall", *words).exit == 0
    assert servers_in(path) == {"other": {"command": "x"}}
    assert path.read_text() == before


@pytest.mark.parametrize(("harness", "scope"), SERVER_FILES)
def test_a_server_that_somebody_called_dibs_stays(terminal: Terminal, tmp_path: Path, harness: str, scope: int) -> None:
    path = server_file(tmp_path, harness, scope)
    own = f'{{"{servers_key(harness)}": {{"dibs": {{"command": "dibs", "env": {{"DIBS_URL": "https://x"}}}}}}}}'
    if path.suffix == ".toml":
        own = '[mcp_servers.dibs]\ncommand = "dibs"\nargs = ["mcp"]\n[mcp_servers.dibs.env]\nDIBS_URL = "https://x"\n'
    path.write_text(own)
    before = servers_in(path)
    words = ("--client", harness, *(("--user",) if scope else ()))
    for verb in ("install", "status", "uninstall"):
        assert terminal("agent", verb, *words).exit == 0
        assert servers_in(path) == before


def test_a_list_of_servers_that_cannot_be_added_to_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    path = server_file(tmp_path, "codex", 0)
    path.write_text('mcp_servers = { other = { command = "x" } }\n')
    ran = terminal("agent", "install", "--client", "codex")
    assert ran.exit == 64
    assert str(path) in ran.err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_a_file_behind_a_link_is_written_and_the_link_stays(terminal: Terminal, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text('model = "m"\n')
    path = server_file(tmp_path, "codex", 1)
    path.symlink_to(kept)
    assert terminal("agent", "install", "--client", "codex", "--user").exit == 0
    assert path.is_symlink()
    assert "dibs" in kept.read_text()
    assert terminal("agent", "uninstall", "--client", "codex", "--user").exit == 0
    assert kept.read_text() == 'model = "m"\n'


def test_what_others_wrote_stays(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(json.dumps(OTHERS))
    assert terminal("agent", "install").exit == 0
    made = json.loads(path.read_text())
    assert made["permissions"] == OTHERS["permissions"]
    assert made["hooks"]["PreToolUse"][0] == OTHERS["hooks"]["PreToolUse"][0]
    terminal("agent", "uninstall")
    assert path.read_text() == json.dumps(OTHERS)


COMMENTED = """\
// Gemini reads comments.
{
\t"theme": "dark", /* kept */
\t"hooks": {
\t\t"BeforeTool": [{"matcher": "replace", "hooks": [{"type": "command", "command": "lint"}]}], // mine
\t},
\t// the last word
}"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_with_comments_is_edited_and_restored_to_the_byte(
    terminal: Terminal, tmp_path: Path, newline: str
) -> None:
    path = tmp_path / ".gemini" / "settings.json"
    path.parent.mkdir()
    before = COMMENTED.replace("\n", newline).encode()
    path.write_bytes(before)
    assert terminal("agent", "install", "--client", "gemini").exit == 0
    made = path.read_bytes().decode()
    assert all(part in made for part in ("// Gemini reads comments.", "/* kept */", "// mine", "// the last word"))
    assert value_of(made)["mcpServers"]["dibs"] == entry("gemini")
    assert terminal("agent", "status", "--client", "gemini").exit == 0
    assert terminal("agent", "uninstall", "--client", "gemini").exit == 0
    assert path.read_bytes() == before


def test_a_hook_without_dibs_says_so_once_and_lets_the_work_go_on(tmp_path: Path) -> None:
    for harness in [each for each in HARNESSES if each != "opencode"]:
        document = json.loads(with_hooks("{}", harness))
        for event, entries in document["hooks"].items():
            for command in commands(entries):
                ran = subprocess.run(
                    ["/bin/sh", "-c", command], env={"PATH": str(tmp_path)}, capture_output=True, timeout=60, check=True
                )
                assert ran.stderr == b""
                is_start = event.lower() == "sessionstart"
                assert bool(ran.stdout) == is_start
                assert not is_start or "dibs is not installed here" in str(json.loads(ran.stdout).values())


@pytest.mark.parametrize(
    "content", ["{ /* a comment\n}", "[]", '{"hooks": []}', '{"hooks": {"preToolUse": {}}}', "\x00", "[" * 100_000]
)
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
    assert "after you trust them" in shown
    assert "--trust-folder" in terminal("agent", "install", "--client", "copilot").out
    assert "--client windsurf --user" in terminal("agent", "install", "--client", "windsurf").out


@pytest.mark.parametrize("harness", ["claude", "codex", "gemini", "copilot", "cursor"])
def test_a_hook_that_may_stand_in_line_is_told_how_long_its_client_waits(harness: str) -> None:
    before = ("PreToolUse", "BeforeTool", "preToolUse", "beforeShellExecution")
    found = json.loads(with_hooks("{}", harness))["hooks"]
    for event, entries in found.items():
        entry = entries[0].get("hooks", entries)[0]
        seconds = entry.get("timeoutSec") or entry["timeout"] // (1000 if harness == "gemini" else 1)
        command = entry.get("bash") or entry["command"]
        assert command.endswith(f" --limit {seconds}s") == (event in before)
        assert event in before or seconds <= 10


ODD = {
    "tabs": '{\n\t"a": 1\n}\n',
    "CRLF": '{\r\n  "a": 1\r\n}\r\n',
    "no final newline": '{"a": 1}',
    "a comment": '{\n  // mine\n  "a": 1\n}\n',
    "an empty table": "{}\n",
    "empty hooks": '{"version":1,"hooks":{}}',
    "empty servers": '{\n  "mcpServers": {},\n  "a": 1\n}\n',
    "an empty event": '{"hooks": {"PreToolUse": [], "preToolUse": [], "BeforeTool": []}}\n',
    "spread": '{\n\n  "hooks" : {\n  }\n ,"mcp": { } }\n',
}


@pytest.mark.fault("F-615")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("harness", [each for each in HARNESSES if each not in ("opencode", "codex")])
def test_uninstalling_gives_every_odd_file_back_as_it_was(
    terminal: Terminal, tmp_path: Path, harness: str, odd: str
) -> None:
    files = {tmp_path / each for each in (HOOK_FILES[harness][0], FILES[harness][0]) if each}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ODD[odd].encode())
    for _ in range(2):
        assert terminal("agent", "install", "--client", harness).exit == 0
    assert terminal("agent", "uninstall", "--client", harness).exit == 0
    left = {path: path.read_bytes() for path in files if path.exists()}
    assert left == dict.fromkeys(files, ODD[odd].encode())


def test_a_file_that_somebody_changed_since_keeps_the_change(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / ".cursor" / "hooks.json"
    path.parent.mkdir()
    path.write_text(ODD["empty hooks"])
    terminal("agent", "install", "--client", "cursor")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "mine": 1}))
    assert terminal("agent", "uninstall", "--client", "cursor").exit == 0
    assert json.loads(path.read_text()) == {"version": 1, "mine": 1}


OLD_TOML = '[mcp_servers.dibs]\ncommand = "dibs"\nargs = ["mcp"]\n'


@pytest.mark.fault("F-616")
@pytest.mark.parametrize("before", ["", 'model = "m"\n', 'model = "m"\n\n[a]\nb = 1\n'])
@pytest.mark.parametrize("after", ["", "\n[z]\nk = 2\n"])
def test_codex_old_server_is_renewed_and_taken_out(terminal: Terminal, tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    gap = "\n" if before else ""
    path.write_text(before + gap + OLD_TOML + after)
    assert terminal("agent", "status", "--client", "codex").exit == 1
    assert terminal("agent", "install", "--client", "codex").exit == 0
    assert servers_in(path)["dibs"] == entry("codex")
    assert terminal("agent", "uninstall", "--client", "codex").exit == 0
    assert "dibs" not in (path.read_text() if path.exists() else "")
    path.parent.mkdir(exist_ok=True)
    path.write_text(before + gap + OLD_TOML + after)
    assert terminal("agent", "uninstall", "--client", "codex").exit == 0
    left = path.read_text() if path.exists() else ""
    assert tomllib.loads(left) == tomllib.loads(before + after)


def test_a_plugin_of_an_older_version_is_taken_out_and_a_changed_one_stays(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / ".opencode" / "plugin" / "dibs.js"
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n")
    assert terminal("agent", "uninstall", "--client", "opencode").exit == 0
    assert path.read_text() == "// mine\n"


@pytest.mark.fault("F-616")
def test_a_skill_of_an_older_version_is_renewed_and_a_changed_one_is_left_alone(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, path = "an older skill\n", tmp_path / ".claude" / "skills" / "dibs" / "SKILL.md"
    digest = hashlib.sha256(older.encode()).hexdigest()
    own = shipped_files._own
    monkeypatch.setattr(
        shipped_files, "_own", lambda *name: f"{digest}  x\n" if name[-1].endswith("txt") else own(*name)
    )
    path.parent.mkdir(parents=True)
    for command in (("agent", "install"), ("skill", "install")):
        for text in (older, older.replace("\n", "\r\n")):
            path.write_bytes(text.encode())
            assert "of an older dibs: `dibs skill install`" in terminal("doctor").out
            assert f"Brought {os.path.relpath(path)} up to date." in terminal(*command).out
            assert path.read_text() == shipped_files.skill_text()
    assert "is the one of this version" in terminal("doctor").out
    path.write_text("mine")
    assert "SKILL.md was changed by somebody, and is left alone" in terminal("agent", "install").out
    assert terminal("skill", "install").exit == 64
    assert "was changed by somebody: compare it" in terminal("doctor").out
    assert path.read_text() == "mine"
