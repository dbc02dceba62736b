"""claim-any, claim-all: several jobs in one step."""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.cli.commands.claim import ask, granted, keep, refused, watched_for
from dibs.cli.framework.flags import (
    CLAIM_EXITS,
    CLAIM_KEEP,
    CLAIM_OWNER,
    CLAIM_TERMS,
    CLAIM_WAIT,
    NO_WAIT,
    claim_document,
    is_actor,
    next_words,
)
from dibs.cli.framework.job_names import one_names, settle
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import is_failure, no, refusal_exit, yes
from dibs.cli.framework.spec import ANY, Argument, Command, Option
from dibs.cli.text import claim as claim_text
from dibs.cli.text.claim import field, lasting, sentence
from dibs.cli.text.words import job_command, plain, span, table
from dibs.core.limits import ALL_NAMES_MAX, NAME_BYTES_MAX, NAMES_MAX
from dibs.wire.codes import DONE, NO
from dibs.wire.sentences import several

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.cli.framework.context import Call, Document
    from dibs.cli.framework.result import Answer
    from dibs.cli.supervise.keeper import WatchedProcess
    from dibs.cli.text.colour import Paint
    from dibs.wire.documents import Reply


# Texts for claims of several jobs. Pure.


def pair(document: Document) -> str:
    """Name and lease id for a script. No name contains a tab."""
    return f"{plain(document['name'])}\t{plain(document['lease_id'])}"


def acquired_all(
    document: Document,
    paint: Paint,
    after: list[str],
    *,
    timed: bool,
    in_session: bool,
    by_actor: bool = False,
    kept_for: int | None = None,
) -> str:
    """All jobs were claimed. The parameters are those of `claim.acquired`."""
    leases = document["leases"]
    by_session = in_session and not timed
    how_long = lasting(document, by_session=by_session, by_actor=by_actor)
    what = f"all {len(leases)}" if len(leases) > 1 else "it"
    lines = [f"{paint.good('Claimed')} {what} {how_long}, as {plain(document['owner'])}."]
    rows = [("JOB", "TOKEN") if in_session else ("JOB", "TOKEN", "LEASE")]
    for lease in leases:
        row = (plain(lease["name"]), str(lease["fencing_token"]))
        rows.append(row if in_session else (*row, lease["lease_id"]))
    head, *more = table(rows)
    lines += [paint.faint(f"  {head}"), *(f"  {line}" for line in more)]
    proof = [] if in_session else ["--lease", document["lease_id"]]
    words = [lease["name"] for lease in leases], [*after, *proof]
    if kept_for is not None:
        lines.append(field("kept for", f"process {kept_for}, until it ends"))
    if by_session or kept_for is not None:
        lines.append(f"When they are done:  {job_command(['release'], *words)}")
    else:
        within = span(document["renew_after_ms"])
        lines.append(f"Send a heartbeat within {within}:  {job_command(['heartbeat'], *words)}")
    return "\n".join(lines)


SKIPPED_SHOWN = 5


def skipped(entries: Sequence[Document]) -> list[str]:
    """The names that claim-any skipped, and why."""
    lines = [field("skipped", f"{plain(entry.get('name') or '?')}: {_why(entry)}") for entry in entries[:SKIPPED_SHOWN]]
    more = len(entries) - len(lines)
    return [*lines, field("skipped", f"{more} more")] if more else lines


ALL_DONE = "All of these jobs are done."


def all_done(document: Document, paint: Paint) -> str:
    rows = [(plain(entry.get("name") or "?"), _why(entry)) for entry in document["refused"]]
    return "\n".join([paint.good(ALL_DONE), *(f"  {line}" for line in table(rows))])


_NOT_CLAIMED = {
    "free": "None of these jobs is available",
    "all": "Nothing was claimed, because not all of these jobs are available",
}


def refused_sentence(document: Document, wanted: str) -> str:
    """`wanted` is "free" (any of them) or "all"."""
    return plain(f"{_NOT_CLAIMED[wanted]}: {several(document['refused'])}.")


def refused_text(document: Document, paint: Paint, wanted: str) -> str:
    """The refused jobs, each with the reason."""
    rows = [(plain(entry.get("name") or "?"), _why(entry)) for entry in document["refused"]]
    return "\n".join([paint.wait(_NOT_CLAIMED[wanted] + "."), *(f"  {line}" for line in table(rows))])


def _why(entry: Document) -> str:
    return sentence({**entry, "name": "it"})  # the table has the name in its first column


def claim_any(call: Call) -> Answer:
    document = {"names": _names(call, NAMES_MAX), **claim_document(call)}
    watched = watched_for(call)
    reply = ask(call, "acquire-any", "", document)
    if _got_nothing(reply):
        return refused_any(call, reply, document)
    return granted_any(call, reply.body or {}, document, watched)


def granted_any(
    call: Call, body: Document, document: Document, watched: WatchedProcess | None, title: str = ""
) -> Answer:
    """The answer for one of several jobs. `title` is that of its issue."""
    more = [claim_text.field("title", title)] if title else []
    more += skipped(body.get("skipped", ()))
    return yes(body, granted(call, body, document, watched, more), quiet=pair(body))


def refused_any(call: Call, reply: Reply, document: Document) -> Answer:
    return _refused(call, reply, document, "free")


def claim_all(call: Call) -> Answer:
    return claim_names(call, _names(call, ALL_NAMES_MAX))[0]


def claim_names(call: Call, names: list[str]) -> tuple[Answer, Document]:
    """Claim all of `names` or none. Returns the answer and the request document."""
    document = {"names": names, **claim_document(call)}
    watched = watched_for(call)
    reply = ask(call, "acquire-all", "", document)
    if _got_nothing(reply):
        return _refused(call, reply, document, "all"), document
    body: Document = reply.body or {}
    keep(call, body, names, document, watched)
    timed, in_session = "ttl_seconds" in document, "session_id" in document
    text = acquired_all(
        body,
        call.paint,
        next_words(call),
        timed=timed,
        in_session=in_session,
        by_actor=is_actor(call),
        kept_for=body.get("kept_for"),
    )
    return yes(body, text, quiet="\n".join(pair(lease) for lease in body["leases"])), document


def _got_nothing(reply: Reply) -> bool:
    return refusal_exit(reply) is not None or is_failure(reply)


def _refused(call: Call, reply: Reply, asked: Document, wanted: str) -> Answer:
    body: Document = reply.body or {}
    if "refused" not in body:
        return refused(call, reply, asked["request_key"])
    done = [entry for entry in body["refused"] if entry["status"] == "done"]
    if len(done) == len(asked["names"]):  # all jobs are done
        text = all_done(body, call.paint)
        return no(DONE, body, text, code="done", message=ALL_DONE)
    message = refused_sentence(body, wanted)
    text = refused_text(body, call.paint, wanted)
    return no(NO, body, text, code="held", message=message)


def _names(call: Call, most: int) -> list[str]:
    """The names given as arguments, or on standard input, one per line."""
    given: list[str] = call.values["name"]
    if given and given != ["-"]:
        return given
    stdin = call.stdin
    if stdin is None or (not given and stdin.isatty()):
        raise UsageError(f"{call.command} needs names: as arguments, or on standard input, one per line.", call.command)
    bytes_max = (most + 1) * (NAME_BYTES_MAX + 2)
    content = stdin.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise InvalidInput(f"Give 1 to {most} names; standard input is longer than they can be.")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidInput("Standard input is not UTF-8 text.") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InvalidInput("Standard input holds no names: it was empty.")
    names = one_names(call, names)
    settle(call, names)
    return names


_WAIT_ANY = Option("--wait", "try again until a job is free, for up to this long", value="TIME", short="-w")
COMMANDS = {
    "claim-any": Command(
        "claim-any",
        claim_any,
        about=(
            "Tries the names in the order given, in one atomic step, and prints which names it skipped and "
            "why. With --quiet it prints the name, a tab, and the lease id. Jobs that the session holds are "
            "skipped, so a second call claims the next one. With --wait it takes no place in line: others who"
            " wait in line for one of the jobs go first. It does not wait for jobs that are done or parked."
        ),
        arguments=(
            Argument("NAME", "jobs; without names, or with -, they are read from stdin, one per line", takes=ANY),
        ),
        options=(*CLAIM_OWNER, _WAIT_ANY, NO_WAIT, *CLAIM_TERMS, *CLAIM_KEEP),
        examples=(
            ("one of three", "dibs claim-any issue-1 issue-2 issue-3"),
            (
                "the oldest issue that nobody works on",
                "gh issue list --json number -q .[].number | dibs claim-any",
            ),
            ("the next one that comes free", "dibs claim-any issue-1 issue-2 --wait 10m --keep"),
            ("in a script", "IFS=$'\\t' read -r JOB LEASE < <(dibs claim-any -q issue-1 issue-2) || exit 0"),
        ),
        exits=(
            (0, "one of the jobs is yours"),
            (1, "none of the jobs is available, or became available during the wait"),
            (2, "the request key or the session has ended"),
            (4, "all of the jobs are done"),
            (64, f"no names, a name twice, or more than {NAMES_MAX} names"),
        ),
    ),
    "claim-all": Command(
        "claim-all",
        claim_all,
        about=(
            "Claims all jobs in one atomic step. With --wait it waits in all their lines and holds nothing "
            "until all are free at the same time, so two callers that want the same jobs cannot block each "
            "other. With --quiet it prints the name, a tab, and the lease id of each job."
        ),
        arguments=(Argument("NAME", "jobs; without names, or with -, they are read from stdin", takes=ANY),),
        options=(*CLAIM_OWNER, *CLAIM_WAIT, *CLAIM_TERMS, *CLAIM_KEEP),
        examples=(
            ("two files at once", "dibs claim-all path:src/a.py path:src/b.py"),
            ("when all are free", "dibs claim-all staging database --wait 10m"),
            ("without heartbeats", "dibs claim-all staging database --keep"),
        ),
        exits=(
            (0, "all of the jobs are yours"),
            (1, "not all of the jobs are available; nothing was claimed"),
            *CLAIM_EXITS[:2],
            (4, "all of the jobs are done"),
            (64, f"no names, a name twice, names that overlap, or more than {ALL_NAMES_MAX} names"),
        ),
    ),
}
