"""wait: wait until nobody has a job, without claiming it. And the wait in line of all commands that claim."""

from __future__ import annotations

from dibs.base.cheap import Callable, Mapping, Sequence
from dibs.base.clock import steady_ms, wall_ms
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import ACTOR, claim_words, exit_code, is_actor, seconds, session_of
from dibs.cli.framework.job_names import or_in_checkout
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, body_of, failure, is_granted, no, yes
from dibs.cli.framework.spec import JOBS, Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text.claim import hold_fields, sentence
from dibs.cli.text.listing import status_text
from dibs.cli.text.words import WIDTH_DEFAULT, Paint, plain, shell_line, span, width_of
from dibs.client.flow import StillWaiting, drive, patiently, status_of
from dibs.client.naming import RUN_JOB
from dibs.client.pending import PendingClaim
from dibs.client.transport import Ask
from dibs.core.limits import DONE_MS_MAX, TICKET_MS, TTL_MS_MAX
from dibs.core.names import DEFAULT_NAMESPACE, in_tree
from dibs.core.overlap import overlaps
from dibs.wire.codes import NO, TRY_LATER, YES
from dibs.wire.documents import Reply
from dibs.wire.sentences import as_it, closed, few, held

Meanwhile = Callable[[Document | None], int]

PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 2_000


def wait(call: Call) -> Answer:
    names, transport = list(dict.fromkeys(call.values["job"])), call.transport()
    length = seconds(call, "for", DONE_MS_MAX)
    done_exit = exit_code(call, "done_exit_code", YES)
    until_ms = None if length is None else steady_ms() + length * 1000
    pause_ms = PAUSE_MS_MIN
    session = session_of(call) if is_actor(call) else None
    beat = None if session is None else _beats(call, session, due_ms=0)
    is_begun, is_checked = False, until_ms is not None  # a wait with an end comes to it, whoever has the job

    def look(name: str) -> Document:
        """Return a job's state. A server that is away for a moment is waited for."""
        asked = patiently(Ask("inspect", name), until_ms, heard=is_begun)
        found = body_of(drive(transport, asked, lambda still: call.complain_away(failure(still.reply).text, "Waiting")))
        call.complain_away(None, "")
        return or_in_checkout(call, found, lambda twin: transport.ask(Ask("inspect", twin)).body or {})

    with StopSignals(), StatusLine(call) as status:
        while True:
            found = [look(name) for name in names]
            is_begun = True
            taken = [body for body in found if body["status"] == "held" or body.get("overlapping")]
            if taken and session is not None:
                taken = _of_others(call, session, taken)
            for name, body in zip(names, found, strict=True):
                body["name"] = name
            if not taken:
                return _over(call, found, done_exit)
            if beat is not None:
                beat(None)
            left_ms = None if until_ms is None else until_ms - steady_ms()
            if left_ms is not None and left_ms <= 0:
                return _not_yet(call, found, taken, (length or 0) * 1000)
            if not is_checked and (refusal := _looks_at_itself(call, session, [body["name"] for body in taken])):
                return failure(refusal)
            is_checked = True  # commands around this one have what they have since before it began
            status.show(watching(taken))
            # Not longer than the shortest hold, and not longer than is left.
            hints = [pause_ms, *[each.get("remaining_ms") or pause_ms for each in taken]]
            transport.news(max(1, min(hints if left_ms is None else [*hints, left_ms])))
            pause_ms = min(PAUSE_MS_MAX, pause_ms * 2)


def _of_others(call: Call, session: str, taken: list[Document]) -> list[Document]:
    """The jobs that others have. Nobody need wait for its own: a file that a subagent left belongs to its agent, whose
    shell this is. Marks the caller's own as `yours`."""
    body = call.ask("session-show", session, {}).body or {}
    ours = [hold for hold in body.get("holds", ()) if _is_ours(hold, call.settings.namespace)]
    mine = {(hold["name"], hold["fencing_token"]) for hold in ours}
    names = {name for name, _ in mine}
    for each in taken:
        holders = each.get("holders") or ([each] if each["status"] == "held" else [])
        over = [other for other in each.get("overlapping", ()) if other["name"] in names]
        over = [other for other in over if other["owner"] == body.get("owner")]
        is_mine = all((each["name"], holder["fencing_token"]) in mine for holder in holders)
        # Of very many only some are named: then as many must be ours.
        is_all = len(over) == len(each.get("overlapping", ())) and each.get("overlapping_count", 0) <= len(names)
        each["yours"] = is_mine and is_all
    return [each for each in taken if not each["yours"]]


def _over(call: Call, found: list[Document], done_exit: int) -> Answer:
    lines = [
        f"{plain(body['name'])} is yours." if body.get("yours") else status_text(body, call.paint, wall_ms())
        for body in found
    ]
    text = "\n".join(lines)
    quiet = "\n".join([f"{plain(body['name'])}\t{plain(body['status'])}" for body in found])
    document: Document = found[0] if len(found) == 1 else {"jobs": found}
    if len(found) == 1:
        quiet = plain(found[0]["status"])
    if done_exit != YES and all(body["status"] == "done" for body in found):
        return no(done_exit, document, text, code="done", message=text.partition("\n")[0], quiet=quiet)
    return yes(document, text, quiet=quiet)


def _not_yet(call: Call, found: list[Document], taken: list[Document], waited_ms: int) -> Answer:
    head, *more = "\n".join([status_text(body, Paint(), wall_ms()) for body in taken]).split("\n")
    text = "\n".join([f"{call.paint.wait('Not yet:')} {head}", *more])
    document: Document = found[0] if len(found) == 1 else {"jobs": found}
    return no(NO, document, text, code="held", message=f"After {span(waited_ms)}: {head}")


COMMANDS = {
    "wait": Command(
        wait,
        JOBS,
        Option("--for TIME", "wait for at most this long (default: no limit)"),
        Option("--done-exit-code N", "the exit code if all jobs are done (default 0)"),
        ACTOR,
        about=(
            "Claims nothing and takes no place in line; `dibs claim --wait` does. Renews the claims of "
            "--actor meanwhile. Prints the state at the end: free, done, delayed, parked, closed, paused or "
            "frozen; with --quiet only that word. Of several jobs it waits for all, and --quiet prints name, "
            "tab and word of each. What the actor itself has is not waited for."
        ),
        examples=(
            ("dibs wait migrate-db --for 10m && ./deploy", "until the migration is over"),
            ("dibs wait migrate-db build-image && ./deploy", "both of them"),
            ('test "$(dibs wait -q issue-1842)" = done', "done, or only released"),
            ("dibs wait issue-1842 --done-exit-code 4; test $? = 4 && echo done", "the same by exit code"),
        ),
        exits=(
            (0, "nobody has it"),
            (1, "somebody still has it at the end of --for"),
            (3, "the `dibs run` around this command has it, so that a wait without --for would never end"),
            (4, "with --done-exit-code 4: it is done"),
        ),
    ),
}


# Waiting in line, with or without a server. The flow is in `client/pending.py`.


class StatusLine:
    """One line on stderr during a wait at a terminal, redrawn, and removed at the end. Shows nothing in a pipe, under
    --json and --quiet, and on a terminal that cannot redraw."""

    def __init__(self, call: Call) -> None:
        stream = call.stderr
        silent = call.values.get("json") or call.values.get("quiet") or call.env.get("TERM") == "dumb"
        self._stream = stream if stream is not None and not silent and stream.isatty() else None
        self._drawn = False

    @property
    def on(self) -> bool:
        return self._stream is not None

    def show(self, line: str) -> None:
        if self._stream is not None:
            width = width_of(self._stream, {}) or WIDTH_DEFAULT
            self._write(f"\r{plain(line)[: width - 1]}\x1b[K")
            self._drawn = True

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            assert self._stream is not None
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal is gone; the answer still matters
            self._stream = None


def waiting(document: Document, waited_ms: int, wait_ms: int) -> str:
    """The status line of a wait for a claim: position, owner, remaining time."""
    time = f"({span(min(max(waited_ms, 1_000), wait_ms))} of {span(wait_ms)})"
    if "refused" in document:
        names = [plain(each.get("name")) for each in document["refused"]]
        return f"Waiting for any of {len(names)}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} {time}"
    if "position" not in document:
        return f"Still waiting, but: {plain(document.get('details', 'no answer'))}"
    blocker = "it is delayed, or others come first"
    if document.get("closed"):
        blocker = plain(closed(as_it(document))).rstrip(".")
    elif document["owner"] is not None:
        blocker = plain(held(as_it(document))).rstrip(".")
    return f"Waiting for {plain(document['name'])}, {_place(document)}: {blocker} {time}"


def _place(document: Document) -> str:
    return "next in line" if document["position"] == 1 else f"number {document['position']} in line"


def watching(taken: list[Document]) -> str:
    document, others = taken[0], len(taken) - 1
    name, owner, overlapping = plain(document["name"]), document.get("owner"), document.get("overlapping")
    more = f", and {others} more" if others else ""
    if owner is None and overlapping:
        return f"Waiting for {name}{more}: {plain(overlapping[0]['owner'])} has {plain(overlapping[0]['name'])}"
    return f"Waiting for {name}{more}: {plain(owner)} has it for another {span(document['remaining_ms'])}"


# Sessions around this command. A `dibs run` inside another would wait for itself: the outer one keeps its job until
# its command ends, and that command would wait for the job. Such a wait is refused, of a claim and of a look.

OUTER = "DIBS_OUTER_SESSIONS"


def sessions_around(env: Mapping[str, str]) -> list[str]:
    """The sessions around this process, innermost last."""
    return [*env.get(OUTER, "").split(), *env.get("DIBS_SESSION", "").split()]


def _kept_around(call: Call, sessions: Sequence[str], names: Sequence[str]) -> list[tuple[str, Document]]:
    """The jobs of `names` that commands around this one have until it has ended, each with the hold in its way."""
    found: list[tuple[str, Document]] = []
    for session in sessions:
        reply = call.ask("session-show", session, {})
        body: Document = reply.body or {}
        for hold in body.get("holds", ()) if reply.status < 300 else ():
            ours = hold["name"]
            if _is_ours(hold, call.settings.namespace):
                found += [(each, hold) for each in names if each == ours or _overlap(each, ours)]
    return found


def _overlap(one: str, other: str) -> bool:
    return in_tree(one) and in_tree(other) and overlaps(one, other)


def _claims_from_itself(call: Call, verb: str, name: str, document: Document) -> Reply | None:
    """The refusal of a wait that cannot end, because an outer command has the job; None if it can end. Of any jobs it
    can end if enough are left."""
    if "slots" in document:
        return None  # another slot may come free
    asked = document.get("names", [name])
    # The session's own holds do not block it.
    sessions = [each for each in sessions_around(call.env) if each != document.get("session_id")]
    kept = {
        each: hold["name"]
        for each, hold in _kept_around(call, sessions, asked)
        if "slot" not in hold and not hold["mode"] == document.get("mode") == "shared"  # another slot may come free
    }
    needed = document.get("count", 1) if verb == "acquire-any" else len(asked)
    if not kept or len(asked) - len(kept) >= needed:
        return None
    return _never(list(kept.values()), "claim {} again")


def _looks_at_itself(call: Call, own: str | None, names: Sequence[str]) -> Reply | None:
    """The refusal of a look that cannot end, because an outer command has one of the jobs; None if it can end. What
    else the session of the run around it has may be released meanwhile, by another process in it."""
    outer, inner, job = call.env.get(OUTER, "").split(), call.env.get("DIBS_SESSION", "").split(), call.env.get(RUN_JOB)
    kept = _kept_around(call, [each for each in outer if each != own], names)
    if job is not None:  # of `dibs run`: it has this job until its command has ended
        kept += [(name, hold) for name, hold in _kept_around(call, inner, names) if hold["name"] == job]
    return _never([hold["name"] for _, hold in kept], "wait for {}") if kept else None


def _never(names: Sequence[str], what: str) -> Reply:
    names = list(dict.fromkeys(names))
    held, it, job = ("is held", "it", "The job is") if len(names) == 1 else ("are held", "them", "The jobs are")
    details = (
        f"{few(names)} {held} by the `dibs run` around this command, so waiting for {it} would never end. "
        f"{job} already yours: do not {what.format(it)}."
    )
    return Reply(status=409, body={"error": "Waiting would deadlock", "code": "deadlock", "details": details})


def _is_ours(hold: Document, namespace: str | None) -> bool:
    """True if a hold is in the namespace of this command: the same name in another namespace is another job. Without a
    named namespace it is `default`, or the one that the token is bound to."""
    if namespace is None:
        return hold["namespace"] == DEFAULT_NAMESPACE or not in_tree(hold["name"])
    return bool(hold["namespace"] == namespace)


SLICE_SECONDS_LIVE = 1  # shorter at a terminal, so that the status line is fresh
BEAT_MS = 60_000


def wait_in_queue(
    call: Call,
    verb: str,
    name: str,
    document: Document,
    meanwhile: Meanwhile | None = None,
    *,
    wait_ms: int | None = None,
) -> Reply:
    """The reply to a claim after waiting for it. `queued` with a ticket: the place was kept. `meanwhile` is called with
    every `queued` answer, and returns in how many ms to call it again. `wait_ms`: what is left of --wait."""
    if wait_ms is None:
        wait_ms = (seconds(call, "wait", TTL_MS_MAX) or 0) * 1000
        wait_ms = wait_ms and max(1, wait_ms - call.waited_ms)
    ticket, keeps = call.values.get("ticket"), call.values.get("keep_place", False)
    if ticket is not None and not ticket.strip():
        raise UsageError("--ticket is empty. Did the wait before it keep its place?")
    if not wait_ms and ticket is None:
        if keeps:
            raise UsageError("--keep-place needs --wait TIME.")
        return call.claim(verb, name, document)
    if wait_ms:
        refusal = _claims_from_itself(call, verb, name, document)
        if refusal is not None:
            return refusal
    own_key = call.values.get("request_key") is None
    pending = PendingClaim(verb, name, document, ticket=ticket, own_key=own_key, wait_ms=wait_ms)
    transport = call.transport()
    call.begin_claim(pending)
    if not wait_ms:  # a caller that comes back later wants to keep the place
        return drive(transport, pending.ask_once())
    of_actor = meanwhile is None and "session_id" in document and is_actor(call)
    if of_actor:
        now_ms = steady_ms()
        meanwhile = _beats(call, document["session_id"], due_ms=now_ms + BEAT_MS, until_ms=now_ms + wait_ms)
    with StatusLine(call) as status:
        if status.on:
            pending.slice_seconds = SLICE_SECONDS_LIVE
        reply = drive(transport, pending.wait(), lambda still: _show(status, still, wait_ms, meanwhile))
        if status_of(reply) == "queued" and not keeps:
            reply = drive(transport, pending.end_wait(reply))
    if of_actor and is_granted(reply):
        _start_time(call, document, reply)
    return reply


def _start_time(call: Call, document: Document, reply: Reply) -> None:
    """Renew an actor's session at the grant: the time of the claim starts then, not with the last renewal before."""
    kept: Document = call.ask("session-keep", document["session_id"], {"active": True}).body or {}
    if "ttl_seconds" in document or "remaining_ms" not in kept:
        return  # the claim has a time of its own; or nobody answered, and the time runs since that renewal
    body: Document = reply.body or {}
    for each in (body, *body.get("leases", ())):
        if each.get("ends_in_ms", kept["remaining_ms"]) >= kept["remaining_ms"]:
            each |= {key: kept[key] for key in ("remaining_ms", "expires_at")}


def _beats(call: Call, session: str, *, due_ms: int, until_ms: int | None = None) -> Meanwhile:
    """Renews an actor's session, which lasts for a time after each command: the wait may be longer than that. Not when
    less than a timeout is left `until_ms`: a server that stands still would take it all, and more for the next ask."""
    spare_ms = min(call.settings.timeout_ms, BEAT_MS)

    def meanwhile(_: Document | None) -> int:
        nonlocal due_ms
        now_ms = steady_ms()
        if now_ms >= due_ms:
            if until_ms is None or now_ms + spare_ms <= until_ms:
                call.ask("session-keep", session, {})  # if nobody answers, the wait finds that out
            due_ms = steady_ms() + BEAT_MS
        return max(1, due_ms - steady_ms())

    return meanwhile


def _show(status: StatusLine, still: StillWaiting, wait_ms: int, meanwhile: Meanwhile | None) -> int | None:
    body = still.reply.body or {}
    status.show(waiting(body, still.waited_ms, wait_ms))
    return None if meanwhile is None else meanwhile(body if status_of(still.reply) == "queued" else None)


def time_is_over(call: Call, body: Document) -> Answer:
    """The answer for a wait that ended without the job; with a ticket, with the command that goes on from there."""
    ticket: str | None = body.get("ticket")
    kept = f"You were {_place(body)}, and have left the line."
    if ticket is not None:
        kept = f"You are {_place(body)}. The place is kept for {span(TICKET_MS)}."
    message = f"{sentence(body)} {kept}"
    lines = [f"{call.paint.wait('Not yet:')} {message}", *hold_fields(body)]
    if ticket is not None:
        wait = ["--wait", call.values.get("wait") or "5m", "--ticket", ticket]
        line = ["dibs", call.command, *claim_words(call), *wait]
        names = call.values.get("name") or [call.values.get("job")]
        lines.append(f"To continue:  {shell_line(line if call.values.get('staged') else [*line, '--', *names])}")
    # As without a wait. Of several jobs, one that is closed is one that is not available.
    exits = TRY_LATER if "closed" in body and call.command != "claim-all" else NO
    return no(exits, body, "\n".join(lines), code="queued", message=message, quiet=plain(ticket or ""))
