"""owner, history, overdue, watch: what is on record about jobs, and what happens to them."""

from __future__ import annotations

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count, given_ms, seconds
from dibs.cli.framework.job_names import each_job, or_in_checkout
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, body_of, failure, no, yes
from dibs.cli.framework.spec import JOBS, Argument, Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text.claim import field
from dibs.cli.text.listing import status_text
from dibs.cli.text.words import Paint, ago, instant_ms, plain, span, table
from dibs.client.event_reader import EventCursor, asked_events, follow
from dibs.core.durations import parse_duration
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX, WITHIN_S_DEFAULT, WITHIN_S_MAX
from dibs.core.records import DONE, MAX_HOLD
from dibs.wire import codes, sentences
from dibs.wire.codes import YES
from dibs.wire.parts import moment_ms
from dibs.wire.sentences import slot_text


def history_text(document: Document, paint: Paint, now_ms: int, since: str | None = None) -> str:
    events = document["events"]
    if not events:
        when = "" if since is None else f" since {plain(since)}"
        return f"Nothing is on record about {plain(sentences.shown_name(document['name']))}{when}."
    lines = table([(_when(event), ago(now_ms - instant_ms(event["at"])), _sentence(event)) for event in events])
    if paint.on:
        lines = [paint.faint(line[:20]) + line[20:] for line in lines]
    return "\n".join(lines)


def event_line(event: Document, paint: Paint) -> str:
    """One event of any job, for a reader who follows."""
    if event["event"] == "gap":
        return f"Events up to number {int(event['oldest']) - 1} are no longer on record; some may be missing here."
    name = plain(sentences.shown_name(event.get("name", "")))
    return f"{paint.faint(_when(event))}  {paint.strong(name)}  {_sentence(event)}"


def rights_line(event: Document, paint: Paint) -> str:
    where = "/".join([plain(event[key]) for key in ("namespace", "name") if event.get(key)])
    of = "" if event["event"] == "access-set" else f" of {plain(event.get('user_id'))}"
    change = f"{plain(event['event'])}{of} by {plain(event.get('by') or 'dibs')}: {plain(event.get('reason'))}"
    return f"{paint.faint(_when(event))}  {paint.strong(where or '*')}  {change}"


def _when(event: Document) -> str:
    return plain(str(event.get("at", ""))[:19].replace("T", " ") + "Z")


# Events with one sentence. `{by}` is who did it, if it was not the owner.
_SENTENCES = {
    "expired": "the claim of {owner} expired without a heartbeat",
    "closed": "{by} closed it until {until}: {reason}",
    "opened": "{by} opened it",
    "broken": "{by} took it from {owner}: {reason}",
    "queued": "{owner} got in line",
    "refused": "{owner} asked for it and was refused",
    "renewed": "{owner} sent a heartbeat",
    "progress": "{owner} made progress",
    "effect-begun": "{owner} began the step {step}",
    "effect-done": "{owner} did the step {step}",
    "effect-failed": "{owner} failed at the step {step}: {reason}",
    "effect-in-doubt": "{owner} does not know whether the step {step} happened: {reason}",
    "shared": "{owner} shares it from now on",
    "transferred": "{owner} handed it to {by}",
    "parked": "parked after the last attempt, by {owner}, failed or was lost",
    "freed": "{by} freed it",
    "access-set": "{by} changed who may claim it: {reason}",
    "pool-set": "{by} set its pool: {reason}",
    "numbered": "{owner} got number {reason}",
    "number-returned": "{by} gave number {reason} back",
    "forgotten": "its record was deleted after a long time idle",
}
_LEFT = {"left": "", "stopped asking": ": it stopped asking", "session ended": ": its session ended"}


def _sentence(event: Document) -> str:
    kind, owner, reason = event["event"], plain(event.get("owner", "")), plain(event.get("reason"))
    said = {**event, "metadata": sentences.said(event.get("metadata"))}
    notes = {key: f"{key} {plain(said[key])}" for key in ("metadata", "checkpoint", "result") if said.get(key)}
    if kind == "acquired":
        ttl = f" for {span(event['ttl_seconds'] * 1000)}" if event.get("ttl_seconds") else ""
        attempt = f", attempt {event['attempt']}" if event.get("attempt", 1) > 1 else ""
        slot = f", slot {slot_text(event)}" if "slot" in event else ""
        says = f"{owner} claimed it{ttl} (token {event['fencing_token']}{slot}{attempt})"
    elif kind == "released":
        says = f"{owner} released it" + (" as done" if event.get("done_until") else "")
    elif kind == "failed":
        says = f"{owner} failed at it" + (f": {reason}" if event.get("reason") else "")
        if event.get("retry_after_seconds"):
            says += f"; to be tried again after {span(event['retry_after_seconds'] * 1000)}"
    elif kind == "left":
        why = f"superseded by {plain(event['by'])}" if event.get("by") else reason
        says = f"{owner} left the line" + _LEFT.get(str(event.get("reason", "left")), f": {why}")
    elif kind == "expired" and event.get("reason") == MAX_HOLD:
        says = f"the claim of {owner} reached the longest time that it may last"
    elif kind == "opened" and "by" not in event:
        says = "it is open again: its time was over"
    elif kind in _SENTENCES:
        until = plain(str(event.get("until"))[:16].replace("T", " ") + "Z")
        says = _SENTENCES[kind].format(
            owner=owner, by=plain(event.get("by")), reason=reason, until=until, step=plain(event.get("effect_key"))
        )
    else:
        says = f"{plain(kind)} {owner}".rstrip()
    if kind == "progress" and "checkpoint" in notes:  # metadata is repeated in every event
        notes.pop("metadata", None)
    return ": ".join([says, ", ".join(notes.values())]) if notes else says


def overdue(call: Call) -> Answer:
    within = seconds(call, "within", WITHIN_S_MAX * 1000)
    if within == 0:
        raise UsageError("--within takes a time of at least a second.")
    return each_job(call, "overdue", {"within_seconds": WITHIN_S_DEFAULT if within is None else within}, _overdue)


def _overdue(call: Call, body: Document) -> Answer:
    last, is_late = body["last_success"], body["status"] == "overdue"
    lead = call.paint.bad("Overdue:") if is_late else call.paint.good("In time:")
    lines = [f"{lead} {overdue_sentence(body)}"]
    if last is not None and last["result"]:
        lines.append(field("result", plain(last["result"])))
    quiet = "" if last is None else last["at"]
    if not is_late:
        return yes(body, "\n".join(lines), quiet=quiet)
    return no(codes.OVERDUE, body, "\n".join(lines), code="overdue", message=overdue_sentence(body), quiet=quiet)


def overdue_sentence(body: Document) -> str:
    last, name, since = body["last_success"], plain(body["name"]), body.get("record_since")
    if last is not None:
        late = f", {span(body['overdue_ms'])} too long ago" if body["overdue_ms"] else ""
        text = f"{name} succeeded {ago(last['ms_ago'])}{late}, by {plain(last['owner'])}."
    elif since is None:
        text = f"{name} has no success on record, and the history is empty."
    else:
        text = f"{name} has no success on record since {_when({'at': since})}, where the history begins."
    if body.get("held_by"):
        text += f" {plain(body['held_by'])} has had it for {span(body['held_ms'])}."
    return text


def _chosen(call: Call) -> tuple[str | None, str]:
    name, prefix = call.values.get("job"), call.values.get("prefix", "")
    if name is not None and prefix:
        raise UsageError("Give a job or --prefix, not both.")
    return name, prefix


def watch(call: Call) -> Answer:
    name, prefix = _chosen(call)
    return follow_events(call, name, prefix, given_ms(call, "since") or 0)


def follow_events(call: Call, name: str | None, prefix: str, since_ms: int) -> Answer:
    """Print a line for each event until the command is stopped, or --for is over."""
    is_begun = False
    found = follow(call.transport(), EventCursor(prefix, name, None, since_ms), for_ms=given_ms(call, "for"))
    with StopSignals():
        for event in found:
            if not isinstance(event, dict):
                answer = failure(event) if event.status != 200 else None
                if answer is not None and (not is_begun or codes.kind_of(event) != codes.NOT_NOW):
                    return answer
                is_begun = True
                call.complain_away(None if answer is None else answer.text, "Following")
            elif not call.say([event_line(event, call.paint)], [event]):
                break  # nobody reads it
    return Answer(YES, {}, "", is_said=True)


def _owned(call: Call, body: Document) -> Answer:
    name = body["name"]
    body = {**or_in_checkout(call, body, lambda twin: call.ask("inspect", twin).body or {}), "name": name}
    status: str = body["status"]
    text = status_text(body, call.paint, wall_ms())
    if status == "held":
        return yes(body, text, quiet=plain(body["owner"]))
    return no(codes.DONE if status == DONE else codes.NO, body, text, code=status, message=text.partition("\n")[0])


def history(call: Call) -> Answer:
    name, prefix = _chosen(call)
    since = call.values.get("since")
    since_ms = None if since is None else _since_ms(call, since)
    if call.values.get("follow"):
        return follow_events(call, name, prefix, 0 if since_ms is None else wall_ms() - since_ms)
    if call.values.get("rights"):
        if name is not None or prefix:
            raise UsageError("--rights is about no job.")
        return _rights(call, since_ms)
    most = HISTORY_PAGE_DEFAULT if since_ms is None else HISTORY_PAGE_MAX
    wanted = count(call, "limit", HISTORY_PAGE_MAX) or most
    if name is None:
        return _history_of_all(call, prefix, since_ms, wanted)
    body = call.body("history", name, {"limit": wanted})
    if since_ms is not None:
        body["events"] = [event for event in body["events"] if instant_ms(event["at"]) >= since_ms]
    text = history_text(body, call.paint, wall_ms(), since)
    if not body["events"] and since is None:
        return no(codes.NO, body, text, code="not_found", message=text)
    return yes(body, text, quiet=text if body["events"] else "")


def _rights(call: Call, since_ms: int | None) -> Answer:
    """Changes of tokens, webhooks and access lists, oldest first. They have no index: all events are looked at."""
    wanted = count(call, "limit", HISTORY_PAGE_MAX) or HISTORY_PAGE_DEFAULT
    events: list[Document] = []
    after: int | None = 0
    while after is not None:
        page = call.body("rights", "", {"after": after, "limit": HISTORY_PAGE_MAX})
        events += [each for each in page["events"] if since_ms is None or instant_ms(each["at"]) >= since_ms]
        events, after = events[-wanted:], page["next"]
    return _listed({"events": events}, [rights_line(each, call.paint) for each in events])


def _history_of_all(call: Call, prefix: str, since_ms: int | None, wanted: int) -> Answer:
    """The newest events of several jobs, oldest first."""
    events: list[Document] = []
    if since_ms is None:
        events = body_of(call.transport().ask(asked_events(prefix, None, None, wanted)))["events"]
    else:
        cursor = EventCursor(prefix, None, None, max(1, wall_ms() - since_ms))
        while not cursor.is_current:
            cursor.take_page(body_of(call.transport().ask(cursor.question())))
            events = [*events, *iter(cursor.pop, None)][-wanted:]
    return _listed({"prefix": prefix, "events": events}, [event_line(event, call.paint) for event in events])


def _listed(document: Document, lines: list[str]) -> Answer:
    text = "\n".join(lines)
    return yes(document, text or "Nothing is on record.", quiet=text)


def _since_ms(call: Call, text: str) -> int:
    """A duration before now, or a timestamp as history prints it."""
    try:
        return wall_ms() - parse_duration(text)
    except InvalidInput:
        pass
    try:
        return moment_ms(text)
    except ValueError:
        raise UsageError(
            f"--since takes a duration such as 30m, or a time in UTC such as 2026-11-15T16:00, not {text!a}."
        ) from None


COMMANDS = {
    "watch": Command(
        watch,
        Argument("JOB", "only this job", completes="job", takes="maybe"),
        Option("--prefix TEXT", "only names that begin with this"),
        Option("--since TIME", "begin with the events of the last 30m, 2d, ..."),
        Option("--for TIME", "stop after this long"),
        about=(
            "Prints one line for each event until it is stopped; with --json one JSON document in each "
            "line, as `GET /events` has it. From a server the events come at once. If the server is away, "
            "watch goes on where it was, at another server or when it is back, and misses nothing. History "
            "that was pruned meanwhile is reported as a gap."
        ),
        examples=(
            ("dibs watch", "everything"),
            ("dibs watch --prefix issue- --json", "of one kind, for a program"),
            ("dibs watch issue-1842 --since 1h", "one job, with its last hour"),
        ),
        exits=((0, "--for is over, or nobody reads the output any more"),),
    ),
    "owner": Command(
        lambda call: each_job(call, "inspect", {}, _owned),
        JOBS,
        about="Of several jobs the exit code is that of the first that nobody has.",
        examples=(
            ("dibs owner issue-1842", "who is on it"),
            ("dibs owner issue-1842 issue-1843", "on both"),
            ('if OWNER=$(dibs owner -q issue-1842); then echo "$OWNER has it"; fi', "in a script"),
        ),
        exits=(
            (0, "somebody has it"),
            (1, "nobody has it"),
            (4, "nobody has it, and it is marked as done"),
        ),
    ),
    "overdue": Command(
        overdue,
        JOBS,
        Option("--within TIME", "how long ago the last success may be (default 1d)"),
        about=(
            "For cron and health checks. A success is a release that is no failure, as `dibs run` makes it "
            "after a command that exits with 0. An interrupted worker, the end of a session or of a process "
            "of `claim --keep`, and a loss are none. A job without a success on record, or in the history "
            "as far as that reaches back, is overdue. --quiet prints when the last one was. Of several jobs "
            "the exit code is that of the first that is overdue."
        ),
        examples=(
            ("dibs overdue nightly-report --within 26h", "did the nightly report run"),
            ("dibs overdue -q backup --within 8d || mail -s 'no backup' ops@example.com", "from cron"),
        ),
        exits=(
            (0, "in time"),
            (6, "overdue, or no success is on record"),
        ),
    ),
    "history": Command(
        history,
        Argument("JOB", "only this job", completes="job", takes="maybe"),
        Option("--rights", "instead, who changed tokens, webhooks and access lists. For admins"),
        Option("--prefix TEXT", "only names that begin with this"),
        Option("--limit N", f"how many events (default {HISTORY_PAGE_DEFAULT})"),
        Option("--since TIME", "only events since then: 30m, 2d, or a time in UTC"),
        Option("--follow", "go on with what happens; without --since, only that. See `dibs watch`"),
        Option("--for TIME", "with --follow: stop after this long"),
        about=(
            "Prints the newest events, oldest first. Heartbeats without a new checkpoint are not events. "
            "Without JOB it shows the events of all jobs; without --since, those that match among the last "
            "1000."
        ),
        examples=(
            ("dibs history issue-1842", "everything that is on record"),
            ("dibs history issue-1842 --since 2h", "of the last two hours"),
            ("dibs history issue-1842 --since 2h --follow", "and what comes"),
            ("dibs history --prefix issue- --since 2h", "of all jobs of one kind"),
            ("dibs history --rights --since 30d", "who gave and took rights"),
        ),
        exits=(
            (0, "the events; of all jobs, or with --since, there may be none"),
            (1, "nothing is on record about JOB"),
        ),
    ),
}
