"""agent install, uninstall, status: the hooks and the MCP server of dibs in the configuration of coding agents."""

from __future__ import annotations

import os

from dibs.cli.commands.agent import CLIENTS
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.errors import InvalidInput
from dibs.files import SHARED, replace_file
from dibs.harness import configuration
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]
    Change = Callable[[Document], Document]

_WORDS = {
    "installed": "Wrote {}.",
    "unchanged": "{} is up to date: nothing was changed.",
    "removed": "Took dibs out of {}.",
    "deleted": "Deleted {}, which held nothing else.",
    "absent": "{} has nothing of dibs.",
    "in place": "{} is in place.",
    "not in place": "{} is missing, or not up to date.",
}
_CODEX_MCP = "For the MCP tools in Codex:  codex mcp add dibs -- dibs mcp"
_CLAUDE_MCP = "For the MCP tools in Claude Code:  claude mcp add --scope user dibs -- dibs mcp"
_NOT_FOUND = (
    "dibs is not on PATH here, and these files name it without a folder. Install it where PATH finds it: until then "
    "the hooks do nothing."
)


def install(call: Call) -> Answer:
    return _changed(call, _with, "installed", "unchanged")


def uninstall(call: Call) -> Answer:
    return _changed(call, _without, "removed", "absent")


def _changed(call: Call, change: Callable[[str, str], Change], done: str, nothing: str) -> Answer:
    """Read all files before the first is written: one that cannot be read must leave the others as they are."""
    plans = []
    for client, path, kinds in _files(call):
        before = _read(path)
        after = before or {}
        for kind in kinds:
            after = change(client, kind)(after)
        plans.append((client, path, before, after))
    files = []
    for client, path, before, after in plans:
        word = nothing
        if after != (before or {}):
            word = _write(path, before, after, done)
        files.append({"client": client, "path": path, "done": word})
    lines = [_WORDS[each["done"]].format(each["path"]) for each in files]
    if done == "installed":
        lines += _hints(call, {each["client"] for each in files})
    return yes({"files": files}, "\n".join(lines), quiet="\n".join([each["path"] for each in files]))


def _hints(call: Call, clients: set[str]) -> list[str]:
    """What the files cannot do. They hold no folder of this machine, because a project's files are shared."""
    import shutil

    lines = [_CODEX_MCP] if "codex" in clients else []
    if "claude" in clients and call.values.get("user"):
        lines.append(_CLAUDE_MCP)
    return lines if shutil.which("dibs", path=call.env.get("PATH", "")) else [*lines, _NOT_FOUND]


def status(call: Call) -> Answer:
    files = []
    for client, path, kinds in _files(call):
        before = _read(path) or {}
        after = before
        for kind in kinds:
            after = _with(client, kind)(after)
        files.append(
            {"client": client, "path": path, "done": "in place" if after == before else "not in place"}
        )
    text = "\n".join([_WORDS[each["done"]].format(each["path"]) for each in files])
    if all(each["done"] == "in place" for each in files):
        return yes({"files": files}, text)
    message = "Some files are not in place. `dibs agent install` writes them."
    return no(NO, {"files": files}, f"{text}\n{message}", code="hooks_not_in_place", message=message)


def _with(client: str, kind: str) -> Change:
    return (lambda it: configuration.with_hooks(it, client)) if kind == "hooks" else configuration.with_server


def _without(client: str, kind: str) -> Change:
    return configuration.without_hooks if kind == "hooks" else configuration.without_server


def _files(call: Call) -> Iterator[tuple[str, str, list[str]]]:
    """The files of the clients that were asked for: client, path, and what of dibs is in it."""
    scope = 1 if call.values.get("user") else 0
    for client in _clients(call, scope):
        wanted: dict[str, list[str]] = {configuration.HOOK_FILES[client][scope]: ["hooks"]}
        server = configuration.MCP_FILES.get(client, ("", ""))[scope]
        if server:
            wanted.setdefault(server, []).append("mcp")
        for path, kinds in wanted.items():
            yield client, os.path.abspath(os.path.expanduser(path)), kinds


def _clients(call: Call, scope: int) -> list[str]:
    given: str | None = call.values.get("client")
    if given == "all":
        return list(CLIENTS)
    if given is not None:
        if given not in CLIENTS:
            raise UsageError(f"--client is all or one of {', '.join(CLIENTS)}, not {given!a}.", call.command)
        return [given]
    found = []
    for client in CLIENTS:
        folder = os.path.dirname(os.path.expanduser(configuration.HOOK_FILES[client][scope]))
        if os.path.isdir(folder):
            found.append(client)
    return found or ["claude"]


def _read(path: str) -> Document | None:
    """What the file says; None if there is none."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read as JSON ({error}). Nothing was changed.") from None
    if not isinstance(document, dict) or not isinstance(document.get("hooks", {}), dict):
        raise InvalidInput(f"{path} has another form than expected. Nothing was changed.")
    return document


def _write(path: str, before: Document | None, after: Document, done: str) -> str:
    import json

    if done == "removed" and before is not None and configuration.is_empty(after):
        os.unlink(path)
        return "deleted"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace_file(path, json.dumps(after, indent=2, ensure_ascii=False) + "\n", mode=SHARED)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from None
    return done


_CLIENT = Option(
    "--client",
    "claude, codex, cursor, gemini, copilot, windsurf or all (default: those whose folder is here, else claude)",
    value="NAME",
)
_USER = Option("--user", "for all projects of this user, instead of the current folder")
_EXITS = ((0, "done"), (64, "a file cannot be read or written; the message says which"))

COMMANDS = {
    "agent install": Command(
        "agent install",
        "keep coding agents apart: install hooks and the MCP server",
        install,
        about=(
            "Writes dibs into the hook configuration of each client, and into its list of MCP servers where that is "
            "JSON. Other entries stay. Names every file. Installing again changes nothing."
        ),
        options=(_CLIENT, _USER),
        examples=(
            ("in a project", "dibs agent install"),
            ("for Codex", "dibs agent install --client codex --user"),
        ),
        exits=_EXITS,
    ),
    "agent uninstall": Command(
        "agent uninstall",
        "take the hooks and the MCP server out again",
        uninstall,
        about="Takes out what `agent install` wrote, and deletes files that hold nothing else.",
        options=(_CLIENT, _USER),
        examples=(("in a project", "dibs agent uninstall --client all"),),
        exits=_EXITS,
    ),
    "agent status": Command(
        "agent status",
        "show whether the hooks and the MCP server are installed",
        status,
        options=(_CLIENT, _USER),
        examples=(("in a project", "dibs agent status"),),
        exits=((0, "all are in place"), (1, "one is missing or not up to date"), _EXITS[1]),
    ),
}
