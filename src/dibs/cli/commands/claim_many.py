"""claim-any, claim-all: several jobs in one step."""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.base.errors import InvalidInput
from dibs.cli.commands.claim import ask, claim_document, granted, refused
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.job_names import one_names, settle
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, is_granted, no, refusal_exit, yes
from dibs.cli.framework.spec import ANY, Argument, Command, Option
from dibs.cli.text.claim import field, sentence
from dibs.cli.text.words import plain, table
from dibs.core.limits import ALL_NAMES_MAX, NAME_BYTES_MAX, NAMES_MAX
from dibs.core.names import check_name
from dibs.wire.codes import CODES, NEVER_LIKE_THIS, NO, CodeRow
from dibs.wire.documents import Reply
from dibs.wire.sentences import as_it, several, still_held

# Texts for claims of several jobs. Pure.


def pair(document: Document) -> str:
    """Name and lease id for a script. No name contains a tab."""
    return f"{plain(document['name'])}\t{plain(document['lease_id'])}"


SKIPPED_SHOWN = 5


def skipped(entries: Sequence[Document]) -> list[str]:
    lines = [field("skipped", f"{_name(entry)}: {_why(entry)}") for entry in entries[:SKIPPED_SHOWN]]
    more = len(entries) - len(lines)
    return [*lines, field("skipped", f"{more} more")] if more else lines


ALL_DONE = "All of these jobs are done."
NOT_ANY = "None of these jobs is available"
NOT_SO_MANY = "Nothing was claimed: {} jobs were asked for, and {} of these can be claimed"
NOT_ALL = "Nothing was claimed, because not all of these jobs are available"


def _name(entry: Document) -> str:
    return plain(entry.get("name") or "?")


def _why(entry: Document) -> str:
    return sentence(as_it(entry))  # the table has the name in its first column


def claim_any(call: Call) -> Answer:
    document: Document = {"names": _names(call, NAMES_MAX)}
    flags.put(document, "count", flags.number_for(call, "count", "count"))
    document |= claim_document(call)
    reply = ask(call, "acquire-any", "", document)
    if not is_granted(reply):
        return refused_any(call, reply, document)
    if "leases" in (reply.body or {}):
        return _granted_all(call, reply, document)
    return granted_any(call, reply.body or {}, document)


def granted_any(call: Call, body: Document, document: Document, title: str = "") -> Answer:
    """The answer for one of several jobs. `title` is that of its issue."""
    more = [field("title", title)] if title else []
    more += skipped(body.get("skipped", ()))
    return yes(body, granted(call, body, document, more), quiet=pair(body))


def refused_any(call: Call, reply: Reply, document: Document) -> Answer:
    free = (reply.body or {}).get("free")
    some = f"only {free}" if free else "none"
    not_claimed = NOT_ANY if free is None else NOT_SO_MANY.format(document["count"], some)
    return _refused(call, reply, document, not_claimed, document.get("count", 1))


def claim_all(call: Call) -> Answer:
    return claim_names(call, _names(call, ALL_NAMES_MAX))[0]


def claim_names(call: Call, names: list[str]) -> tuple[Answer, Document]:
    """Claim all of `names` or none. Returns the answer and the request document."""
    document = {"names": names, **claim_document(call)}
    reply = ask(call, "acquire-all", "", document)
    if not is_granted(reply):
        return _refused(call, reply, document, NOT_ALL, len(names)), document
    return _granted_all(call, reply, document), document


def _granted_all(call: Call, reply: Reply, document: Document) -> Answer:
    body: Document = reply.body or {}
    return yes(body, granted(call, body, document), quiet="\n".join(pair(lease) for lease in body["leases"]))


def _refused(call: Call, reply: Reply, asked: Document, not_claimed: str, needed: int) -> Answer:
    body: Document = reply.body or {}
    if "refused" not in body:
        return refused(call, reply, asked)
    reasons = [f"  {line}" for line in table([(_name(entry), _why(entry)) for entry in body["refused"]])]
    status: str = body["status"]
    reasons += [plain(left.strip())] if (left := still_held(body, proof=True)) else []
    lead, message = call.paint.wait(f"{not_claimed}."), plain(f"{not_claimed}: {several(body['refused'])}.")
    if status == "done":
        lead, message = call.paint.good(ALL_DONE), ALL_DONE
    text, exits = "\n".join([lead, *reasons]), refusal_exit(reply) or NO
    if (never := _never(body, asked, needed)) is not None:
        body = {key: value for key, value in body.items() if key != "retry_after_ms"} | {"status": never.word}
        status, exits = never.word, never.exit
    return no(exits, body, text, code=status, message=message)


def _never(body: Document, asked: Document, needed: int) -> CodeRow | None:
    """The row of a refusal that no wait changes, as of units of jobs that are no pool: that of a claim of one job.
    None if so many jobs are left that the claim can succeed later."""
    rows = [CODES[each["code"]] for each in body["refused"] if each.get("code") in CODES]
    never = [row for row in rows if row.kind == NEVER_LIKE_THIS]
    can_succeed = len(asked.get("names", ())) - len(never) >= needed
    return never[0] if never and body["status"] == "held" and not can_succeed else None


def _names(call: Call, most: int) -> list[str]:
    """The names given as arguments, or on standard input, one per line."""
    given: list[str] = call.values["name"]
    if given and given != ["-"]:
        return [check_name(name) for name in given]
    stdin = call.stdin
    if stdin is None or (not given and stdin.isatty()):
        raise UsageError(f"{call.command} needs names: as arguments, or on standard input, one per line.")
    lines = call.read_input(f"Give 1 to {most} names", (most + 1) * (NAME_BYTES_MAX + 2)).splitlines()
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InvalidInput("Standard input holds no names: it was empty.")
    names = one_names(call, names)
    settle(call, names)
    call.values = {**call.values, "name": names}  # a command that goes on with this claim has them as arguments
    return [check_name(name) for name in names]


COMMANDS = {
    "claim-any": Command(
        claim_any,
        Argument("NAME", "jobs; without names, or with -, they are read from stdin, one per line", takes=ANY),
        *flags.CLAIM_OWNER,
        Option("--count N", field="acquire-any.count"),
        Option("-w, --wait TIME", "try again until a job is free, for up to this long"),
        flags.NO_WAIT,
        *flags.CLAIM_TERMS,
        *flags.CLAIM_KEEP,
        about=(
            "Tries the names in the order given, in one atomic step, and prints which names it skipped and "
            "why. With --quiet it prints the name, a tab, and the lease id. Jobs that the session holds are "
            "skipped, so a second call claims the next one. With --wait it takes no place in line: others "
            "who wait in line for one of the jobs go first. It does not wait for jobs that are done or "
            "parked."
        ),
        examples=(
            ("dibs claim-any issue-1 issue-2 issue-3", "one of three"),
            ("dibs claim-any lane-1 lane-2 lane-3 --count 2", "two of three lanes, or none"),
            ("gh issue list --json number -q .[].number | dibs claim-any", "the oldest issue that nobody works on"),
            ("dibs claim-any issue-1 issue-2 --wait 10m --keep", "the next one that comes free"),
            (r"IFS=$'\t' read -r JOB LEASE < <(dibs claim-any -q issue-1 issue-2) || exit 0", "in a script"),
        ),
        exits=(
            (0, "one of the jobs is yours, or --count of them"),
            (1, "none of the jobs is available, or became available during the wait; with --count, too few"),
            flags.ALL_EXITS[0],
            (4, "all of the jobs are done"),
            (64, f"no names, a name twice, or more than {NAMES_MAX} names"),
        ),
    ),
    "claim-all": Command(
        claim_all,
        Argument("NAME", "jobs; without names, or with -, they are read from stdin", takes=ANY),
        *flags.CLAIM_OWNER,
        *flags.CLAIM_WAIT,
        *flags.CLAIM_TERMS,
        *flags.CLAIM_KEEP,
        about=(
            "Claims all jobs in one atomic step. With --wait it waits in all their lines and holds nothing "
            "until all are free at the same time, so two callers that want the same jobs cannot block each "
            "other. With --quiet it prints the name, a tab, and the lease id of each job."
        ),
        examples=(
            ("dibs claim-all path:src/a.py path:src/b.py", "two files at once"),
            ("dibs claim-all staging database --wait 10m", "when all are free"),
            ("dibs claim-all staging database --keep", "without heartbeats"),
        ),
        exits=(
            (0, "all of the jobs are yours"),
            (1, "not all of the jobs are available; nothing was claimed"),
            *flags.ALL_EXITS,
            (4, "all of the jobs are done"),
            *flags.SUPERSEDED,
            (64, f"no names, a name twice, names that overlap, or more than {ALL_NAMES_MAX} names"),
        ),
    ),
}
