"""owner, list, history: looking changes nothing."""

from __future__ import annotations

from dibs.cli import lookrender
from dibs.cli.answer import Answer, failure, is_failure, no, yes
from dibs.cli.spec import JOB, Command, Option
from dibs.cli.values import count
from dibs.cli.words import plain
from dibs.clock import wall_ms
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX, LIST_PAGE_DEFAULT, LIST_PAGE_MAX
from dibs.wire.codes import DONE, NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.call import Call

    Document = dict[str, Any]


def owner(call: Call) -> Answer:
    reply = call.door().call("inspect", call.values["job"], {})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    status: str = body["status"]
    text = lookrender.status(body, call.paint, wall_ms())
    if status == "held":
        return yes(body, text, quiet=plain(body["owner"]))
    message = text.partition("\n")[0]
    return no(DONE if status == "done" else NO, body, text, code=status, message=message)


def list_(call: Call) -> Answer:
    prefix, after = call.values.get("prefix", ""), call.values.get("after", "")
    wanted = count(call, "limit", LIST_PAGE_MAX)
    locks: list[Document] = []
    while True:
        reply = call.door().claimed(prefix, after, wanted or LIST_PAGE_DEFAULT)
        if is_failure(reply):
            return failure(reply)
        page: Document = reply.body or {}
        locks += page["locks"]
        after = page["next"]
        # Somebody who says how many wants a page; everybody else wants the list.
        if wanted or not after:
            break
    document = {"locks": locks, "total": len(locks), "prefix": prefix, "next": after}
    names = "\n".join(plain(lock["name"]) for lock in locks)
    return yes(document, lookrender.listing(document, call.paint), quiet=names)


def history(call: Call) -> Answer:
    wanted = count(call, "limit", HISTORY_PAGE_MAX) or HISTORY_PAGE_DEFAULT
    reply = call.door().history(call.values["job"], wanted)
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    text = lookrender.history(body, call.paint, wall_ms())
    return yes(body, text, quiet=text if body["events"] else "")


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
        "all jobs that are claimed",
        list_,
        about="In the order of their names. With --quiet only the names, one a line.",
        options=(
            Option("--prefix", "only names that begin with this", value="TEXT"),
            Option("--limit", "a page of this many, instead of all", value="N"),
            Option("--after", "only names that come after this one: where the last page ended", value="NAME"),
        ),
        examples=(
            ("everything", "dibs list"),
            ("of one kind", "dibs list --prefix issue-"),
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
        options=(Option("--limit", f"this many events (default {HISTORY_PAGE_DEFAULT})", value="N"),),
        examples=(("everything that is on record", "dibs history issue-1842"),),
        exits=((0, "the events, of which there may be none"),),
    ),
}
