"""session open, keep, end, show, list: sessions by hand."""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, no, yes
from dibs.cli.framework.spec import MAYBE, WIDE, Argument, Command, Option
from dibs.cli.text.claim import field, waited_for
from dibs.cli.text.listing import sheet
from dibs.cli.text.words import Paint, ago, instant_ms, plain, shell_line, span
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.wire.codes import NOT_YOURS
from dibs.wire.sentences import few, said, shown_name


def session(document: Document, paint: Paint) -> str:
    owner = plain(document["owner"])
    if not document["active"]:
        return f"{paint.bad('Over:')} the session of {owner} has ended, and its jobs were released."
    now_ms = instant_ms(document["expires_at"]) - document["remaining_ms"]
    lines = [f"{paint.good('Alive:')} {owner}, for another {span(document['remaining_ms'])}."]
    lines.append(field("since", ago(now_ms - instant_ms(document["since"]))))
    if note := said(document.get("metadata")):
        lines.append(field("metadata", plain(note)))
    names = {hold["name"] for hold in document.get("holds", ())}
    for hold in document.get("holds", ()):
        if hold["name"] != shown_name(hold["name"]) in names:
            continue  # the same file
        shared = ", shared" if hold.get("mode") == "shared" else ""
        where = hold.get("namespace", DEFAULT_NAMESPACE)
        elsewhere = "" if where == DEFAULT_NAMESPACE else f", namespace {where}"
        lines.append(
            field("holds", f"{plain(shown_name(hold['name']))} (token {hold['fencing_token']}{shared}{elsewhere})")
        )
    lines += [field("waits for", plain(shown_name(name))) for name in document.get("waits", ())]
    return "\n".join(lines)


def _names(names: list[str]) -> str:
    return few([plain(name) for name in dict.fromkeys(map(shown_name, names))], 3) or "-"


def open_(call: Call) -> Answer:
    request = {**flags.open_request(call), "fresh_session_id": new_id()}
    if call.values.get("pid") is not None:
        from dibs.system.session_mark import process_mark

        pid = flags.process_number(call, "pid")
        mark = request["process"] = process_mark(pid)
        if mark is None:
            raise UsageError(f"--pid {pid}: no such process can be seen here.")
    body = call.body("session-open", "", request)
    owner, ttl_ms = plain(body["owner"]), body["ttl_seconds"] * 1000
    lines = [
        f"{call.paint.good('Opened')} a session for {owner}; it ends {span(ttl_ms)} after its last renewal.",
        f"  export DIBS_SESSION={plain(body['session_id'])}",
        f"Renew it within {span(ttl_ms // 2)}:  {shell_line(['dibs', 'session', 'keep', *flags.next_words(call)])}",
    ]
    return yes(body, "\n".join(lines), quiet=plain(body["session_id"]))


def keep(call: Call) -> Answer:
    body = call.body("session-keep", _session(call), {"active": True})
    lines = [f"{call.paint.good('Alive')} for another {span(body['remaining_ms'])}."]
    for job in body.get("wanted", ()):
        lines += waited_for(job)
    return yes(body, "\n".join(lines))


def end(call: Call) -> Answer:
    session = _session(call)
    call.body("session-end", session, {})
    text = f"{call.paint.good('Ended.')} Everything the session held is released."
    return yes({"session_id": session, "ended": True}, text)


def show(call: Call) -> Answer:
    body = call.body("session-show", _session(call), {})
    text = session(body, call.paint)
    if body["active"]:
        return yes(body, text, quiet="\n".join(plain(hold["name"]) for hold in body.get("holds", ())))
    return no(NOT_YOURS, body, text, code="session_expired", message=text.partition("\n")[0])


def list_(call: Call) -> Answer:
    body = call.body("sessions")
    if not body["sessions"]:
        return yes(body, "No session is open.")
    rows = [("SESSION", "OWNER", "LEFT", "HOLDS", "WAITS FOR")]
    for each in body["sessions"]:
        held, waits = [hold["name"] for hold in each.get("holds", ())], each.get("waits", ())
        rows.append((each["session_id"], plain(each["owner"]), span(each["remaining_ms"]), _names(held), _names(waits)))
    lines = sheet(rows, call.paint, call.width, {"HOLDS": 8, "OWNER": 10, "SESSION": 8}, ("WAITS FOR",))
    return yes(body, "\n".join(lines), quiet="\n".join([plain(row[0]) for row in rows[1:]]))


def _session(call: Call) -> str:
    given = call.values.get("id")
    if given is not None:
        return flags.checked_session(call, given, "ID")
    inherited = call.env.get("DIBS_SESSION")
    if not inherited:
        raise UsageError(f"{call.command} needs ID, or DIBS_SESSION: what `dibs session open` printed.")
    return flags.checked_session(call, inherited, "DIBS_SESSION")


_ID = Argument("ID", "the session's id (default: DIBS_SESSION)", takes=MAYBE, completes="session")
_OVER = ((2, "there is no such session, or it has ended and its jobs were released"),)
COMMANDS = {
    "session open": Command(
        open_,
        *flags.SESSION_OPEN,
        Option("--pid PID", "end the session when this process of this machine ends"),
        about=(
            "A session is one run of one worker. Its claims are released when it ends, or when it is not "
            "renewed for its TTL. The id is a secret that proves the session. With --pid, it ends as soon "
            "as another dibs process on this machine sees that this process has died. `dibs session run` "
            "does all of this by itself."
        ),
        examples=(
            ("export DIBS_SESSION=$(dibs session open -q --pid $$)", "for a shell script"),
            ("dibs session open --owner agent-7 --ttl 5m", "under a name, for five minutes"),
        ),
        exits=(
            (0, "open"),
            (64, "no such process, or invalid TTL"),
        ),
    ),
    "session keep": Command(
        keep,
        _ID,
        about="Restarts the TTL of the session and of all claims in it.",
        examples=(("dibs session keep -q || exit", "now and then"),),
        exits=(
            (0, "alive"),
            *_OVER,
        ),
    ),
    "session end": Command(
        end,
        _ID,
        examples=(("trap 'dibs session end -q' EXIT", "at the end of a script"),),
        exits=(
            (0, "ended"),
            *_OVER,
        ),
    ),
    "session show": Command(
        show,
        _ID,
        about="With --quiet it prints only the names of the jobs held, one per line.",
        examples=(("dibs session show", "this one"),),
        exits=(
            (0, "the session is alive"),
            *_OVER,
        ),
    ),
    "session list": Command(
        list_,
        WIDE,
        about=(
            "On a server, it lists the sessions of your token; an operator sees all. With --quiet it prints "
            "only the ids, one per line."
        ),
        examples=(("dibs session list", "who is at work"),),
        exits=((0, "the list, which may be empty"),),
    ),
}
