"""From what a harness writes to a hook to an event, and to the answer in the harness's own form. Pure.

Contracts as documented by each harness in August 2026; `docs/reference/agents.md` has the table. What is not known is
an event of the kind `other`, which nothing is done for.
"""

from __future__ import annotations

import posixpath

from dibs.agents.harness.agent_identity import (
    CLAUDE,
    CODEX,
    COPILOT,
    CURSOR,
    GEMINI,
    OPENCODE,
    WINDSURF,
    Agent,
    is_session_id,
    pid_of,
)
from dibs.base.cheap import Any, Mapping
from dibs.base.jsontext import decode, encode
from dibs.base.record import Record

Document = Mapping[str, Any]

# Which files a patch in Codex's format (`apply_patch`) writes.

_MARKS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


def patched(text: str) -> list[str]:
    """The paths, each once. A line of content begins with `+`, `-` or a blank, so it is never taken for one."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        for mark in _MARKS:
            if line.startswith(mark) and line[len(mark) :].strip():
                found[line[len(mark) :].strip()] = None
    return list(found)


# One event of a coding agent, in the same words for all harnesses.

BEFORE_EDIT, BEFORE_SHELL, AFTER_TOOL = "before-edit", "before-shell", "after-tool"
START, COMPACTED, STOP, SUBAGENT_STOP, END, OTHER = ("start", "compacted", "stop", "subagent-stop", "end", "other")


class HookEvent:
    """`name` is the harness's own word for it, which some answers must repeat. `paths` are files that are about to be
    written, as given; `command` is a shell command that is about to run, or has run. `goes_on`: it still runs, in the
    background."""

    kind = OTHER
    paths: tuple[str, ...] = ()
    command = ""
    goes_on = False

    def __init__(self, harness: str, name: str, agent: Agent | None, cwd: str) -> None:
        self.harness = harness
        self.name = name
        self.agent = agent
        self.cwd = cwd


# The harnesses' words for moments, by kind. A word means the same wherever it is used.
_BEFORE = ("PreToolUse", "preToolUse", "BeforeTool")
_AFTER = (
    "PostToolUse",
    "PostToolUseFailure",
    "postToolUse",
    "AfterTool",
    "PostToolBatch",
    "afterShellExecution",
    "post_run_command",
)
_MOMENTS = {
    **dict.fromkeys(("SessionStart", "sessionStart"), START),
    **dict.fromkeys(("PostCompact", "PreCompress"), COMPACTED),
    **dict.fromkeys(("Stop", "stop", "agentStop", "AfterAgent"), STOP),
    **dict.fromkeys(("SubagentStop", "subagentStop"), SUBAGENT_STOP),
    **dict.fromkeys(("SessionEnd", "sessionEnd"), END),
    **dict.fromkeys(_AFTER, AFTER_TOOL),
}
_WINDSURF = {"pre_write_code": BEFORE_EDIT, "pre_run_command": BEFORE_SHELL}
# Tools that write files, and tools that run a shell, in small letters.
_EDITS = frozenset(
    {
        "edit",
        "write",
        "multiedit",
        "notebookedit",
        "apply_patch",
        "patch",
        "create",
        "str_replace",
        "str_replace_editor",
        "write_file",
        "replace",
        "editfiles",
        "createfile",
        "delete",
    }
)
_SHELLS = frozenset(
    {"bash", "shell", "run_shell_command", "powershell", "runinterminal", "terminal", "local_shell", "exec_command"}
)
_PATH_FIELDS = ("file_path", "notebook_path", "path", "filePath", "absolute_path", "target_file")


def harness_of(document: Document) -> str:
    """Return which harness wrote this, by the fields that only it has."""
    if "agent_action_name" in document:
        return WINDSURF
    if "conversation_id" in document or "cursor_version" in document:
        return CURSOR
    if "sessionId" in document or "toolName" in document:
        return COPILOT
    if str(document.get("hook_event_name")) in ("BeforeTool", "AfterTool", "AfterAgent", "PreCompress"):
        return GEMINI
    return CODEX if "turn_id" in document else CLAUDE


def event_of(document: Document, env: Mapping[str, str], harness: str | None = None) -> HookEvent:
    """The event that a hook has received. `harness` is the one that the hook was installed for, if that is known."""
    harness = harness or harness_of(document)
    name = _text(document, "hook_event_name") or _text(document, "agent_action_name") or _guessed(document)
    roots = document.get("workspace_roots")
    root = roots[0] if isinstance(roots, list) and roots else ""
    cwd = _text(document, "cwd") or (root if isinstance(root, str) else "")
    event = HookEvent(harness, name, _agent(document, env, harness), cwd)
    if harness == WINDSURF:
        _read_windsurf(event, document)
    elif name == "beforeShellExecution":
        event.kind, event.command = BEFORE_SHELL, _text(document, "command")
    elif name in _BEFORE:
        _read_tool(event, document)
    else:
        event.kind = _MOMENTS.get(name, OTHER)
        if event.kind == START and document.get("source") == "compact":
            event.kind = COMPACTED
        if event.kind == AFTER_TOOL:
            event.command = _text(_given(document), "command") or _text(document, "command")
            event.goes_on = _goes_on(document)
    return event


def _goes_on(document: Document) -> bool:
    """Tell whether a command was left running: as its tool was told to, or, in Copilot, because it took long. Codex
    says nothing before a command has ended."""
    given, result = _given(document), document.get("toolResult")
    said = _text(result, "textResultForLlm") if isinstance(result, dict) else ""
    takes_long = said.startswith("<command with shellId:") and "is still running" in said
    return takes_long or True in (given.get("run_in_background"), given.get("is_background"))


def _guessed(document: Document) -> str:
    """Copilot's camelCase events do not name themselves."""
    if "toolResult" in document:
        return "postToolUse"
    if "toolName" in document:
        return "preToolUse"
    if "stopReason" in document:
        return "agentStop"
    return "sessionEnd" if "reason" in document else "sessionStart" if "source" in document else ""


def _read_tool(event: HookEvent, document: Document) -> None:
    tool = (_text(document, "tool_name") or _text(document, "toolName")).lower()
    fields = _given(document)
    command = _text(fields, "command")
    if tool in _SHELLS:
        event.kind, event.command = BEFORE_SHELL, command
        if folder := _text(fields, "dir_path"):  # Gemini CLI names the folder of the command beside it
            event.cwd = posixpath.join(event.cwd, folder)
    elif tool in _EDITS:
        patch = command or _text(fields, "patch") or _text(fields, "patchText") or _text(fields, "input")
        paths = patched(patch) if patch else []
        paths += [value for key in _PATH_FIELDS if (value := _text(fields, key))]
        files = fields.get("files")
        paths += [each for each in files if isinstance(each, str)] if isinstance(files, list) else []
        event.kind, event.paths = BEFORE_EDIT, tuple(paths)


def _given(document: Document) -> Document:
    given = document.get("tool_input", document.get("toolArgs"))
    if isinstance(given, str):
        try:
            given = decode(given)
        except (ValueError, RecursionError):
            pass
    return given if isinstance(given, dict) else {}


def _read_windsurf(event: HookEvent, document: Document) -> None:
    given = document.get("tool_info")
    info: Document = given if isinstance(given, dict) else {}
    event.cwd = _text(info, "cwd")
    event.kind = _WINDSURF.get(event.name) or _MOMENTS.get(event.name, OTHER)
    if event.kind == BEFORE_EDIT:
        event.paths = (_text(info, "file_path"),)
    elif event.kind == BEFORE_SHELL:
        event.command = _text(info, "command_line")


def _agent(document: Document, env: Mapping[str, str], harness: str) -> Agent | None:
    for key in ("session_id", "sessionId", "conversation_id", "trajectory_id"):
        session = document.get(key)
        if is_session_id(session):
            break
    else:
        return None
    given = document.get("agent_id")
    subagent = str(given) if is_session_id(given) else ""
    return Agent(harness, str(session), subagent, pid_of(env, harness))


def _text(document: Document, key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


# What a hook answers. A refusal is exit 2 with the reason on stderr, which all harnesses honour; those that read the
# reason from JSON get it there. Nothing ever answers "allow": that would skip what the harness asks its user.

REFUSED = 2
CONTEXT_CHARS_MAX = 9_000  # Claude Code cuts texts at 10,000


class HookAnswer(Record):
    """The output and the exit code of a hook. `reason` of a refusal and `text` of a remark are not in the harness's
    form."""

    exit: int = 0
    stdout: str = ""
    stderr: str = ""
    reason: str = ""
    text: str = ""


NOTHING = HookAnswer()
# The events after which a harness passes our words to the model, as seen in the versions that `agents.md` names.
_CLAUDE = (BEFORE_EDIT, BEFORE_SHELL, AFTER_TOOL, START, COMPACTED)
_HEARD = {
    CLAUDE: _CLAUDE,
    CODEX: _CLAUDE,
    COPILOT: (BEFORE_EDIT, BEFORE_SHELL, AFTER_TOOL, START),
    GEMINI: (AFTER_TOOL, START),
}


def refusal(event: HookEvent, reason: str) -> HookAnswer:
    """Refuse what the agent is about to do."""
    reason = reason[:CONTEXT_CHARS_MAX]
    if event.harness == COPILOT:  # reads the reason from JSON, and takes any other exit for an error of ours
        answer = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        return HookAnswer(stdout=encode(answer), reason=reason)
    if event.harness == CURSOR:
        answer = {"permission": "deny", "agent_message": reason, "user_message": reason}
        return HookAnswer(exit=REFUSED, stdout=encode(answer), stderr=reason, reason=reason)
    return HookAnswer(exit=REFUSED, stderr=reason, reason=reason)


def remark(event: HookEvent, text: str) -> HookAnswer:
    """Tell the agent something and refuse nothing. A harness without a place for it shows stderr to its user."""
    text = text[:CONTEXT_CHARS_MAX]
    if not text:
        return NOTHING
    if event.kind in _HEARD.get(event.harness, ()):
        answer: dict[str, object] = {"additionalContext": text}
        if event.harness != COPILOT:
            answer = {"hookSpecificOutput": {"hookEventName": event.name, **answer}}
        return HookAnswer(stdout=encode(answer), text=text)
    if event.harness == OPENCODE:  # our plugin there adds it to what the tool says
        return HookAnswer(stdout=text, text=text)
    return HookAnswer(stderr=text, text=text)


def with_remark(event: HookEvent, answer: HookAnswer, text: str) -> HookAnswer:
    """An answer with one remark more. A refusal has it at the end of its reason."""
    if answer.exit == 0 and not answer.stdout and not answer.stderr:
        return remark(event, text)
    if answer.reason:
        return refusal(event, f"{answer.reason}\n{text}")
    return remark(event, f"{answer.text}\n{text}") if answer.text else answer
