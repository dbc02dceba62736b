"""list, top: the jobs that are claimed, once or again and again."""

from __future__ import annotations

from time import sleep

from dibs.base.cheap import Any, Callable
from dibs.base.checkout import current_folder, root_around
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import RequestFailed
from dibs.base.plugins import PARTS, plugin
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count, given_ms
from dibs.cli.framework.job_names import tree_locks
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, body_of, failure, yes
from dibs.cli.framework.spec import MAYBE, WIDE, Argument, Command, Option
from dibs.cli.signals import StopSignals
from dibs.cli.text import listing
from dibs.cli.text.listing import heads_of, rows_of
from dibs.cli.text.words import natural_key, plain, table
from dibs.client.flow import all_pages, drive
from dibs.client.transport import Ask
from dibs.core.limits import LIST_PAGE_MAX
from dibs.core.records import DONE, HELD, PARKED, STATES
from dibs.wire.codes import NOT_NOW, YES, kind_of

ALL = ("all",)
LISTED = (HELD, PARKED)


def list_(call: Call) -> Answer:
    return watch_list(call) if call.values.get("watch") else shown(call, listed(call))


def shown(call: Call, found: Document) -> Answer:
    names = "\n".join(plain(lock["name"]) for lock in listing.one_row_each(found["locks"]))
    document = {**found, "states": states_of(call), "owner": call.values.get("owner")}
    is_wide = bool(call.values.get("wide"))
    return yes(found, listing.listing(document, call.paint, wall_ms(), call.width, is_wide=is_wide), quiet=names)


def listed(call: Call) -> Document:
    """The jobs that the flags ask for, as one document. Raises RequestFailed."""
    prefix, owner, pattern = call.values.get("prefix", ""), call.values.get("owner"), call.values.get("pattern")
    is_like = None
    if pattern is not None:
        if prefix:
            raise UsageError("Give PATTERN or --prefix, not both.")
        prefix, is_like = like(pattern)
    wanted = count(call, "limit", LIST_PAGE_MAX)
    states = states_of(call)

    def kept(lock: Document) -> bool:
        return (owner is None or owner in _owners(lock)) and (is_like is None or is_like(lock["name"]))

    pages = all_pages(
        prefix,
        states,
        after=call.values.get("after", ""),
        most=wanted,
        keep=kept if owner is not None or is_like is not None else None,
    )
    body = body_of(drive(call.transport(), pages))
    locks: list[Document] = body["locks"]
    if not (prefix or wanted or call.values.get("after")):
        locks += [lock for lock in tree_locks(call, states) if kept(lock)]
    if wanted is None:
        locks.sort(key=lambda lock: natural_key(lock["name"]))
    asked = {"prefix": prefix} if is_like is None else {"prefix": prefix, "pattern": pattern}
    more = {"closures": body["closures"]} if "closures" in body else {}
    is_all = not (prefix or wanted or owner or call.values.get("after")) and states in (ALL, LISTED)
    if is_all and not call.values.get("watch") and (left := _unfinished(call)):
        more["unfinished"] = left
    return {"locks": locks, "total": len(locks), **asked, "next": body["next"], **more}


def _unfinished(call: Call) -> list[Document]:
    """The uncommitted changes of coding agents that have ended, in the checkout around."""
    folder = current_folder()
    root = None if folder is None or call.said("namespace") is not None else root_around(call.env, folder)
    work = plugin(PARTS, "unfinished-work") if root else None
    found: list[Document] = [] if work is None else work.left_in(call, root)
    return found


def like(pattern: str) -> tuple[str, Callable[[str], bool] | None]:
    """The prefix of all names that match a pattern, and a test for one name: `*` is any text, `?` one character.
    Brackets stand for themselves, because names of files have them. Without a test, all names with the prefix match."""
    begin = pattern[: min([at for at in map(pattern.find, "*?") if at >= 0], default=len(pattern))]
    if begin == pattern.removesuffix("*"):
        return begin, None
    import re

    whole = re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
    return begin, lambda name: whole.fullmatch(name) is not None


def states_of(call: Call) -> tuple[str, ...]:
    """The states to list. Parked jobs are listed by default, because they need somebody's attention. All are asked for
    by that word: a server of another version may have other states."""
    if call.values.get("all"):
        return ALL
    return tuple(state for state in (PARKED, DONE) if call.values.get(state)) or LISTED


def _owners(lock: Document) -> set[str | None]:
    if lock["status"] == "held":
        return {lock["owner"], *[each["owner"] for each in lock.get("holders", ())]}
    return {(lock.get("done") or lock.get("previous") or {}).get("owner")}


PATTERN = Argument("PATTERN", "only names that begin with this; with * or ? in it, that match it", takes=MAYBE)
CHOICE = (
    Option("--prefix TEXT", "only names that begin with this"),
    Option("--owner NAME", "only jobs that this owner has, or had last", filled=True),
    Option("--parked", "only jobs that are parked"),
    Option("--done", "only jobs that are marked as done"),
    Option("--all", f"all jobs on record: {', '.join(STATES)}"),
)


# top: the board, live.

REFRESH_MS_MIN = 200
REFRESH_MS_MAX = 3600_000


def top(call: Call) -> Answer:
    from dibs.cli.live import ORDERS, REFRESH_MS, Board, BoardView, is_live

    order = call.values.get("sort") or "name"
    refresh_ms = given_ms(call, "interval")
    if refresh_ms is not None and not REFRESH_MS_MIN <= refresh_ms <= REFRESH_MS_MAX:
        raise UsageError("--interval is a time from 200ms to 1h.")
    if order not in ORDERS:
        raise UsageError(f"--sort is one of {', '.join(ORDERS)}.")
    view = BoardView(order)
    if is_live(call) and not call.values.get("once"):
        return Board(call, view, lambda: listed(call), REFRESH_MS if refresh_ms is None else refresh_ms).show()
    found = listed(call)
    view.take(found["locks"])
    return shown(call, {**found, "locks": view.locks})


COMMANDS = {
    "list": Command(
        list_,
        PATTERN,
        *CHOICE,
        WIDE,
        Option("--limit N", "one page of this many jobs, in plain order"),
        Option("--after NAME", "only names after this one, where the last page ended"),
        Option("--watch", "go on, and show what changes"),
        Option("--for TIME", "with --watch: stop after this long"),
        about=(
            "Lists the jobs that are held or parked, by name, with numbers by value: issue-2 before "
            "issue-10. A narrow terminal cuts long names and leaves columns out. With --watch a terminal "
            "shows the board of `dibs top`; in a pipe each job that has changed gets a new line, with "
            "--json a document. A job that leaves the list gets one more, with its new state: free, done, "
            "closed. `dibs watch` shows every event."
        ),
        examples=(
            ("dibs list", "everything"),
            ("dibs list issue-", "of one kind"),
            ("dibs list '*-deploy'", "by their end"),
            ("dibs list --owner agent-7", "of one agent"),
            ("dibs list --done", "what was finished lately"),
            ("dibs list issue- -o json", "for a script"),
            ("dibs list --watch", "live"),
        ),
        exits=((0, "the list, which may be empty; with --watch, --for is over, q was pressed or nobody reads"),),
    ),
    "top": Command(
        top,
        PATTERN,
        *CHOICE,
        Option("--sort ORDER", "name (default), owner, left, age, heard, try or wait"),
        Option("--interval TIME", "how often to look (default 2s)"),
        Option("--once", "print one snapshot and end"),
        Option("--for TIME", "stop after this long"),
        about=(
            "Shows the claimed jobs live. Claims that are about to end are yellow, then red. Keys: q ends "
            "it, / filters, n o l a h t w sort, r reverses, arrows and pages scroll. In a pipe, and with "
            "--once, --quiet or --json, it prints what `dibs list` prints, and ends."
        ),
        examples=(
            ("dibs top", "the board"),
            ("dibs top issue- --sort left", "what ends next, of one kind"),
            ("dibs top --json", "for a program"),
        ),
        exits=((0, "q or Ctrl-C was pressed, --for is over, or the snapshot was printed"),),
    ),
}


# `dibs list --watch`: the board on a terminal; in a pipe a line for each change.

LOOK_MS = 1_000
LOOKS_AT_ONCE = 100
_SEEN = ("status", "owner", "fencing_token", "checkpoint", "metadata", "holders", "slots", "also")


def watch_list(call: Call) -> Answer:
    from dibs.cli.live import REFRESH_MS, Board, BoardView, is_live

    if is_live(call):
        return Board(call, BoardView(), lambda: listed(call), REFRESH_MS).show()
    before: dict[tuple[str, str], Document] = {}

    def say(found: Document) -> bool:
        nonlocal before
        locks = found["locks"] if call.values.get("json") else listing.one_row_each(found["locks"])
        now = {(lock.get("namespace", ""), lock["name"]): lock for lock in locks}
        changed = _changes(before, now)
        gone = {key: lock for key, lock in before.items() if key not in now}
        stands = _as_they_stand(call, gone)
        # If the server went away in between, the next look asks again.
        before = {**now, **{key: lock for key, lock in gone.items() if key not in stands}}
        return _print(call, [*changed, *stands.values()])

    return look_again(call, lambda: listed(call), say)


def look_again(call: Call, look: Callable[[], Document], say: Callable[[Document], bool]) -> Answer:
    """Look whenever there may be news, until --for is over or `say` tells that nobody reads what it says."""
    from dibs.cli.live import SHARE

    for_ms = given_ms(call, "for")
    until_ms = None if for_ms is None else steady_ms() + for_ms
    has_looked = False
    with StopSignals():
        while True:
            began_ms = steady_ms()
            try:
                found = look()
            except RequestFailed as error:
                if not has_looked or kind_of(error.reply) != NOT_NOW:
                    raise
                call.complain_away(failure(error.reply).text, "Watching")
            else:
                has_looked = True
                call.complain_away(None, "")
                if not say(found):
                    break
            pause_ms = max(LOOK_MS, SHARE * (steady_ms() - began_ms))
            left_ms = pause_ms if until_ms is None else min(pause_ms, until_ms - steady_ms())
            if left_ms <= 0:
                break
            call.transport().news(left_ms)
            sleep(max(0, began_ms + LOOK_MS // 4 - steady_ms()) / 1000)  # a busy store has news all the time
    return Answer(YES, {}, "", is_said=True)


def _changes(before: dict[Any, Document], now: dict[Any, Document]) -> list[Document]:
    """Jobs that are new or have changed."""
    return [lock for key, lock in now.items() if key not in before or _seen(before[key]) != _seen(lock)]


def _as_they_stand(call: Call, gone: dict[tuple[str, str], Document]) -> dict[tuple[str, str], Document]:
    """Jobs that have left the list, as they are now: done, closed, another's, or free. Without what cannot be asked."""
    found, keys = {}, list(gone)
    for start in range(0, len(keys), LOOKS_AT_ONCE):
        some = keys[start : start + LOOKS_AT_ONCE]
        replies = call.transport().ask_all([Ask("inspect", gone[key]["name"]) for key in some])
        for key, reply in zip(some, replies, strict=True):
            if reply.status < 300 and reply.body:
                where = {"namespace": key[0]} if key[0] else {}
                found[key] = {**where, **reply.body}
    return found


def _seen(lock: Document) -> list[Any]:
    """The parts of a job that count as a change. Heartbeats alone do not."""
    return [
        [each["owner"] for each in lock["holders"]] if field == "holders" and "holders" in lock else lock.get(field)
        for field in _SEEN
    ]


def _print(call: Call, locks: list[Document]) -> bool:
    """False if nobody reads it."""
    if not locks:
        return True
    heads = ("JOB", "STATE", *[head for head in heads_of(locks) if head not in ("JOB", "STATE")])
    _, *lines = table(rows_of(locks, heads, wall_ms()))
    if call.values.get("quiet"):
        lines = [plain(lock["name"]) for lock in locks]
    return call.say(lines, locks)
