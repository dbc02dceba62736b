"""agent install, uninstall, status: the hooks and the MCP server of dibs in the configuration of coding agents."""

from __future__ import annotations

import os

from dibs.agents.harness import configuration
from dibs.agents.harness.agent_identity import HARNESSES as CLIENTS
from dibs.agents.hook_trouble import last_trouble
from dibs.agents.repository.file_paths import check_stays_inside
from dibs.agents.shipped_files import CHANGED, CURRENT, OLDER, skill_text, skills_installed, state_of
from dibs.base.cheap import Callable, Iterator
from dibs.base.errors import InvalidInput
from dibs.base.files import SHARED, content, replace_file, state_folder
from dibs.base.ids import digest
from dibs.base.jsontext import Document
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import Command, Option
from dibs.core.durations import span
from dibs.wire.codes import NO

_BYTES_MAX = 4 * 1024 * 1024
Change = Callable[[str, str, str | None, list[str]], str | None]

_WORDS = {
    "installed": "Wrote {}.",
    "unchanged": "{} is up to date: nothing was changed.",
    "updated": "Brought {} up to date.",
    "changed": "{} was changed by somebody, and is left alone. `dibs skill install --force` replaces it.",
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


def install(call: Call) -> Answer:
    files: list[Document] = []
    for client, path, before, after, kinds in _plans(call, _with):
        if after != before:
            original = _original(call, path, before)
            if original is None and before == _without(client, path, before, kinds):  # nothing of dibs was in it
                original = before
            if original is None or after is None or original == _without(client, path, after, kinds):
                _forget_original(call, path)
            else:
                _note_original(call, path, original, after)
            write_file(path, after)
        files.append({"client": client, "path": path, "done": "unchanged" if after == before else "installed"})
    return _answer([*files, *_renewed_skills(call)], _hints(call, {each["client"] for each in files}))


def uninstall(call: Call) -> Answer:
    files: list[Document] = []
    for client, path, before, after, _ in _plans(call, _without):
        original = _original(call, path, before)
        after = after if original is None else original
        word = "absent" if after == before else "deleted" if after is None else "removed"
        if after != before:
            write_file(path, after)
            _forget_original(call, path)
        files.append({"client": client, "path": path, "done": word})
    return _answer(files, [])


def _answer(files: list[Document], hints: list[str]) -> Answer:
    lines = [_WORDS[each["done"]].format(each["path"]) for each in files]
    return yes({"files": files}, "\n".join([*lines, *hints]), quiet="\n".join([each["path"] for each in files]))


# What a file said before, where taking dibs out of it would not give that back: an empty list or table that was there
# is not told from one that was made for dibs. Kept in the state folder, for as long as nobody else writes the file.


def _note_original(call: Call, path: str, original: str, installed: str) -> None:
    note = _note_path(call, path)
    try:
        os.makedirs(os.path.dirname(note), mode=0o700, exist_ok=True)
        replace_file(note, f"{digest(installed)}\n{original}")
    except OSError:
        pass  # what is not ours still stays, but for an empty part


def _original(call: Call, path: str, text: str | None) -> str | None:
    """The text of a file before dibs was put into it, if it is noted, and the file is as dibs left it."""
    noted = content(_note_path(call, path), _BYTES_MAX)
    mark, _, original = (noted or b"").decode("utf-8", "surrogateescape").partition("\n")
    return original if text is not None and mark == digest(text) else None


def _forget_original(call: Call, path: str) -> None:
    try:
        os.unlink(_note_path(call, path))
    except OSError:
        pass


def _note_path(call: Call, path: str) -> str:
    return os.path.join(state_folder(call.env), "installed", digest(os.path.realpath(path)))


def _renewed_skills(call: Call) -> list[Document]:
    """Bring the skill up to date where an older version of it is installed, and nobody changed it."""
    found: list[Document] = []
    for path, state in skills_installed(call.env, user=bool(call.values.get("user"))):
        if state == OLDER:
            write_file(check_stays_inside(path) if not call.values.get("user") else path, skill_text())
        if state != CURRENT:
            found.append({"client": "skill", "path": path, "done": "updated" if state == OLDER else "changed"})
    return found


def _plans(call: Call, change: Change) -> list[tuple[str, str, str | None, str | None, list[str]]]:
    """Each file with what it says and what it should say, and what of dibs is in it. All are read before the first is
    written: one that cannot be read must leave the others as they are."""
    plans = []
    for client, path, kinds in _files(call):
        before = read_file(path)
        try:
            plans.append((client, path, before, change(client, path, before, kinds), kinds))
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
    for client, path, before, after, _ in _plans(call, _with):
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
        return text if state_of(text, configuration.plugin()) == CHANGED else None
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
        install,
        _CLIENT,
        _USER,
        summary="keep coding agents apart: install hooks and the MCP server",
        about=(
            "Writes dibs into the hook configuration of each client, and into its list of MCP servers. "
            "Other entries stay. Names every file. Installing again changes nothing. What an older version of dibs "
            "wrote is renewed: hooks, the MCP server, the plugin for opencode, and the skill if one is here."
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
        uninstall,
        _CLIENT,
        _USER,
        summary="take the hooks and the MCP server out again",
        about="Takes out what `agent install` wrote: a file that nobody else changed since is as it was before.",
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
