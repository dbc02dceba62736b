"""agent hook: what the hooks of coding agents run."""

from __future__ import annotations

import os

from dibs.agents.harness.agent_identity import HARNESSES
from dibs.agents.harness.hook_events import END, HookAnswer, HookEvent, event_of, refusal, remark
from dibs.agents.harness.session_finder import forget, note
from dibs.agents.hook_answers import BEFORE, AgentGuard, TurnTimer
from dibs.agents.hook_trouble import note_trouble
from dibs.agents.notices import is_new
from dibs.base.cheap import FrameType, signal
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.jsontext import decode
from dibs.base.terminal import harmless
from dibs.cli.framework.context import Call
from dibs.cli.framework.result import Answer
from dibs.cli.framework.spec import Command, Option
from dibs.core.durations import parse_duration

_BYTES_MAX = 32 * 1024 * 1024  # a tool call carries whole files
# How long a hook may take. Harnesses wait 10 s (`harness/configuration.py`), and then go on as if the hook had allowed
# it. At the end of a session, Codex waits 3 s.
_MS_MAX = 8_000
_END_MS_MAX = 2_500
_AGAIN_S = 0.25
CLIENT = Option("--client NAME", "the program that runs the agent (default: seen from the event)")
HOOK_LIMIT = "10s"  # of clients whose hooks were installed without a limit of their own
LIMIT = Option("--limit TIME", f"how long the client waits for this hook (default: {HOOK_LIMIT})")


class HookOverdue(BaseException):
    """The hook's own time is over. No handler of errors on the way may take it for one of them."""


class HookDeadline:
    """Inside `with HookDeadline():` HookOverdue is raised after a time, in whatever the hook hangs: git that reads a
    pipe, a server, a lock."""

    def __enter__(self) -> HookDeadline:
        try:
            self._before = signal.signal(signal.SIGALRM, self._over)
        except ValueError:  # not in the main thread: only a program that calls this
            self._before = None
            return self
        self.within(_MS_MAX)
        return self

    def within(self, ms: int) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, ms / 1000, _AGAIN_S)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    @staticmethod
    def _over(number: int, frame: FrameType | None) -> None:
        raise HookOverdue


def hook(call: Call) -> Answer:
    """Read an event, and answer it in time. An error of ours refuses nothing, unless the repository requires the
    check."""
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # nothing else ends a look-up of a host's name
    answered = _answered(call)
    for text, stream in ((answered.stdout, call.stdout), (answered.stderr, call.stderr)):
        if text and stream is not None:
            stream.write(harmless(text) + "\n")  # an owner's name, or a file's, may hold anything
            stream.flush()
    return Answer(answered.exit, {}, "", is_said=True)


def _answered(call: Call) -> HookAnswer:
    guard, event = None, None
    try:
        with HookDeadline() as deadline:
            guard, event = _guard(call)
            guard.timer = TurnTimer(_limit_ms(call), deadline.within)
            if event.kind == END:
                deadline.within(_END_MS_MAX)
            return guard.answer()
    except (Exception, HookOverdue) as error:
        return _failed(call, guard, event, _why(error))


def _limit_ms(call: Call) -> int:
    """The time that the client waits for this hook. A word that is no time refuses nothing."""
    try:
        return parse_duration(call.values.get("limit") or HOOK_LIMIT)
    except InvalidInput:
        return parse_duration(HOOK_LIMIT)


def _guard(call: Call) -> tuple[AgentGuard, HookEvent]:
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
    return AgentGuard(call, event), event


def _failed(call: Call, guard: AgentGuard | None, event: HookEvent | None, why: str) -> HookAnswer:
    """Refuse if the repository requires the check. Otherwise the work goes on, and the agent is notified once in its
    session, with the next event at which its harness listens."""
    if guard is None or event is None:
        return HookAnswer(stderr=f"dibs: the hook did nothing, because {why}")
    if event.agent is not None:
        note_trouble(call.env, event.agent.key, why)
    if guard.requires and event.kind in BEFORE:
        text = f"dibs cannot tell whether another worker has this file ({why})."
        return refusal(event, f"{text} This repository requires to know it. The user can run `dibs doctor`.")
    quiet = HookAnswer(stderr=f"dibs: nothing was claimed, because {why}")
    if event.agent is None:
        return quiet
    text = (
        f"dibs does not work now: {why.removesuffix('.')}. Files are not claimed, so other agents in this repository "
        "are not kept from them, nor you from theirs. The work goes on."
    )
    heard = remark(event, text)
    is_shown = heard.stdout and is_new(call.env, "trouble", event.agent.session)
    return heard.replace(stderr=quiet.stderr) if is_shown else quiet


def _why(error: BaseException) -> str:
    if isinstance(error, HookOverdue):
        return f"it took longer than {_MS_MAX // 1000} s"
    from dibs.client.connection import DO_NOT_BEGIN  # advice for who waits for a job; here the work goes on

    text = error.details if isinstance(error, DibsError) else f"{type(error).__name__}: {error}"
    return " ".join(str(text).replace(DO_NOT_BEGIN, "").split())[:300]


COMMANDS = {
    "agent hook": Command(
        hook,
        CLIENT,
        LIMIT,
        summary="what the hooks of coding agents run: claim what is about to be written",
        about=(
            "Reads one event of Claude Code, Codex, Cursor, Gemini CLI, Copilot, opencode or Windsurf as "
            "JSON from standard input. Before a file is written, it is claimed for the agent's session: "
            "silent if that succeeds, refused with exit code 2 if another worker has it. After a shell "
            "command, what it changed is claimed. A command that the repository guards with a `wait` stands "
            "in line for as long as --limit allows. An error of dibs itself refuses nothing, unless the "
            "repository has `require = true`; a wrong command line never does."
        ),
        examples=(("dibs agent hook --client claude", "in a hook's configuration"),),
        exits=(
            (0, "nothing to say, or said on standard output in the client's own form; also after an error of dibs"),
            (2, "refused; the reason is on standard error"),
        ),
    ),
}
