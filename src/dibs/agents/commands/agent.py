"""agent hook: what the hooks of coding agents run."""

from __future__ import annotations

from dibs.agents.git.agent_guard import BEFORE, AgentGuard
from dibs.agents.harness.clients import forget, note
from dibs.agents.harness.hook_events import END, HookAnswer, event_of, refusal
from dibs.agents.harness.identity import HARNESSES
from dibs.base.errors import DibsError
from dibs.base.jsontext import decode
from dibs.base.terminal import harmless
from dibs.cli.framework.context import Call
from dibs.cli.framework.result import Answer
from dibs.cli.framework.spec import Command, Option

_BYTES_MAX = 32 * 1024 * 1024  # a tool call carries whole files
CLIENT = Option("--client NAME", "the program that runs the agent (default: seen from the event)")


def hook(call: Call) -> Answer:
    """Read an event, and answer it. An error of ours refuses nothing, unless the repository requires the check."""
    answered = _answered(call)
    for text, stream in ((answered.stdout, call.stdout), (answered.stderr, call.stderr)):
        if text and stream is not None:
            stream.write(harmless(text) + "\n")  # an owner's name, or a file's, may hold anything
            stream.flush()
    return Answer(answered.exit, {}, "", is_said=True)


def _answered(call: Call) -> HookAnswer:
    try:
        content = call.stdin.read(_BYTES_MAX) if call.stdin is not None else b""
        document = decode(content.decode("utf-8", "replace").removeprefix("\ufeff"))
        if not isinstance(document, dict):
            raise ValueError("the event is no JSON object")
        client = call.values.get("client")
        event = event_of(document, call.env, client if client in HARNESSES else None)
        # Which process runs the agent's session, for its shells and MCP servers, and as the end of its claims.
        if event.agent is not None and event.kind == END:
            forget(call.env, event.agent)
        elif event.agent is not None:
            event.agent.pid = note(call.env, event.agent)
        guard = AgentGuard(call, event)
    except Exception as error:
        return HookAnswer(stderr=f"dibs: the hook did nothing, because {_why(error)}")
    try:
        return guard.answer()
    except Exception as error:
        if guard.requires and event.kind in BEFORE:
            why = f"dibs cannot tell whether another worker has this file ({_why(error)})."
            return refusal(event, f"{why} This repository requires to know it.")
        return HookAnswer(stderr=f"dibs: nothing was claimed, because {_why(error)}")


def _why(error: Exception) -> str:
    told = error.details if isinstance(error, DibsError) else f"{type(error).__name__}: {error}"
    return " ".join(str(told).split())[:300]


PAGES = """
agent hook
    Reads one event of Claude Code, Codex, Cursor, Gemini CLI, Copilot, opencode or Windsurf as JSON from standard
        input. Before a file is written, it is claimed for the agent's session: silent if that succeeds, refused with
        exit code 2 if another worker has it. After a shell command, what it changed is claimed. An error of dibs itself
        refuses nothing, unless the repository has `require = true`; a wrong command line never does.
    $ dibs agent hook --client claude  # in a hook's configuration
    exits 0 nothing to say, or said on standard output in the client's own form; also after an error of dibs | 2
        refused; the reason is on standard error
"""
COMMANDS = {
    "agent hook": Command(hook, CLIENT),
}
