"""owner, list, history: looking changes nothing."""

from __future__ import annotations

from dibs.cli.framework.flags import count
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
    """Which jobs are wanted. What is parked needs somebody's attention, so that it is shown unless told otherwise."""
    if call.values.get("all"):
        return STATES
    chosen = tuple(state for state in (PARKED, DONE) if call.values.get(state))
    return chosen or (HELD, PARKED)


def _pages(
    call: Call, prefix: str, owner: str | None, wanted: int | None, states: tuple[str, ...]
) -> tuple[list[Document], str | None] | Answer:
    """The jobs, and after which name the next page begins. Who says how many wants a page; all others the list."""
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
    """Who has the job; of one that nobody has, who had it last."""
    if lock["status"] == "held":
        return {lock["owner"], *[each["owner"] for each in lock.get("holders", ())]}
    last = lock.get("done") or lock.get("previous") or {}
    return {last.get("owner")}


def history(call: Call) -> Answer:
    since = call.values.get("since")
    since_ms = None if since is None else _since_ms(call, since)
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
    """A length of time before now, or a moment as history prints it."""
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
            f"--since is a time such as 30m or 2d, or a moment such as 2026-11-15T16:00 in UTC, not {text!a}.",
            call.command,
        ) from None


COMMANDS = {
    "owner": Command(
        "owner",
        "who has a job, since when, for how long still",
        owner,
        arguments=(JOB,),
        examples=(
            ("who is on it", "dibs owner issue-1842"),
            ("in a script", 'if OWNER=$(dibs owner -q issue-1842); then echo "$OWNER has it"; fi'),
        ),
        exits=((0, "somebody has it"), (1, "nobody has it"), (4, "nobody has it, and it counts as done")),
    ),
    "list": Command(
        "list",
        "list the jobs that are claimed",
        list_,
        about=(
            "Jobs that are held, and jobs that are parked and wait for `dibs free`. In the order of their names, and "
            "numbers in them by value: issue-2 before issue-10. With --quiet only the names, one a line. On a terminal "
            "long names are cut to fit; --quiet and --json never cut."
        ),
        options=(
            Option("--prefix", "only names that begin with this", value="TEXT"),
            Option("--owner", "only what this owner has, or had last", value="NAME", filled=True),
            Option("--parked", "only jobs that are parked"),
            Option("--done", "only jobs that are marked as done"),
            Option("--all", "every job on record: held, parked, done, resting, free"),
            Option("--limit", "a page of this many, instead of all, in plain order", value="N"),
            Option("--after", "only names that come after this one: where the last page ended", value="NAME"),
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
        "what happened to a job",
        history,
        about="The newest events, oldest first. Heartbeats without news are not events.",
        arguments=(JOB,),
        options=(
            Option("--limit", f"this many events (default {HISTORY_PAGE_DEFAULT})", value="N"),
            Option("--since", "only events since then: 30m, 2d, or a moment in UTC", value="TIME"),
        ),
        examples=(
            ("everything that is on record", "dibs history issue-1842"),
            ("of the last two hours", "dibs history issue-1842 --since 2h"),
        ),
        exits=((0, "the events, of which there may be none"),),
    ),
}
