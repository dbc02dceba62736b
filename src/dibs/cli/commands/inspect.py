"""owner, history: what is on record about jobs."""

from __future__ import annotations

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput
from dibs.cli.framework.flag_values import count, given_ms
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, no, yes
from dibs.cli.framework.spec import JOB, Argument, Command, Option
from dibs.cli.supervise.signals import StopSignals
from dibs.cli.text import inspect as inspect_text
from dibs.cli.text.inspect import event_line
from dibs.cli.text.words import instant_ms, plain
from dibs.client.event_reader import PASSING, EventCursor, follow, why_away
from dibs.core.durations import parse_duration
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.core.records import DONE
from dibs.wire import codes
from dibs.wire.codes import YES
from dibs.wire.parts import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

# watch: what happens to jobs, as it happens. `history --follow` is the same for one job, from its past on.


def watch(call: Call) -> Answer:
    name, prefix = call.values.get("job"), call.values.get("prefix", "")
    if name is not None and prefix:
        raise UsageError("Give a job or --prefix, not both.", call.command)
    return follow_events(call, name, prefix, given_ms(call, "since") or 0)


def follow_events(call: Call, name: str | None, prefix: str, since_ms: int) -> Answer:
    """Print a line for each event until the command is stopped, or --for is over."""
    is_begun = is_away = False
    cursor = EventCursor(prefix, name, None, since_ms)
    found = follow(call.door(), cursor, for_ms=given_ms(call, "for"))
    with StopSignals():
        for event in found:
            if not isinstance(event, dict):
                if event.status == 200:
                    is_begun, is_away = True, False
                    continue
                answer = failure(event)
                if not is_begun or answer.code not in PASSING:
                    return answer
                if not is_away:
                    call.complain(f"{why_away(answer.text)} Following goes on as soon as a server answers.")
                is_away = True
                continue
            if not _print(call, event):
                break
    return Answer(YES, {}, "", is_said=True)


def _print(call: Call, event: Document) -> bool:
    """False if nobody reads it."""
    if call.values.get("json"):
        from json import JSONEncoder

        line = JSONEncoder().encode(event)
    else:
        line = call.paint.shown(event_line(event, call.paint))
    return call.say([line])


FOR = Option("--for", "stop after this long", value="TIME")

COMMANDS = {
    "watch": Command(
        "watch",
        watch,
        about=(
            "Prints one line for each event until it is stopped; with --json one JSON document in each line, as `GET "
            "/events` has it. From a server the events come at once. If the server is away, watch goes on where it "
            "was, at another server or when it is back, and misses nothing. History that was pruned meanwhile is told "
            "as a gap."
        ),
        arguments=(Argument("JOB", "only this job", completes="job", takes="maybe"),),
        options=(
            Option("--prefix", "only names that begin with this", value="TEXT"),
            Option("--since", "begin with the events of the last 30m, 2d, ...", value="TIME"),
            FOR,
        ),
        examples=(
            ("everything", "dibs watch"),
            ("of one kind, for a program", "dibs watch --prefix issue- --json"),
            ("one job, with its last hour", "dibs watch issue-1842 --since 1h"),
        ),
        exits=((0, "--for is over, or nobody reads the output any more"),),
    ),
}


def owner(call: Call) -> Answer:
    reply = call.ask("inspect", call.values["job"], {})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    status: str = body["status"]
    text = inspect_text.status(body, call.paint, wall_ms())
    if status == "held":
        return yes(body, text, quiet=plain(body["owner"]))
    message = text.partition("\n")[0]
    return no(codes.DONE if status == DONE else codes.NO, body, text, code=status, message=message)


def history(call: Call) -> Answer:
    name, prefix = call.values.get("job"), call.values.get("prefix", "")
    if name is not None and prefix:
        raise UsageError("Give a job or --prefix, not both.", call.command)
    since = call.values.get("since")
    since_ms = None if since is None else _since_ms(call, since)
    if call.values.get("follow"):
        from dibs.cli.commands.inspect import follow_events

        return follow_events(call, name, prefix, 0 if since_ms is None else wall_ms() - since_ms)
    if call.values.get("rights"):
        if name is not None or prefix:
            raise UsageError("--rights is about no job.", call.command)
        return _rights(call, since_ms)
    most = HISTORY_PAGE_DEFAULT if since_ms is None else HISTORY_PAGE_MAX
    wanted = count(call, "limit", HISTORY_PAGE_MAX) or most
    if name is None:
        return _history_of_all(call, prefix, since_ms, wanted)
    reply = call.ask("history", name, {"limit": wanted})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    if since_ms is not None:
        body["events"] = [event for event in body["events"] if instant_ms(event["at"]) >= since_ms]
    text = inspect_text.history(body, call.paint, wall_ms(), since)
    return yes(body, text, quiet=text if body["events"] else "")


def _rights(call: Call, since_ms: int | None) -> Answer:
    """Changes of tokens, webhooks and access lists, oldest first. There is no index of them: all events are looked at,
    a page at a time."""
    wanted = count(call, "limit", HISTORY_PAGE_MAX) or HISTORY_PAGE_DEFAULT
    events: list[Document] = []
    after: int | None = 0
    while after is not None:
        reply = call.ask("rights", "", {"after": after, "limit": HISTORY_PAGE_MAX})
        if is_failure(reply):
            return failure(reply)
        page: Document = reply.body or {}
        events += [each for each in page["events"] if since_ms is None or instant_ms(each["at"]) >= since_ms]
        events, after = events[-wanted:], page["next"]
    text = "\n".join([inspect_text.rights_line(each, call.paint) for each in events]) or "Nothing is on record."
    return yes({"events": events}, text, quiet=text if events else "")


def _history_of_all(call: Call, prefix: str, since_ms: int | None, wanted: int) -> Answer:
    """The newest events of several jobs, oldest first."""
    from dibs.client.event_reader import EventCursor, asked_events

    events: list[Document] = []
    if since_ms is None:
        reply = call.door().ask(asked_events(prefix, None, None, wanted))
        if is_failure(reply):
            return failure(reply)
        events = list((reply.body or {})["events"])
    else:
        cursor = EventCursor(prefix, None, None, max(1, wall_ms() - since_ms))
        while not cursor.is_current:
            reply = call.door().ask(cursor.question())
            if is_failure(reply):
                return failure(reply)
            cursor.take_page(reply.body or {})
            events = [*events, *iter(cursor.pop, None)][-wanted:]
    lines = [inspect_text.event_line(event, call.paint) for event in events]
    text = "\n".join(lines) or "Nothing is on record."
    return yes({"prefix": prefix, "events": events}, text, quiet=text if events else "")


_MIDNIGHT = "0000-00-00T00:00:00.000Z"


def _since_ms(call: Call, text: str) -> int:
    """A duration before now, or a timestamp as history prints it."""
    try:
        return wall_ms() - parse_duration(text)
    except InvalidInput:
        pass
    moment = text.strip().rstrip("Zz").replace(" ", "T")
    whole = f"{moment}{_MIDNIGHT[len(moment) :]}"
    try:
        since_ms = instant_ms(whole)
        if len(moment) not in (10, 16, 19) or timestamp(since_ms) != whole:
            raise ValueError
        return since_ms
    except ValueError:
        raise UsageError(
            f"--since takes a duration such as 30m, or a time in UTC such as 2026-11-15T16:00, not {text!a}.",
            call.command,
        ) from None


COMMANDS |= {
    "owner": Command(
        "owner",
        owner,
        arguments=(JOB,),
        examples=(
            ("who is on it", "dibs owner issue-1842"),
            ("in a script", 'if OWNER=$(dibs owner -q issue-1842); then echo "$OWNER has it"; fi'),
        ),
        exits=((0, "somebody has it"), (1, "nobody has it"), (4, "nobody has it, and it is marked as done")),
    ),
    "history": Command(
        "history",
        history,
        about=(
            "Prints the newest events, oldest first. Heartbeats without a new checkpoint are not events. Without "
            "JOB it shows the events of all jobs; without --since, those that match among the last 1000."
        ),
        arguments=(Argument("JOB", "only this job", completes="job", takes="maybe"),),
        options=(
            Option("--rights", "instead, who changed tokens, webhooks and access lists. For admins"),
            Option("--prefix", "only names that begin with this", value="TEXT"),
            Option("--limit", f"how many events (default {HISTORY_PAGE_DEFAULT})", value="N"),
            Option("--since", "only events since then: 30m, 2d, or a time in UTC", value="TIME"),
            Option("--follow", "go on with what happens; without --since, only that. See `dibs watch`"),
            Option("--for", "with --follow: stop after this long", value="TIME"),
        ),
        examples=(
            ("everything that is on record", "dibs history issue-1842"),
            ("of the last two hours", "dibs history issue-1842 --since 2h"),
            ("and what comes", "dibs history issue-1842 --since 2h --follow"),
            ("of all jobs of one kind", "dibs history --prefix issue- --since 2h"),
            ("who gave and took rights", "dibs history --rights --since 30d"),
        ),
        exits=((0, "the events; there may be none"),),
    ),
}
