"""The configurations of MCP clients have the form that each client documents, and are what `agent install` writes.

The shapes below were read in the clients' own pages in November 2026; none of the clients was run. A shape says: the
outer key, the fields that a server needs, and those that it may have.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dibs.agents.harness.configuration import FILES, TOML, entry

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "mcp"
PAGES = ("how-to/use-from-mcp.md", "reference/agents.md")  # the forms; the files
PAGE = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
PROCESS: dict[str, type] = {"command": str, "args": list, "env": dict}
# By example: the client's page, the outer key, the fields that must be there, and those that may be.
SHAPES: dict[str, tuple[str, str, set[str], dict[str, type]]] = {
    "claude-code": ("code.claude.com/docs/en/mcp", "mcpServers", {"command"}, PROCESS | {"type": str}),
    "codex": (
        "developers.openai.com/codex/mcp",
        "mcp_servers",
        {"command"},
        PROCESS | {"enabled": bool, "cwd": str, "env_vars": list, "startup_timeout_sec": int, "tool_timeout_sec": int},
    ),
    "cursor": ("cursor.com/docs/mcp", "mcpServers", {"command"}, PROCESS | {"type": str, "envFile": str}),
    "gemini": (
        "geminicli.com/docs/tools/mcp-server",
        "mcpServers",
        {"command"},
        PROCESS | {"cwd": str, "timeout": int, "trust": bool, "includeTools": list, "excludeTools": list},
    ),
    "copilot": (
        "docs.github.com/en/copilot/how-tos/copilot-cli/customize-copilot/add-mcp-servers",
        "mcpServers",
        {"type", "command", "args"},
        PROCESS | {"type": str, "tools": list},
    ),
    "windsurf": ("docs.windsurf.com/windsurf/cascade/mcp", "mcpServers", {"command"}, PROCESS),
    "vscode": (
        "code.visualstudio.com/docs/agents/reference/mcp-configuration",
        "servers",
        {"type", "command"},
        PROCESS | {"type": str, "cwd": str, "envFile": str},
    ),
}
# A server at an address: the field that holds it, the other fields, and how a variable is named there.
REMOTE: dict[str, tuple[str, set[str], str]] = {
    "claude-code": ("url", {"type", "headers"}, "${DIBS_TOKEN}"),
    "codex": ("url", {"bearer_token_env_var"}, ""),
    "cursor": ("url", {"headers"}, "${env:DIBS_TOKEN}"),
    "gemini": ("httpUrl", {"headers"}, "${DIBS_TOKEN}"),
    "windsurf": ("serverUrl", {"headers"}, "${env:DIBS_TOKEN}"),
    "vscode": ("url", {"type", "headers"}, "${input:dibs-token}"),
}
INSTALLED = {"claude-code": "claude", "codex": "codex", "cursor": "cursor", "gemini": "gemini"}
INSTALLED |= {"copilot": "copilot", "windsurf": "windsurf"}


def text_of(stem: str) -> str:
    return (EXAMPLES / f"{stem}.{'toml' if stem.startswith('codex') else 'json'}").read_text()


def parsed(text: str, stem: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text) if stem.startswith("codex") else json.loads(text)
    return found


@pytest.mark.parametrize("client", SHAPES)
def test_an_example_has_the_form_that_the_client_documents(client: str) -> None:
    _, key, needed, known = SHAPES[client]
    document = parsed(text_of(client), client)
    assert list(document) == [key]
    server = document[key]["dibs"]
    assert needed <= set(server) <= set(known)
    assert [field for field, value in server.items() if not isinstance(value, known[field])] == []
    assert server.get("type", "stdio") == "stdio"


@pytest.mark.parametrize("client", REMOTE)
def test_an_example_with_an_address_names_it_and_the_token_as_the_client_does(client: str) -> None:
    field, others, variable = REMOTE[client]
    server = parsed(text_of(f"{client}-server"), client)[SHAPES[client][1]]["dibs"]
    assert set(server) == {field, *others}
    assert server.get("type", "http") == "http"
    if variable:
        assert server["headers"] == {"Authorization": f"Bearer {variable}"}
    else:
        assert server["bearer_token_env_var"] == "DIBS_TOKEN"


@pytest.mark.parametrize("client", INSTALLED)
def test_what_is_installed_is_what_the_example_says(client: str) -> None:
    harness = INSTALLED[client]
    made = parsed(TOML, client) if client == "codex" else {"mcpServers": {"dibs": entry(harness)}}
    assert made == parsed(text_of(client), client)


def test_the_pages_show_each_file_and_where_its_form_is_documented() -> None:
    for client, (source, *_) in SHAPES.items():
        assert f"https://{source}" in PAGE, client
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    shown += [tomllib.loads(block) for block in re.findall(r"```\n(\[mcp.*?)```", PAGE, re.DOTALL)]
    for client in SHAPES:
        assert parsed(text_of(client), client) in shown, client
    for paths in FILES.values():
        for path in filter(None, paths):
            assert f"`{path}`" in PAGE
