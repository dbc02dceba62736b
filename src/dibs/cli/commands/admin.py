"""break, free, token-floor, gc: commands for operators."""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.cli.framework.job_names import names_here
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import failure, is_failure, yes
from dibs.cli.framework.spec import JOB, STORE, Argument, Command, Option
from dibs.cli.text import claim as claim_text
from dibs.cli.text.words import plain
from dibs.core.limits import TOKEN_FLOOR_MAX
from dibs.core.names import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]

# migrate: bring a store's format up to date, by hand.


def migrate(call: Call) -> Answer:
    from dibs.base.errors import InvalidInput
    from dibs.client.settings import servers_at
    from dibs.client.store_admin import migrate as bring_up_to_date

    if servers_at(call.settings.url):
        raise InvalidInput("migrate works on a store, not on a server. Name the store that the server stands on.")
    done = bring_up_to_date(call.settings.url)
    was, now = done["was"], done["version"]
    if now is None:
        says = f"Stores of the kind {done['store']} have no versions: there is nothing to do."
    elif was == now:
        says = f"The store is at version {now} already."
    else:
        says = f"The store is at version {now} now. It was {f'at version {was}' if was else 'made just now'}."
    return yes(done, says)


COMMANDS = {
    "migrate": Command(
        "migrate",
        migrate,
        about=(
            "Nothing needs this where a server may change its own store: it does so when it starts. It is for a "
            "PostgreSQL store with migrate=off in its URL, whose servers have no right to change the schema: run it as "
            "a role that has, before the new servers start. Servers of the version before go on meanwhile."
        ),
        arguments=(STORE,),
        examples=(("before an upgrade", "dibs migrate --url postgresql://owner@db.example.org/dibs"),),
        exits=((0, "up to date"), (69, "the store cannot be reached, or is of a newer dibs")),
    ),
}


# name: show the one name of a job, and why.


def name(call: Call) -> Answer:
    found = names_here(call).explained(call.values["job"])
    one = check_name(found.name)
    document = {"name": one, "given": found.given, "why": found.why}
    return yes(document, f"{plain(one)}\n  {plain(found.why)}", quiet=plain(one))


COMMANDS |= {
    "name": Command(
        "name",
        name,
        about=(
            "An issue or a file can be written in several ways: as an address, as acme/app#42, as #42 inside the "
            "clone, as a relative path. All commands take it by one name, which this command prints. A name in "
            "no known form stays as it is. Asks no store and no network."
        ),
        arguments=(Argument("JOB", "the job, as you would write it in a claim", completes="job"),),
        examples=(
            ("an issue by its address", "dibs name https://github.com/Acme/App/issues/42"),
            ("an issue of this clone", "dibs name '#42'"),
            ("a file", "dibs name ./auth.rs"),
        ),
        exits=((0, "the name is printed"),),
    ),
}


def break_(call: Call) -> Answer:
    reply = call.ask("break", call.values["job"], {"reason": call.values["reason"].strip()})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, claim_text.broken(body, call.paint))


def free(call: Call) -> Answer:
    reply = call.ask("free", call.values["job"], {})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, claim_text.freed(body, call.paint))


def floor(call: Call) -> Answer:
    from dibs.client.embedded import EmbeddedDoor

    text = call.values["number"]
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= TOKEN_FLOOR_MAX):
        raise UsageError(f"NUMBER must be a whole number from 1 to {TOKEN_FLOOR_MAX}, not {text!a}.", "token-floor")
    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        raise InvalidInput(
            "token-floor works on a store. For a server, start it with --token-floor, or run this on its store: "
            "--url sqlite:///path."
        )
    from dibs.client.store_admin import raise_floor

    now = raise_floor(door.store(), int(text))
    higher = " It was that high before." if now > int(text) else ""
    return yes({"token_floor": now}, f"All new fencing tokens are above {now}.{higher}", quiet=str(now))


def gc(call: Call) -> Answer:
    from dibs.client.embedded import EmbeddedDoor

    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        raise InvalidInput("gc works on a store; a server sweeps by itself. Leave out --url and DIBS_URL.")
    from dibs.client.store_admin import sweep

    swept = sweep(door.store())
    lines = ["Nothing was due."]
    if swept["jobs"]:
        expired, forgotten = swept["expired"], swept["forgotten"]
        claims = f"{expired} {'claim' if expired == 1 else 'claims'} that had expired"
        records = f"{forgotten} idle {'job' if forgotten == 1 else 'jobs'}"
        lines = [f"Ended {claims}, forgot {records}."]
    if swept.get("removed"):
        lines.append(f"Deleted {swept['removed']} old {'ref' if swept['removed'] == 1 else 'refs'}.")
    if swept.get("recounted"):
        lines.append(f"Counted anew what {', '.join(swept['recounted'])} may have.")
    lines += [f"Not changed: {name}, because {why}." for name, why in swept.get("broken", {}).items()]
    return yes(swept, "\n".join(lines))


COMMANDS |= {
    "break": Command(
        "break",
        break_,
        about=(
            "For a worker that hangs, or that claimed the wrong job. Its next heartbeat fails and says who "
            "took the job and why. The next claim gets a higher fencing token. On a server this needs the "
            "role operator or admin."
        ),
        arguments=(JOB,),
        options=(
            Option(
                "--reason",
                "why you take the job; shown to the old owner and in history",
                value="TEXT",
                filled=True,
                required="reason",
            ),
        ),
        examples=(("a worker hangs", 'dibs break issue-1842 --reason "agent-7 hangs since noon"'),),
        exits=((0, "nobody has it any more"), (77, "this token may not do that")),
    ),
    "free": Command(
        "free",
        free,
        about=(
            "A job claimed with --max-attempts is parked after that many failures or losses in a row. On a "
            "server this needs the role operator or admin."
        ),
        arguments=(JOB,),
        examples=(("after the cause was fixed", "dibs free issue-1842"),),
        exits=((0, "the job can be claimed, or was not parked"), (77, "this token may not do that")),
    ),
    "token-floor": Command(
        "token-floor",
        floor,
        about=(
            "For a move from another lock service: a database that checks fencing tokens has seen that "
            "service's numbers, and refuses lower ones. Give the highest number it has seen. The floor is "
            "never lowered. For a server, use `dibs serve --token-floor`."
        ),
        arguments=(Argument("NUMBER", "the highest number seen so far"),),
        examples=(("after 5,000 leases elsewhere", "dibs token-floor 5000"),),
        exits=((0, "the floor was raised, or was that high before"), (64, "not a number, or not a store")),
    ),
    "gc": Command(
        "gc",
        gc,
        about=(
            "You need not run this: an expired claim is free with or without a sweep. It writes expiries into"
            " history and deletes the records of jobs that were idle for a day; their fencing tokens still "
            "rise. On a git store it also deletes refs of records that were deleted a week ago. It works on a"
            " store only: a server sweeps by itself."
        ),
        examples=(
            ("now and then, from cron", "dibs gc -q"),
            ("for all clones of a remote", "dibs gc --url git:origin"),
        ),
        exits=((0, "swept"),),
    ),
}
