"""The entry of dibs in the lists of MCP servers of harnesses. Pure.

A server that is called dibs and is not written as here was put there by somebody, for instance with the address of a
server. It stays as it is.
"""

from __future__ import annotations

from dibs.agents.harness.identity import CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, WINDSURF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]

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
