"""session open, keep, end, show, list: sessions by hand."""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.cli.framework.flags import METADATA, OWNER, checked_session, next_words
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import failure, is_failure, no, yes
from dibs.cli.framework.session_flags import TTL, open_request
from dibs.cli.framework.spec import MAYBE, Argument, Command, Option
from dibs.cli.text import session as session_text
from dibs.cli.text.words import plain
from dibs.wire.codes import NOT_YOURS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]


def open_(call: Call) -> Answer:
    request = {**open_request(call), "fresh_session_id": new_id()}
    pid = call.values.get("pid")
    if pid is not None:
        request["process"] = _mark(pid)
    reply = call.door().call("session-open", "", request)
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, session_text.opened(body, call.paint, next_words(call)), quiet=plain(body["session_id"]))


def _mark(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 11 and int(text) > 0):
        raise UsageError(f"--pid takes the number of a process, not {text!a}.", "session open")
    from dibs.client.embedded import process_mark

    mark = process_mark(int(text))
    if mark is None:
        raise UsageError(f"--pid {text}: no such process can be seen here.", "session open")
    return mark


def keep(call: Call) -> Answer:
    reply = call.door().call("session-keep", _session(call), {"active": True})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, session_text.kept(body, call.paint))


def end(call: Call) -> Answer:
    session = _session(call)
    reply = call.door().call("session-end", session, {})
    if is_failure(reply):
        return failure(reply)
    text = f"{call.paint.good('Ended.')} Everything the session held is released."
    return yes({"session_id": session, "ended": True}, text)


def show(call: Call) -> Answer:
    reply = call.door().call("session-show", _session(call), {})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    text = session_text.session(body, call.paint)
    if body["active"]:
        return yes(body, text, quiet="\n".join(plain(hold["name"]) for hold in body.get("holds", ())))
    return no(NOT_YOURS, body, text, code="session_expired", message=text.partition("\n")[0])


def list_(call: Call) -> Answer:
    reply = call.door().sessions()
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    ids = "\n".join(plain(session["session_id"]) for session in body["sessions"])
    return yes(body, session_text.sessions(body, call.paint), quiet=ids)


def _session(call: Call) -> str:
    given = call.values.get("id")
    if given is not None:
        return checked_session(call, given, "ID")
    inherited = call.env.get("DIBS_SESSION")
    if not inherited:
        raise UsageError(
            f"{call.command} needs ID, or DIBS_SESSION: what `dibs session open` printed.", call.command
        )
    return checked_session(call, inherited, "DIBS_SESSION")


_ID = Argument("ID", "the session's id (default: DIBS_SESSION)", takes=MAYBE, completes="session")
_OVER = (2, "there is no such session, or it has ended and its jobs were released")
COMMANDS = {
    "session open": Command(
        "session open",
        open_,
        about=(
            "A session is one run of one worker. Its claims are released when it ends, or when it is not "
            "renewed for its TTL. The id is a secret that proves the session. With --pid, the session ends as"
            " soon as another dibs process on this machine sees that this process has died. `dibs session "
            "run` does all of this by itself."
        ),
        options=(
            TTL,
            OWNER,
            METADATA,
            Option("--pid", "end the session when this process of this machine ends", value="PID"),
        ),
        examples=(
            ("for a shell script", "export DIBS_SESSION=$(dibs session open -q --pid $$)"),
            ("under a name, for five minutes", "dibs session open --owner agent-7 --ttl 5m"),
        ),
        exits=((0, "open"), (64, "no such process, or invalid TTL")),
    ),
    "session keep": Command(
        "session keep",
        keep,
        about="Restarts the TTL of the session and of all claims in it.",
        arguments=(_ID,),
        examples=(("now and then", "dibs session keep -q || exit"),),
        exits=((0, "alive"), _OVER),
    ),
    "session end": Command(
        "session end",
        end,
        arguments=(_ID,),
        examples=(("at the end of a script", "trap 'dibs session end -q' EXIT"),),
        exits=((0, "ended"), _OVER),
    ),
    "session show": Command(
        "session show",
        show,
        about="With --quiet it prints only the names of the jobs held, one per line.",
        arguments=(_ID,),
        examples=(("this one", "dibs session show"),),
        exits=((0, "the session is alive"), _OVER),
    ),
    "session list": Command(
        "session list",
        list_,
        about=(
            "On a server, it lists the sessions of your token; an operator sees all. "
            "With --quiet it prints only the ids, one per line."
        ),
        examples=(("who is at work", "dibs session list"),),
        exits=((0, "the list, which may be empty"),),
    ),
}
