"""The configuration files of harnesses, with the hooks of dibs in them or not. Pure.

Each function takes what a file says and returns what it should say. What others wrote stays as it is. Entries of dibs
are known by their command.
"""

from __future__ import annotations

from dibs.agents.harness.identity import CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, WINDSURF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]

# The entry of dibs in the lists of MCP servers of harnesses. Pure.
#
# A server that is called dibs and is not written as here was put there by somebody, for instance with the address of a
# server. It stays as it is.

NAME = "dibs"
KEY = "mcpServers"
TOML_KEY = "mcp_servers"
SERVER: Document = {"command": "dibs", "args": ["mcp"]}
_TYPED: Document = {"type": "stdio", **SERVER, "tools": ["*"]}
TOML = '[mcp_servers.dibs]\ncommand = "dibs"\nargs = ["mcp"]\n'
# In a project, and of a user. None: the harness has no such file, or one that only its own commands should write.
FILES: dict[str, tuple[str | None, str | None]] = {
    CLAUDE: (".mcp.json", None),
    CODEX: (".codex/config.toml", "~/.codex/config.toml"),
    CURSOR: (".cursor/mcp.json", "~/.cursor/mcp.json"),
    GEMINI: (".gemini/settings.json", "~/.gemini/settings.json"),
    COPILOT: (".github/mcp.json", "~/.copilot/mcp-config.json"),
    WINDSURF: (None, "~/.codeium/windsurf/mcp_config.json"),
}


def entry(harness: str) -> Document:
    return _TYPED if harness == COPILOT else SERVER


def with_server(document: Document, harness: str) -> Document:
    servers = document.get(KEY) or {}
    return document if NAME in servers else {**document, KEY: {**servers, NAME: entry(harness)}}


def without_server(document: Document, harness: str) -> Document:
    servers = document.get(KEY) or {}
    if servers.get(NAME) != entry(harness):
        return document
    left = {key: value for key, value in servers.items() if key != NAME}
    made = {**document, KEY: left}
    return made if left else {key: value for key, value in made.items() if key != KEY}


def with_server_toml(text: str) -> str:
    """The table is added at the end, so that all else stays as it is written, comments too. Raises ValueError."""
    if NAME in _servers(text):
        return text
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    made = f"{text}{gap}{TOML}"
    _servers(made)  # a list written as an inline table cannot be added to
    return made


def without_server_toml(text: str) -> str:
    """Raises ValueError."""
    if _servers(text).get(NAME) != SERVER:
        return text
    before, found, after = text.partition(TOML)
    made = before.removesuffix("\n") + after if before else after.removeprefix("\n")
    # Written in another way, or with more below it: not ours to take out.
    return made if found and NAME not in _servers(made) else text


def _servers(text: str) -> Document:
    import tomllib

    servers = tomllib.loads(text).get(TOML_KEY, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{TOML_KEY} is no table")
    return servers


COMMAND = "dibs agent hook"
_SECONDS = 10
_EDITS_AND_SHELL = "Edit|Write|MultiEdit|NotebookEdit|apply_patch|Bash"
# Events by harness, with the tools that each is for. None: no choice of tools.
_EVENTS: dict[str, dict[str, str | None]] = {
    CLAUDE: {
        "PreToolUse": _EDITS_AND_SHELL,
        "PostToolUse": "Bash",
        "SessionStart": None,
        "Stop": None,
        "SubagentStop": None,
        "SessionEnd": None,
    },
    CODEX: {
        "PreToolUse": _EDITS_AND_SHELL,
        "PostToolUse": "Bash",
        "PostCompact": None,
        "SessionStart": None,
        "Stop": None,
        "SubagentStop": None,
        "SessionEnd": None,
    },
    GEMINI: {
        "BeforeTool": "write_file|replace|run_shell_command",
        "AfterTool": "run_shell_command",
        "AfterAgent": None,
        "SessionEnd": None,
    },
    # Events in small letters do not name themselves to Copilot's hooks. `Stop` does, and could not be told otherwise.
    COPILOT: {"preToolUse": None, "postToolUse": None, "Stop": None, "sessionEnd": None},
    CURSOR: {
        "preToolUse": "Write|Edit|Delete",
        "beforeShellExecution": None,
        "postToolUse": "Shell",
        "stop": None,
        "sessionEnd": None,
    },
    WINDSURF: {"pre_write_code": None, "pre_run_command": None},
}
# Where the hooks are: in a project, and of a user.
HOOK_FILES = {
    CLAUDE: (".claude/settings.json", "~/.claude/settings.json"),
    CODEX: (".codex/hooks.json", "~/.codex/hooks.json"),
    CURSOR: (".cursor/hooks.json", "~/.cursor/hooks.json"),
    GEMINI: (".gemini/settings.json", "~/.gemini/settings.json"),
    COPILOT: (".github/hooks/dibs.json", "~/.copilot/hooks/dibs.json"),
    WINDSURF: (".windsurf/hooks.json", "~/.codeium/windsurf/hooks.json"),
}


def with_hooks(document: Document, harness: str) -> Document:
    """The configuration with the hooks of dibs, each once."""
    made = without_hooks(document)
    hooks = dict(made.get("hooks") or {})
    for event, tools in _EVENTS[harness].items():
        hooks[event] = [*(hooks.get(event) or []), _entry(harness, tools)]
    if harness in (COPILOT, CURSOR):
        made.setdefault("version", 1)
    made["hooks"] = hooks
    return made


def without_hooks(document: Document) -> Document:
    """The configuration without the hooks of dibs."""
    hooks = document.get("hooks")
    if not isinstance(hooks, dict):
        return dict(document)
    kept = {}
    for event, entries in hooks.items():
        left = [_without(entry) for entry in entries] if isinstance(entries, list) else entries
        left = [entry for entry in left if entry is not None] if isinstance(left, list) else left
        if left != [] or entries == []:
            kept[event] = left
    made = {key: value for key, value in document.items() if key != "hooks"}
    if kept or not hooks:
        made["hooks"] = kept
    return {key: made[key] for key in document if key in made}


def is_empty(document: Document) -> bool:
    """Tell whether a file says nothing that anybody would miss."""
    return all(key == "version" or value in ({}, []) for key, value in document.items())


def _entry(harness: str, tools: str | None) -> Document:
    command = f"{COMMAND} --client {harness}"
    if harness == COPILOT:
        return {"type": "command", "bash": command, "timeoutSec": _SECONDS}
    if harness == WINDSURF:
        return {"command": command}
    if harness == CURSOR:
        made: Document = {"command": command, "timeout": _SECONDS}
    else:
        seconds = _SECONDS * 1000 if harness == GEMINI else _SECONDS
        made = {"hooks": [{"type": "command", "command": command, "timeout": seconds}]}
    return made if tools is None else {"matcher": tools, **made}


def _without(entry: object) -> object | None:
    """An entry without our command; None if nothing is left of it."""
    if not isinstance(entry, dict):
        return entry
    if _is_ours(entry):
        return None
    inner = entry.get("hooks")
    if not isinstance(inner, list):
        return entry
    left = [each for each in inner if not (isinstance(each, dict) and _is_ours(each))]
    return entry if left == inner else {**entry, "hooks": left} if left else None


def _is_ours(entry: Document) -> bool:
    return any(str(entry.get(key, "")).startswith(COMMAND) for key in ("command", "bash"))
