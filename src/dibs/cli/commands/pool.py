"""pool set, list, remove: jobs whose slots an operator sets."""

from __future__ import annotations

from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import count
from dibs.cli.framework.job_names import each_job
from dibs.cli.framework.result import Answer, body_of, yes
from dibs.cli.framework.spec import JOBS, MAYBE, Argument, Command, Option
from dibs.cli.text.listing import sheet
from dibs.cli.text.words import plain
from dibs.client.queueing import all_pages, drive
from dibs.core.limits import SLOTS_MAX


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def _set(call: Call, body: Document) -> Answer:
    name, slots, was, taken = plain(body["name"]), body["slots"], body["was"], body["slots_taken"]
    before = "" if was in (None, slots) else f" It had {_slots(was)}." if was else " It was paused."
    lines = [f"{call.paint.good('Set:')} {name} is a pool of {_slots(slots)}.{before}"]
    if not slots:
        lines = [f"{call.paint.wait('Paused:')} nobody new gets {name}; the line keeps its order.{before}"]
    if taken > slots:
        lines.append(f"Owners keep what they have: {_slots(taken)} until they leave.")
    return yes(body, "\n".join(lines))


def _removed(call: Call, body: Document) -> Answer:
    name = plain(body["name"])
    if body["was"] is None:
        return yes(body, f"{name} is no pool. Nothing was changed.")
    alone = " Its next owner is alone, once these have left." if body["slots_taken"] > 1 else ""
    return yes(body, f"{call.paint.good('Removed:')} claims say again how many owners {name} has.{alone}")


def list_(call: Call) -> Answer:
    pools: list[Document] = body_of(drive(call.door(), all_pages(call.values.get("prefix") or "", pools=True)))["locks"]
    rows = [("POOL", "SLOTS", "TAKEN", "WAITING")]
    for pool in pools:
        slots = str(pool["slots"]) if pool["slots"] else "paused"
        rows.append((plain(pool["name"]), slots, str(pool["slots_taken"]), str(pool.get("waiting", 0))))
    text = "\n".join(sheet(rows, call.paint, call.width, {"POOL": 16}))
    names = "\n".join([plain(pool["name"]) for pool in pools])
    return yes({"pools": pools}, text if pools else "There are no pools.", quiet=names)


_NEEDS = "On a server this needs the role operator or admin."
_ROLE = "77 this token may not do that"
PAGES = f"""
pool set
    Claims of a pool need not name its slots; one that names another number is refused. A change takes nothing from
        anybody: with fewer slots the next one comes in when enough owners have left, with more the line is served at
        once. {_NEEDS} A path:, a repo: and an election have no pool.
    $ dibs pool set gpu --slots 4  # four at a time
    $ dibs pool set gpu --slots 0  # nobody new for now
    exits 0 the pool is as you say | 64 not a number of slots, or a name that has no pool | {_ROLE}
pool list
    Shows all pools of the namespace: slots, how many are taken, how many wait.
    $ dibs pool list  # all pools
    exits 0 listed, even if there are none
pool remove
    Owners keep what they have; whoever comes next waits until all of them have left. {_NEEDS}
    $ dibs pool remove gpu  # it is an ordinary job again
    exits 0 it is no pool | {_ROLE}
"""
COMMANDS = {
    "pool set": Command(
        lambda call: each_job(call, "pool", {"slots": count(call, "slots", SLOTS_MAX, least=0)}, _set),
        JOBS,
        Option("--slots N", f"how many slots, up to {SLOTS_MAX}; 0 pauses the pool", required="slots"),
    ),
    "pool list": Command(list_, Argument("PREFIX", "only pools whose names begin with this", takes=MAYBE)),
    "pool remove": Command(lambda call: each_job(call, "pool", {"slots": None}, _removed), JOBS),
}
