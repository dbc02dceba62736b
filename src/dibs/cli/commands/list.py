"""list: the jobs that are claimed, once or again and again. `dibs top` lists the same."""

from __future__ import annotations

from dibs.base.clock import wall_ms
from dibs.cli.framework.flag_values import count
from dibs.cli.framework.job_names import tree_locks
from dibs.cli.framework.result import Answer, failure, is_failure, yes
from dibs.cli.framework.spec import Command, Option
from dibs.cli.text import listing
from dibs.cli.text.words import natural_key, plain, width_of
from dibs.client.queueing import all_pages, drive
from dibs.core.limits import LIST_PAGE_MAX
from dibs.core.records import DONE, HELD, PARKED, STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]


def list_(call: Call) -> Answer:
    if call.values.get("watch"):
        from dibs.cli.live.list_watch import watch_list

        return watch_list(call, lambda: listed(call))
    found = listed(call)
    if isinstance(found, Answer):
        return found
    return shown(call, found)


def shown(call: Call, found: Document) -> Answer:
    """Answer with the jobs that were found."""
    names = "\n".join(plain(lock["name"]) for lock in found["locks"])
    document = {**found, "states": states_of(call), "owner": call.values.get("owner")}
    width = width_of(call.stdout, call.env)
    return yes(found, listing.listing(document, call.paint, wall_ms(), width), quiet=names)


def listed(call: Call) -> Document | Answer:
    """The jobs that the flags ask for, as one document."""
    prefix, owner = call.values.get("prefix", ""), call.values.get("owner")
    wanted = count(call, "limit", LIST_PAGE_MAX)
    states = states_of(call)
    pages = all_pages(
        prefix,
        states,
        after=call.values.get("after", ""),
        most=wanted,
        keep=None if owner is None else lambda lock: owner in _owners(lock),
    )
    reply = drive(call.door(), pages)
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    locks: list[Document] = body["locks"]
    if not (prefix or wanted or call.values.get("after")):
        locks += [lock for lock in tree_locks(call, states) if owner is None or owner in _owners(lock)]
    if wanted is None:
        locks.sort(key=lambda lock: natural_key(lock["name"]))
    return {"locks": locks, "total": len(locks), "prefix": prefix, "next": body["next"]}


def states_of(call: Call) -> tuple[str, ...]:
    """Return which states to list. Parked jobs are listed by default, because they need somebody's attention."""
    if call.values.get("all"):
        return STATES
    chosen = tuple(state for state in (PARKED, DONE) if call.values.get(state))
    return chosen or (HELD, PARKED)


def _owners(lock: Document) -> set[str | None]:
    """The owners of the job, or its last owner if nobody has it."""
    if lock["status"] == "held":
        return {lock["owner"], *[each["owner"] for each in lock.get("holders", ())]}
    last = lock.get("done") or lock.get("previous") or {}
    return {last.get("owner")}


CHOICE = (
    Option("--prefix", "only names that begin with this", value="TEXT"),
    Option("--owner", "only jobs that this owner has, or had last", value="NAME", filled=True),
    Option("--parked", "only jobs that are parked"),
    Option("--done", "only jobs that are marked as done"),
    Option("--all", "all jobs on record: held, parked, done, delayed, free"),
)

COMMANDS = {
    "list": Command(
        "list",
        list_,
        about=(
            "Lists the jobs that are held, and those that are parked and wait for `dibs free`, sorted by "
            "name, with numbers by value: issue-2 before issue-10. With --quiet it prints only the names, one"
            " per line. On a terminal long names are cut; --quiet and --json never cut. With --watch a terminal "
            "shows the board of `dibs top`. In a pipe each job whose state, owner or checkpoint has "
            "changed gets a new line; with --json one document, whose `status` is free if the job is no longer in "
            "the list. A change that is undone within a second or two is not shown: `dibs watch` shows every event."
        ),
        options=(
            *CHOICE,
            Option("--limit", "one page of this many jobs, in plain order", value="N"),
            Option("--after", "only names after this one, where the last page ended", value="NAME"),
            Option("--watch", "go on, and show what changes"),
            Option("--for", "with --watch: stop after this long", value="TIME"),
        ),
        examples=(
            ("everything", "dibs list"),
            ("of one kind", "dibs list --prefix issue-"),
            ("of one agent", "dibs list --owner agent-7"),
            ("what was finished lately", "dibs list --done"),
            ("for a script", "dibs list --json --prefix issue-"),
            ("live", "dibs list --watch"),
        ),
        exits=((0, "the list, which may be empty; with --watch, --for is over, q was pressed or nobody reads"),),
    ),
}
