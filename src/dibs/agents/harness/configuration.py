"""The configuration files of harnesses, with dibs in them or not. Pure.

Each function takes what a file says and returns what it should say, or raises ValueError. What others wrote stays as it
is, to the byte. Hooks of dibs are known by their command. An MCP server that is called dibs and is not written as here
was put there by somebody, for instance with the address of a server: it stays.
"""

from __future__ import annotations

from dibs.agents.harness import json_edit
from dibs.agents.harness.agent_identity import CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, OPENCODE, WINDSURF
from dibs.base.jsontext import Document, encode

EMPTY = "{}\n"
NAME = "dibs"
KEY = "mcpServers"
TOML_KEY = "mcp_servers"
SERVER: Document = {"command": "dibs", "args": ["mcp"]}
_TYPED: Document = {"type": "stdio", **SERVER, "tools": ["*"]}
_LOCAL: Document = {"type": "local", "command": ["dibs", "mcp"], "enabled": True}
# Codex passes an MCP server only what is named here, and ends one that does not answer in 10 s.
_CODEX: Document = {
    **SERVER,
    "env_vars": [
        "DIBS_URL",
        "DIBS_CONTEXT",
        "DIBS_NAMESPACE",
        "DIBS_OWNER",
        "DIBS_SESSION",
        "DIBS_ACTOR",
        "DIBS_TOKEN",
        "DIBS_TOKEN_FILE",
        "DIBS_CLIENT_CERT",
        "DIBS_CLIENT_KEY",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
    ],
    "startup_timeout_sec": 60,
}


def _toml(entry: Document) -> str:
    return "[mcp_servers.dibs]\n" + "".join([f"{key} = {encode(value)}\n" for key, value in entry.items()])


TOML = _toml(_CODEX)
# As some version wrote it, the present one first.
_EVER = (_CODEX, {**_CODEX, "env_vars": [name for name in _CODEX["env_vars"] if name != "DIBS_CONTEXT"]}, SERVER)
# In a project, and of a user. None: the harness has no such file, or one that only its own commands should write.
FILES: dict[str, tuple[str | None, str | None]] = {
    CLAUDE: (".mcp.json", None),
    CODEX: (".codex/config.toml", "~/.codex/config.toml"),
    CURSOR: (".cursor/mcp.json", "~/.cursor/mcp.json"),
    GEMINI: (".gemini/settings.json", "~/.gemini/settings.json"),
    COPILOT: (".github/mcp.json", "~/.copilot/mcp-config.json"),
    OPENCODE: ("opencode.json", "~/.config/opencode/opencode.json"),
    WINDSURF: (None, "~/.codeium/windsurf/mcp_config.json"),
}


def entry(harness: str) -> Document:
    return {COPILOT: _TYPED, CODEX: _CODEX, OPENCODE: _LOCAL}.get(harness, SERVER)


def servers_key(harness: str) -> str:
    return "mcp" if harness == OPENCODE else KEY


def with_server(text: str, harness: str) -> str:
    key = servers_key(harness)
    return text if NAME in _part(text, key) else json_edit.put(text, (key, NAME), entry(harness))


def without_server(text: str, harness: str) -> str:
    key = servers_key(harness)
    return json_edit.remove(text, (key, NAME)) if _part(text, key).get(NAME) == entry(harness) else text


def with_server_toml(text: str) -> str:
    """Add the table at the end, in place of one that an older version wrote. A file without a newline at its end stays
    one, so that it can be restored."""
    if _servers(text).get(NAME) in _EVER[1:]:
        text = without_server_toml(text)
    if NAME in _servers(text):
        return text
    if text and not text.endswith("\n"):
        made = f"{text}\n\n{TOML[:-1]}"
    else:
        made = f"{text}\n{TOML}" if text else TOML
    # A list written as an inline table cannot be added to: this raises then.
    _servers(made)
    return made


def without_server_toml(text: str) -> str:
    if _servers(text).get(NAME) not in _EVER:
        return text
    had_newline = text.endswith("\n")
    whole = text if had_newline else text + "\n"
    before, found, after = whole.partition(next((each for each in map(_toml, _EVER) if each in whole), TOML))
    left = before.removesuffix("\n") + after if before else after.removeprefix("\n")
    left = left if had_newline or after else left.removesuffix("\n")
    # Written in another way, or with more below it: not ours to take out.
    return left if found and NAME not in _servers(left) else text


def _servers(text: str) -> Document:
    import tomllib

    servers = tomllib.loads(text).get(TOML_KEY, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{TOML_KEY} is no table")
    return servers


COMMAND = "dibs agent hook"
_SECONDS = 10
# Before a tool: a guarded command may stand in line. The hook is told, so that it refuses before the client gives up.
_SECONDS_BEFORE = 120
_BEFORE = ("PreToolUse", "BeforeTool", "preToolUse", "beforeShellExecution")
# Codex gives the hooks of a session's end no more, and warns of each that asks for it.
_SECONDS_AT_THE_END = 3
_ABSENT = "dibs is not installed here, so files that agents write are not claimed. Work goes on without it."
# The field by which a harness shows a hook's words.
_SAID_AT_START = {**dict.fromkeys((CLAUDE, CODEX, GEMINI), "systemMessage"), COPILOT: "additionalContext"}
_EDITS_AND_SHELL = "Edit|Write|MultiEdit|NotebookEdit|apply_patch|Bash"
_START_AND_ENDS = dict.fromkeys(("SessionStart", "Stop", "SubagentStop", "SessionEnd"))
# Events by harness, with the tools that each is for. None: no choice of tools.
_EVENTS: dict[str, dict[str, str | None]] = {
    CLAUDE: {"PreToolUse": _EDITS_AND_SHELL, "PostToolUse": "Bash", "PostToolUseFailure": "Bash", **_START_AND_ENDS},
    CODEX: {"PreToolUse": _EDITS_AND_SHELL, "PostToolUse": "Bash", "PostCompact": None, **_START_AND_ENDS},
    GEMINI: {
        "BeforeTool": "write_file|replace|run_shell_command",
        "AfterTool": "run_shell_command",
        "SessionStart": None,
        "AfterAgent": None,
        "SessionEnd": None,
    },
    # Events in small letters do not name themselves to Copilot's hooks. `Stop` does, and could not be recognised
    # otherwise.
    COPILOT: {
        "preToolUse": "edit|create|apply_patch|str_replace_editor|bash|powershell",
        "postToolUse": "bash|powershell",
        "sessionStart": None,
        "Stop": None,
        "sessionEnd": None,
    },
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
    OPENCODE: (".opencode/plugin/dibs.js", "~/.config/opencode/plugin/dibs.js"),
    WINDSURF: (".windsurf/hooks.json", "~/.codeium/windsurf/hooks.json"),
}


def plugin() -> str:
    """The plugin for opencode, whose hooks are functions and no commands. The whole file is ours."""
    from importlib.resources import files

    return files("dibs.agents.harness").joinpath("opencode.js").read_text(encoding="utf-8")


def with_hooks(text: str, harness: str) -> str:
    made = without_hooks(text)
    if harness in (COPILOT, CURSOR) and "version" not in json_edit.value_of(made):
        made = json_edit.put(made, ("version",), 1)
    for event, tools in _EVENTS[harness].items():
        if not isinstance(_part(made, "hooks").get(event, []), list):
            raise ValueError(f"the hooks of {event} are no list")
        made = json_edit.append(made, ("hooks", event), _entry(harness, event, tools))
    return text if json_edit.value_of(made) == json_edit.value_of(text) else made


def without_hooks(text: str) -> str:
    while (path := _path_of_ours(_part(text, "hooks"))) is not None:
        text = json_edit.remove(text, ("hooks", *path))
    return text


def is_empty(text: str) -> bool:
    """Tell whether a file says nothing that anybody would miss."""
    return not {*json_edit.value_of(text)} - {"version"} and "//" not in text and "/*" not in text


def _part(text: str, key: str) -> Document:
    document = json_edit.value_of(text)
    part = document.get(key, {}) if isinstance(document, dict) else None
    if not isinstance(part, dict):
        raise ValueError("it has another form than expected")
    return part


def _entry(harness: str, event: str, tools: str | None) -> Document:
    command = _command(harness, event)
    seconds = _SECONDS_BEFORE if event in _BEFORE else _SECONDS
    if harness == COPILOT:
        made: Document = {"type": "command", "bash": command, "timeoutSec": seconds}
    elif harness == WINDSURF:
        made = {"command": command}
    elif harness == CURSOR:
        made = {"command": command, "timeout": seconds}
    else:
        seconds = _SECONDS_AT_THE_END if (harness, event) == (CODEX, "SessionEnd") else seconds
        timeout = seconds * 1000 if harness == GEMINI else seconds
        made = {"hooks": [{"type": "command", "command": command, "timeout": timeout}]}
    return made if tools is None else {"matcher": tools, **made}


def _command(harness: str, event: str) -> str:
    """Return a line of shell that does nothing where dibs is not installed, and says so once, when a session starts.

    It costs no process: the shell that a harness starts for a hook becomes dibs.
    """
    said = _SAID_AT_START.get(harness) if event in ("SessionStart", "sessionStart") else None
    absent = f'{{ echo \'{{"{said}": "{_ABSENT}"}}\'; exit 0; }}' if said else "exit 0"
    limit = f" --limit {_SECONDS_BEFORE}s" if event in _BEFORE else ""
    return f"command -v dibs >/dev/null || {absent}; exec {COMMAND} --client {harness}{limit}"


def _path_of_ours(hooks: Document) -> json_edit.Path | None:
    for event, entries in hooks.items():
        for at, entry in enumerate(entries if isinstance(entries, list) else ()):
            inner = entry.get("hooks") if isinstance(entry, dict) else None
            ours = [number for number, each in enumerate(inner) if _is_ours(each)] if isinstance(inner, list) else []
            if _is_ours(entry) or (inner and len(ours) == len(inner)):
                return (event, at)
            if ours:
                return (event, at, "hooks", ours[0])
    return None


def _is_ours(entry: object) -> bool:
    return isinstance(entry, dict) and any(COMMAND in str(entry.get(key, "")) for key in ("command", "bash"))
