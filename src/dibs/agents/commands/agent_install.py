"""agent install, uninstall, status: the hooks and the MCP server of dibs in the configuration of coding agents."""

from __future__ import annotations

import os

from dibs.agents.harness import configuration
from dibs.agents.harness.identity import HARNESSES as CLIENTS
from dibs.agents.repository.file_paths import check_stays_inside
from dibs.agents.trouble import last_trouble
from dibs.base.cheap import Callable, Iterator
from dibs.base.errors import InvalidInput
from dibs.base.files import SHARED, replace_file
from dibs.base.jsontext import Document
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.core.durations import span
from dibs.wire.codes import NO

Change = Callable[[str, str, str | None, list[str]], str | None]

_WORDS = {
    "installed": "Wrote {}.",
    "unchanged": "{} is up to date: nothing was changed.",
    "removed": "Took dibs out of {}.",
    "deleted": "Deleted {}, which held nothing else.",
    "absent": "{} has nothing of dibs.",
    "in place": "{} is in place.",
    "not in place": "{} is missing, or not up to date.",
}
_WINDSURF_MCP = "For the MCP tools in Windsurf:  dibs agent install --client windsurf --user"
_CODEX_TRUST = (
    "Codex runs hooks only after you trust them, and reads a project's files only if you trust the project. "
    "`codex exec` leaves out what is not trusted without a word: start `codex` once here, and say yes."
)
_COPILOT_TRUST = (
    "Copilot reads a project's files only in a folder that you trust. `copilot -p` leaves them out without a word: "
    "start `copilot` once here and say yes, or give it --trust-folder."
)
_CLAUDE_MCP = "For the MCP tools in Claude Code:  claude mcp add --scope user dibs -- dibs mcp"
_NOT_FOUND = (
    "dibs is not on PATH here, and these files name it without a folder. Install it where PATH finds it: until then "
    "the hooks do nothing."
)


def _changed(call: Call, change: Change, done: str, nothing: str) -> Answer:
    files = []
    for client, path, before, after in _plans(call, change):
        word = nothing if after == before else "deleted" if after is None else done
        if after != before:
            write_file(path, after)
        files.append({"client": client, "path": path, "done": word})
    lines = [_WORDS[each["done"]].format(each["path"]) for each in files]
    if done == "installed":
        lines += _hints(call, {each["client"] for each in files})
    return yes({"files": files}, "\n".join(lines), quiet="\n".join([each["path"] for each in files]))


def _plans(call: Call, change: Change) -> list[tuple[str, str, str | None, str | None]]:
    """Each file with what it says and what it should say. All are read before the first is written: one that cannot be
    read must leave the others as they are."""
    plans = []
    for client, path, kinds in _files(call):
        before = read_file(path)
        try:
            plans.append((client, path, before, change(client, path, before, kinds)))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"dibs cannot be put into {path} or taken out of it: {error}. Nothing was changed."
            ) from None
    return plans


def _hints(call: Call, clients: set[str]) -> list[str]:
    """Return what the files cannot do. They hold no folder of this machine, because a project's files are shared."""
    import shutil

    user = bool(call.values.get("user"))
    lines = [_CLAUDE_MCP] if "claude" in clients and user else []
    if "windsurf" in clients and not user:
        lines.append(_WINDSURF_MCP)
    if "codex" in clients:
        lines.append(_CODEX_TRUST)
    if "copilot" in clients and not user:
        lines.append(_COPILOT_TRUST)
    return lines if shutil.which("dibs", path=call.env.get("PATH", "")) else [*lines, _NOT_FOUND]


def status(call: Call) -> Answer:
    files = []
    for client, path, before, after in _plans(call, _with):
        files.append({"client": client, "path": path, "done": "in place" if before == after else "not in place"})
    text = "\n".join([_WORDS[each["done"]].format(each["path"]) for each in files])
    document: Document = {"files": files}
    if trouble := last_trouble(call.env):
        ago_ms, agent, why = trouble
        document["trouble"] = {"ago_ms": ago_ms, "agent": agent, "why": why}
        text += f"\n{span(ago_ms)} ago a hook of {plain(agent)} could not do its work: {plain(why)}"
    if all(each["done"] == "in place" for each in files):
        return yes(document, text)
    message = "Some files are not in place. `dibs agent install` writes them."
    return no(NO, document, f"{text}\n{message}", code="hooks_not_in_place", message=message)


def _with(client: str, path: str, text: str | None, kinds: list[str]) -> str:
    if path.endswith(".js"):
        return configuration.plugin()
    if path.endswith(".toml"):
        return configuration.with_server_toml(text or "")
    made = configuration.EMPTY if text is None else text
    made = configuration.with_hooks(made, client) if "hooks" in kinds else made
    return configuration.with_server(made, client) if "mcp" in kinds else made


def _without(client: str, path: str, text: str | None, kinds: list[str]) -> str | None:
    """Return what the file should say after that; None if it would say nothing."""
    if text is None:
        return None
    if path.endswith(".js"):
        return None if text == configuration.plugin() else text
    if path.endswith(".toml"):
        made = configuration.without_server_toml(text)
        is_empty = not made.strip()
    else:
        made = configuration.without_hooks(text) if "hooks" in kinds else text
        made = configuration.without_server(made, client) if "mcp" in kinds else made
        is_empty = made != text and configuration.is_empty(made)
    return None if is_empty and made != text and not os.path.islink(path) else made


def _files(call: Call) -> Iterator[tuple[str, str, list[str]]]:
    """The files of the clients that were asked for: client, path, and what of dibs is in it."""
    scope = 1 if call.values.get("user") else 0
    for client in _clients(call, scope):
        wanted: dict[str, list[str]] = {configuration.HOOK_FILES[client][scope]: ["hooks"]}
        server = configuration.FILES[client][scope]
        if server is not None:
            wanted.setdefault(server, []).append("mcp")
        for path, kinds in wanted.items():
            found = os.path.abspath(os.path.expanduser(path))
            yield client, found if scope else check_stays_inside(found), kinds


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
        if os.path.isdir(folder.removesuffix("/plugin")):
            found.append(client)
    return found or ["claude"]


def read_file(path: str) -> str | None:
    """Return what the file says; None if there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}). Nothing was changed.") from None


def write_file(path: str, text: str | None) -> None:
    """A link stays one. A file that others may not read stays so: it may hold keys."""
    path = os.path.realpath(path)
    try:
        if text is None:
            os.unlink(path)
            _remove_empty(os.path.dirname(path))
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else SHARED
        replace_file(path, text, mode=mode)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).") from None


def _remove_empty(folder: str) -> None:
    """Remove a client's folder that holds nothing: it would be taken for a sign that the client is in use."""
    while os.path.basename(folder).startswith(".") or os.path.basename(folder) in ("hooks", "plugin"):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


_CLIENT = Option(
    "--client NAME",
    "claude, codex, cursor, gemini, copilot, opencode, windsurf or all (default: those whose folder is here, or "
    "claude)",
)
_USER = Option("--user", "for all projects of this user, instead of the current folder")
_UNREADABLE = ((64, "a file cannot be read or written; the message says which"),)

COMMANDS = {
    "agent install": Command(
        lambda call: _changed(call, _with, "installed", "unchanged"),
        _CLIENT,
        _USER,
        summary="keep coding agents apart: install hooks and the MCP server",
        about=(
            "Writes dibs into the hook configuration of each client, and into its list of MCP servers. "
            "Other entries stay. Names every file. Installing again changes nothing."
        ),
        examples=(
            ("dibs agent install", "in a project"),
            ("dibs agent install --client codex --user", "for Codex"),
        ),
        exits=(
            (0, "done"),
            *_UNREADABLE,
        ),
    ),
    "agent uninstall": Command(
        lambda call: _changed(call, _without, "removed", "absent"),
        _CLIENT,
        _USER,
        summary="take the hooks and the MCP server out again",
        about="Takes out what `agent install` wrote, and deletes files that hold nothing else.",
        examples=(("dibs agent uninstall --client all", "in a project"),),
        exits=(
            (0, "done"),
            *_UNREADABLE,
        ),
    ),
    "agent status": Command(
        status,
        _CLIENT,
        _USER,
        summary="show whether the hooks and the MCP server are installed",
        examples=(("dibs agent status", "in a project"),),
        exits=(
            (0, "all are in place"),
            (1, "one is missing or not up to date"),
            *_UNREADABLE,
        ),
    ),
}
