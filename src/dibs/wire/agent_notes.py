"""The note of an agent's session about the agent, in its `metadata`: a line of JSON, for `agent_documents.py`. Pure."""

from __future__ import annotations

from dibs.base.jsontext import decode, encode
from dibs.core.limits import METADATA_CHARS_MAX
from dibs.wire.parts import AGENT_NOTE

SHELL = "shell"  # the part of an agent that is the commands which it runs
ACTOR = "actor"  # the client of an agent with a name of its own
MCP = "mcp"  # the note of a session that an MCP server opened for itself
_CLIENT_CHARS_MAX = 32
_FIELDS = {"part": 16, "host": 64, "work_tree": 200, "branch": 100, "action": 200}


def agent_note(client: str, fields: dict[str, str]) -> str:
    """The note. Fields that do not fit are left out, the last ones first."""
    found = {"agent": _printable(client, _CLIENT_CHARS_MAX)}
    for name, most in _FIELDS.items():
        if fields.get(name):
            found[name] = _printable(fields[name], most)
    while len(text := encode(found)) > METADATA_CHARS_MAX:
        found.popitem()
    return text


def _printable(text: str, most: int) -> str:
    return "".join([each if each.isprintable() else "?" for each in text[:most]])


def note_of(metadata: str | None) -> dict[str, str] | None:
    """Read what a session notes of its agent; None if it is no agent's."""
    if metadata == MCP:
        return {"agent": MCP}
    if metadata is None or not metadata.startswith(AGENT_NOTE):
        return None
    try:
        found = decode(metadata)
    except (ValueError, RecursionError):
        return None
    note = {name: text for name in ("agent", *_FIELDS) if isinstance(text := found.get(name), str)}
    return note if note.get("agent") else None
