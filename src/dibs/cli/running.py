"""session run: a command inside a session that is kept alive for it and ends with it."""

from __future__ import annotations

from dibs.cli.answer import Answer, failure, is_failure
from dibs.cli.child import GRACE_MS, Child
from dibs.cli.sessions import TTL, open_request
from dibs.cli.spec import REST, Argument, Command
from dibs.cli.values import METADATA, OWNER
from dibs.client.embedded import process_mark
from dibs.client.keepalive import Keeper, Plan
from dibs.clock import steady_ms
from dibs.core.durations import format_duration
from dibs.wire.codes import LOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.call import Call

    Document = dict[str, Any]

NOT_EXECUTABLE = 126
NOT_FOUND = 127
SLACK_MS = 500


def run(call: Call) -> Answer:
    import os

    request = open_request(call)
    mark = process_mark(os.getpid())
    if mark is not None:
        request["process"] = mark
    sent_ms = steady_ms()
    reply = call.door().call("session-open", "", request)
    if is_failure(reply):
        return failure(reply)
    opened: Document = reply.body or {}
    plan = Plan(opened["ttl_seconds"] * 1000, sent_ms, GRACE_MS + SLACK_MS)
    try:
        return _inside(call, opened["session_id"], plan)
    finally:
        _end(call, opened["session_id"], plan)


def _inside(call: Call, session: str, plan: Plan) -> Answer:
    words = call.values["command"]
    try:
        child = Child(words, _environment(call, session))
    except OSError as error:
        return _not_started(call, words[0], error)
    except ValueError:  # a zero byte in a word
        return _not_started(call, words[0], OSError(0, "its words cannot be passed on"))
    keeper = Keeper(lambda: call.another_door(plan.call_ms), session, plan, child.wake)
    try:
        keeper.start()
        code = child.wait(lambda: keeper.is_lost, keeper.left_ms)
        if code is None:
            child.stop()
            return _lost(call, session, keeper.why)
    finally:
        keeper.stop()
        child.close()
    document = {"session_id": session, "command": words, "exit": code}
    message = f"{words[0]} exited with {code}."
    return Answer(code, document, "", code="exited", message=message)


def _environment(call: Call, session: str) -> dict[str, str]:
    """The child's: whatever it asks dibs, it asks of the same place, in this session, under the same name."""
    env = {key: value for key, value in call.env.items() if key != "DIBS_LEASE"}
    settings = call.settings
    given = {
        "DIBS_URL": settings.url,
        "DIBS_NAMESPACE": settings.namespace,
        "DIBS_OWNER": settings.owner,
        "DIBS_SESSION": session,
    }
    return env | {key: value for key, value in given.items() if value is not None}


def _not_started(call: Call, word: str, error: OSError) -> Answer:
    missing = isinstance(error, FileNotFoundError) or not word
    exit_code = NOT_FOUND if missing else NOT_EXECUTABLE
    why = "there is no such command" if missing else (error.strerror or str(error)).lower()
    text = f"{word!a} could not be started: {why}."
    return Answer(exit_code, {"command": call.values["command"]}, text, code="not_started", is_error=True)


def _lost(call: Call, session: str, why: str) -> Answer:
    text = f"The session was lost ({why.rstrip('.')}). The command was stopped, because its jobs may be others' now."
    document = {"session_id": session, "command": call.values["command"], "why": why}
    return Answer(LOST, document, text, code="lost", is_error=True)


def _end(call: Call, session: str, plan: Plan) -> None:
    """Let everything go. Where that cannot be said, silence says it, later."""
    door = call.another_door(plan.call_ms)
    try:
        reply = door.call("session-end", session, {})
    finally:
        door.close()
    if reply.status in (404, 410) or reply.status < 300 or call.stderr is None or call.values.get("quiet"):
        return
    ttl = format_duration(plan.ttl_ms)
    details = str((reply.body or {}).get("details"))
    try:
        call.stderr.write(
            f"dibs: the session could not be ended and goes by itself within {ttl}: {details}\n"
        )
        call.stderr.flush()
    except OSError:  # nobody reads it
        pass


COMMANDS = {
    "session run": Command(
        "session run",
        "run a command inside a session of its own",
        run,
        about=(
            "Opens a session, keeps it alive while the command runs, and ends it when the command ends, however that "
            "is: what was claimed inside is let go. Inside, DIBS_SESSION is set, so that claims, heartbeats and "
            "releases go by name. Input, output and signals are the command's. When the session is lost, the command "
            "and all it started are stopped (SIGTERM, after 5s SIGKILL). There is no shell: write sh -c for one. With "
            "--json the document comes after what the command printed."
        ),
        arguments=(Argument("COMMAND", "what to run, with its words", takes=REST),),
        options=(TTL, OWNER, METADATA),
        examples=(
            ("a worker", "dibs session run --owner agent-7 -- ./worker.sh"),
            (
                "two steps under one claim",
                "dibs session run -- sh -c 'dibs claim deploy --wait 5m && ./deploy'",
            ),
        ),
        exits=(
            (0, "the command said 0; all other codes are its own, 128+n for signal n"),
            (LOST, "the session was lost; the command was stopped"),
            (64, "no command was given"),
            (69, "the session could not be opened; nothing was run"),
            (NOT_EXECUTABLE, "the command cannot be run"),
            (NOT_FOUND, "there is no such command"),
        ),
    ),
}
