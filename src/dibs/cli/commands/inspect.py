"""owner, list, history: read-only commands."""

from __future__ import annotations

from dibs.cli.framework.flag_values import count
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, no, yes
from dibs.cli.framework.spec import JOB, Command, Option
from dibs.cli.git.namespace import tree_locks
from dibs.cli.text import inspect as inspect_text
from dibs.cli.text import listing
from dibs.cli.text.width import width_of
from dibs.cli.text.words import instant_ms, natural_key, plain
from dibs.clock import wall_ms
from dibs.core.durations import parse_duration
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX, LIST_PAGE_DEFAULT, LIST_PAGE_MAX
from dibs.core.records import DONE, HELD, PARKED, STATES
from dibs.errors import InvalidInput
from dibs.wire import codes
from dibs.wire.parts import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]


def owner(call: Call) -> Answer:
    reply = call.door().call("inspect", call.values["job"], {})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    status: str = body["status"]
    text = inspect_text.status(body, call.paint, wall_ms())
    if status == "held":
        return yes(body, text, quiet=plain(body["owner"]))
    message = text.partition("\n")[0]
    return no(codes.DONE if status == DONE else codes.NO, body, text, code=status, message=message)


def list_(call: Call) -> Answer:
    prefix, owner = call.values.get("prefix", ""), call.values.get("owner")
    wanted = count(call, "limit", LIST_PAGE_MAX)
    states = _states(call)
    found = _pages(call, prefix, owner, wanted, states)
    if isinstance(found, Answer):
        return found
    locks, after = found
    if not (prefix or wanted or call.values.get("after")):
        locks += [lock for lock in tree_locks(call, states) if owner is None or owner in _owners(lock)]
    if wanted is None:
        locks.sort(key=lambda lock: natural_key(lock["name"]))
    document: Document = {"locks": locks, "total": len(locks), "prefix": prefix, "next": after}
    names = "\n".join(plain(lock["name"]) for lock in locks)
    shown = {**document, "states": states, "owner": owner}
    width = width_of(call.stdout, call.env)
    return yes(document, listing.listing(shown, call.paint, wall_ms(), width), quiet=names)


def _states(call: Call) -> tuple[str, ...]:
    """Which states to list. Parked jobs are listed by default, because they need somebody's attention."""
    if call.values.get("all"):
        return STATES
    chosen = tuple(state for state in (PARKED, DONE) if call.values.get(state))
    return chosen or (HELD, PARKED)


def _pages(
    call: Call, prefix: str, owner: str | None, wanted: int | None, states: tuple[str, ...]
) -> tuple[list[Document], str | None] | Answer:
    """The jobs, and the name after which the next page begins. Without --limit, all pages."""
    after, locks = call.values.get("after", ""), []
    while True:
        reply = call.door().claimed(prefix, after, wanted or LIST_PAGE_DEFAULT, states)
        if is_failure(reply):
            return failure(reply)
        page: Document = reply.body or {}
        locks += [lock for lock in page["locks"] if owner is None or owner in _owners(lock)]
        after = page["next"]
        if wanted and len(locks) >= wanted:
            more = after if len(locks) == wanted else locks[wanted - 1]["name"]
            return locks[:wanted], more
        if not after:
            return locks, after


def _owners(lock: Document) -> set[str | None]:
    """The owners of the job, or its last owner if nobody has it."""
    if lock["status"] == "held":
        return {lock["owner"], *[each["owner"] for each in lock.get("holders", ())]}
    last = lock.get("done") or lock.get("previous") or {}
    return {last.get("owner")}


def history(call: Call) -> Answer:
    since = call.values.get("since")
    since_ms = None if since is None else _since_ms(call, since)
    if call.values.get("follow"):
        from dibs.cli.commands.watch import follow_events

        return follow_events(call, call.values["job"], "", 0 if since_ms is None else wall_ms() - since_ms)
    most = HISTORY_PAGE_DEFAULT if since_ms is None else HISTORY_PAGE_MAX
    wanted = count(call, "limit", HISTORY_PAGE_MAX) or most
    reply = call.door().history(call.values["job"], wanted)
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    if since_ms is not None:
        body["events"] = [event for event in body["events"] if instant_ms(event["at"]) >= since_ms]
    text = inspect_text.history(body, call.paint, wall_ms(), since)
    return yes(body, text, quiet=text if body["events"] else "")


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


COMMANDS = {
    "owner": Command(
        "owner",
        "show who has a job, since when and for how long",
        owner,
        arguments=(JOB,),
        examples=(
            ("who is on it", "dibs owner issue-1842"),
            ("in a script", 'if OWNER=$(dibs owner -q issue-1842); then echo "$OWNER has it"; fi'),
        ),
        exits=((0, "somebody has it"), (1, "nobody has it"), (4, "nobody has it, and it is marked as done")),
    ),
    "list": Command(
        "list",
        "list the jobs that are claimed",
        list_,
        about=(
            "Lists the jobs that are held, and those that are parked and wait for `dibs free`, sorted by "
            "name, with numbers by value: issue-2 before issue-10. With --quiet it prints only the names, one"
            " per line. On a terminal long names are cut; --quiet and --json never cut."
        ),
        options=(
            Option("--prefix", "only names that begin with this", value="TEXT"),
            Option("--owner", "only jobs that this owner has, or had last", value="NAME", filled=True),
            Option("--parked", "only jobs that are parked"),
            Option("--done", "only jobs that are marked as done"),
            Option("--all", "all jobs on record: held, parked, done, delayed, free"),
            Option("--limit", "one page of this many jobs, in plain order", value="N"),
            Option("--after", "only names after this one, where the last page ended", value="NAME"),
        ),
        examples=(
            ("everything", "dibs list"),
            ("of one kind", "dibs list --prefix issue-"),
            ("of one agent", "dibs list --owner agent-7"),
            ("what was finished lately", "dibs list --done"),
            ("for a script", "dibs list --json --prefix issue-"),
        ),
        exits=((0, "the list, which may be empty"),),
    ),
    "history": Command(
        "history",
        "show what happened to a job",
        history,
        about="Prints the newest events, oldest first. Heartbeats without a new checkpoint are not events.",
        arguments=(JOB,),
        options=(
            Option("--limit", f"how many events (default {HISTORY_PAGE_DEFAULT})", value="N"),
            Option("--since", "only events since then: 30m, 2d, or a time in UTC", value="TIME"),
            Option("--follow", "go on with what happens; without --since, only that. See `dibs watch`"),
            Option("--for", "with --follow: stop after this long", value="TIME"),
        ),
        examples=(
            ("everything that is on record", "dibs history issue-1842"),
            ("of the last two hours", "dibs history issue-1842 --since 2h"),
            ("and what comes", "dibs history issue-1842 --since 2h --follow"),
        ),
        exits=((0, "the events; there may be none"),),
    ),
}
