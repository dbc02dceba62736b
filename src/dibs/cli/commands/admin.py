"""break, free, gc: for whoever keeps an eye on the others."""

from __future__ import annotations

from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import failure, is_failure, yes
from dibs.cli.framework.spec import JOB, Argument, Command, Option
from dibs.cli.text import claim as claim_text
from dibs.core.limits import TOKEN_FLOOR_MAX
from dibs.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]


def break_(call: Call) -> Answer:
    reply = call.door().call("break", call.values["job"], {"reason": call.values["reason"].strip()})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, claim_text.broken(body, call.paint))


def free(call: Call) -> Answer:
    reply = call.door().call("free", call.values["job"], {})
    if is_failure(reply):
        return failure(reply)
    body: Document = reply.body or {}
    return yes(body, claim_text.freed(body, call.paint))


def floor(call: Call) -> Answer:
    from dibs.client.embedded import EmbeddedDoor

    text = call.values["number"]
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= TOKEN_FLOOR_MAX):
        raise UsageError(
            f"NUMBER is a whole number from 1 to {TOKEN_FLOOR_MAX}, not {text!a}.", "token-floor"
        )
    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        raise InvalidInput(
            "token-floor works on a store. For a server, start it with --token-floor, or run this on its store: "
            "--url sqlite:///path."
        )
    from dibs.client.store_admin import raise_floor

    now = raise_floor(door.store(), int(text))
    higher = " It was that high already." if now > int(text) else ""
    return yes({"token_floor": now}, f"Every new fencing token is above {now}.{higher}", quiet=str(now))


def gc(call: Call) -> Answer:
    from dibs.client.embedded import EmbeddedDoor

    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        raise InvalidInput(
            "gc works on a store; a server does this by itself, all the time. Leave out --url and DIBS_URL."
        )
    from dibs.client.store_admin import sweep

    swept = sweep(door.store())
    lines = ["Nothing was due."]
    if swept["jobs"]:
        expired, forgotten = swept["expired"], swept["forgotten"]
        claims = f"{expired} {'claim' if expired == 1 else 'claims'} that had run out"
        records = f"{forgotten} idle {'job' if forgotten == 1 else 'jobs'}"
        lines = [f"Ended {claims}, put away {records}."]
    if swept.get("removed"):
        lines.append(f"Cleared away {swept['removed']} old {'ref' if swept['removed'] == 1 else 'refs'}.")
    lines += [f"Left alone: {name}, because {why}." for name, why in swept.get("broken", {}).items()]
    return yes(swept, "\n".join(lines))


COMMANDS = {
    "break": Command(
        "break",
        "take a job away from its owner",
        break_,
        about=(
            "For a worker that hangs, or claimed the wrong thing. Its next heartbeat is told who took the job and why; "
            "the next claim gets a higher fencing token. On a server this needs the role operator or admin."
        ),
        arguments=(JOB,),
        options=(
            Option(
                "--reason",
                "why you take it; the old owner is told, and history keeps it",
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
        "let a parked job be claimed again",
        free,
        about=(
            "A job claimed with --max-attempts is parked when that many owners were lost with it, so that it does not "
            "take down the others. This lets it go on. On a server it needs the role operator or admin."
        ),
        arguments=(JOB,),
        examples=(("the cause is gone", "dibs free issue-1842"),),
        exits=((0, "it can be claimed, or was not parked"), (77, "this token may not do that")),
    ),
    "token-floor": Command(
        "token-floor",
        "raise the number below which no fencing token is given",
        floor,
        about=(
            "For somebody who moves over from another lock service: the database that checks fencing tokens has seen "
            "its numbers, and would refuse lower ones. Give the highest it has seen. The floor is never lowered. A "
            "server takes it with `dibs serve --token-floor`."
        ),
        arguments=(Argument("NUMBER", "the highest number that was seen"),),
        examples=(("after 5,000 leases elsewhere", "dibs token-floor 5000"),),
        exits=((0, "raised, or as high already"), (64, "not a number, or not a store")),
    ),
    "gc": Command(
        "gc",
        "sweep now: end expired claims, forget idle jobs",
        gc,
        about=(
            "Nothing needs this: a claim that ran out is free whether or not somebody swept it. It writes the expiries "
            "into history and puts away jobs that have been idle for a day; their fencing numbers still rise. "
            "On a git store it also deletes the refs of what was put away a week ago. "
            "On a store only: a server sweeps by itself."
        ),
        examples=(
            ("now and then, from cron", "dibs gc -q"),
            ("for all clones of a remote", "dibs gc --url git:origin"),
        ),
        exits=((0, "swept"),),
    ),
}
