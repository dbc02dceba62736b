"""What a line of a scenario can ask, and how it becomes a command. `runner.py` says how a line is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.base.errors import InvalidInput
from dibs.core import commands
from dibs.core.durations import parse_duration
from dibs.core.limits import SESSION_TTL_MS_DEFAULT, TTL_MS_DEFAULT
from dibs.core.records import EXCLUSIVE, SHARED, lock_key, session_key, ticket_key

if TYPE_CHECKING:
    from collections.abc import Callable

NS = "default"


class Asked(NamedTuple):
    """One line, read: who wants what of which job, and the ids that the line may use."""

    worker: str
    principal: str
    job: str
    options: dict[str, Any]
    lease: str
    ticket: tuple[int, str]
    fresh: str
    now_ms: int


class Verb(NamedTuple):
    """How a line becomes a command: which options it takes, each with its reader, and whether it names a job."""

    make: Callable[[Asked], commands.Command]
    options: dict[str, Callable[[str], object]]
    names_job: bool = True


def _flag(text: str) -> bool:
    if text:
        raise InvalidInput("a flag takes no value")
    return True


def _list(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(",") if each)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"{text!r} is not a number")
    return int(text)


def _ttl(text: str) -> int:
    """`ttl=session` is a lease that lives as long as its session."""
    return 0 if text == "session" else parse_duration(text)


def _ask(asked: Asked) -> dict[str, Any]:
    options = asked.options
    return {
        "ns": NS,
        "principal": asked.principal,
        "owner": asked.worker,
        "ttl_ms": options.get("ttl", TTL_MS_DEFAULT),
        "fresh_lease_id": asked.fresh,
        "metadata": options.get("metadata"),
        "request_key": options.get("key"),
        "session": options.get("session"),
        "ephemeral": not options.get("lasting", False),
        "delay_ms": options.get("delay", 0),
        "mode": SHARED if options.get("shared") else EXCLUSIVE,
        "slots": options.get("slots", 0),
        "units": options.get("units", 1),
        "max_attempts": options.get("max-attempts", 0),
        "again": options.get("again", False),
        "max_hold_ms": options.get("max-hold", 0),
        "badges": options.get("badges", (asked.principal,)),
        "admin": options.get("admin", False),
        "over_quota": options.get("over-quota", False),
        "bound": options.get("bound"),
        "replaces": options.get("replaces"),
    }


def _place(asked: Asked) -> dict[str, Any]:
    if "ticket" not in asked.options:
        return {"wait": asked.options.get("wait", False)}
    number, ticket_id = asked.ticket
    return {"wait": True, "ticket": number, "ticket_id": ticket_id}


def _claim(asked: Asked) -> commands.Command:
    return commands.Acquire(
        name=asked.job,
        lease_id=asked.lease if "lease" in asked.options else None,
        acl=asked.options.get("acl"),
        **_place(asked),
        **_ask(asked),
    )


def _claim_any(asked: Asked) -> commands.Command:
    return commands.AcquireAny(names=_list(asked.job), count=asked.options.get("count", 0), **_ask(asked))


def _claim_all(asked: Asked) -> commands.Command:
    return commands.AcquireAll(names=tuple(sorted(_list(asked.job))), **_place(asked), **_ask(asked))


def _proof(asked: Asked) -> dict[str, Any]:
    """The session where one is given, else the lease."""
    session = asked.options.get("session")
    return {"session": session} if session is not None else {"lease_id": asked.lease}


def _renew(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Renew(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        ttl_ms=options.get("ttl"),
        metadata=options.get("metadata"),
        checkpoint=options.get("checkpoint"),
        mode=options.get("mode"),
        **_proof(asked),
    )


def _release(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Release(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        done_ms=options.get("done", 0),
        result=options.get("result"),
        checkpoint=options.get("checkpoint"),
        uncounted=options.get("uncounted", False),
        **_proof(asked),
    )


def _fail(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Release(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        failed=True,
        reason=options.get("reason"),
        retry_ms=options.get("retry", 0),
        checkpoint=options.get("checkpoint"),
        **_proof(asked),
    )


def _transfer(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Transfer(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        fresh_lease_id=asked.fresh,
        to_owner=options.get("to"),
        to_session=options.get("to-session"),
        ttl_ms=options.get("ttl"),
        checkpoint=options.get("checkpoint"),
        **_proof(asked),
    )


def _break(asked: Asked) -> commands.Command:
    reason = asked.options.get("reason", "")
    return commands.Break(ns=NS, name=asked.job, principal=asked.principal, reason=reason)


def _set_acl(asked: Asked) -> commands.Command:
    acl, admin = asked.options.get("acl", ()), asked.options.get("admin", False)
    return commands.SetAcl(ns=NS, name=asked.job, principal=asked.principal, acl=acl, admin=admin)


def _close(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Close(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        reason=options.get("reason", ""),
        until_ms=options.get("until", 0),
        length_ms=options.get("for", 0),
    )


def _set_pool(asked: Asked) -> commands.Command:
    return commands.SetPool(ns=NS, name=asked.job, principal=asked.principal, slots=asked.options.get("slots"))


def _leave(asked: Asked) -> commands.Command:
    number, ticket_id = asked.ticket
    return commands.Leave(ns=NS, name=asked.job, principal=asked.principal, ticket=number, ticket_id=ticket_id)


def _keep_place(asked: Asked) -> commands.Command:
    return commands.KeepTickets(tickets=((NS, asked.job, asked.ticket[0]),))


def _open(asked: Asked) -> commands.Command:
    return commands.OpenSession(
        fresh_id=asked.job,
        principal=asked.principal,
        owner=asked.worker,
        ttl_ms=asked.options.get("ttl", SESSION_TTL_MS_DEFAULT),
        ns=asked.options.get("of", NS),
    )


def _session(asked: Asked) -> dict[str, Any]:
    bound, operator = asked.options.get("bound"), asked.options.get("operator", False)
    return {"session": asked.job, "principal": None if operator else asked.principal, "bound": bound}


def _end(asked: Asked) -> commands.Command:
    dead = asked.options.get("dead", False)
    return commands.EndSession(
        session=asked.job,
        principal=None if dead else asked.principal,
        dead=dead,
        bound=asked.options.get("bound"),
    )


def _sweep_place(asked: Asked) -> commands.Command:
    return commands.Sweep(key=ticket_key(NS, asked.job, asked.ticket[0]))


def _beat(asked: Asked) -> commands.Command:
    return commands.Beat(server="s", alive_since_ms=asked.options.get("since", asked.now_ms))


_ASK: dict[str, Callable[[str], object]] = {
    "ttl": _ttl,
    "metadata": str,
    "key": str,
    "session": str,
    "lasting": _flag,
    "delay": parse_duration,
    "shared": _flag,
    "slots": _number,
    "units": _number,
    "max-attempts": _number,
    "again": _flag,
    "max-hold": parse_duration,
    "badges": _list,
    "admin": _flag,
    "over-quota": _flag,
    "bound": str,
    "replaces": str,
    "lost": _flag,
}
_PLACE: dict[str, Callable[[str], object]] = {"wait": _flag, "ticket": str}

VERBS: dict[str, Verb] = {
    "claims": Verb(_claim, {**_ASK, **_PLACE, "lease": str, "acl": _list}),
    "claims-any": Verb(_claim_any, {**_ASK, "count": _number}),
    "claims-all": Verb(_claim_all, {**_ASK, **_PLACE}),
    "leaves": Verb(_leave, {"ticket": str}),
    "keeps-place": Verb(_keep_place, {"ticket": str}),
    "renews": Verb(
        _renew,
        {"ttl": parse_duration, "metadata": str, "checkpoint": str, "mode": str, "lease": str, "session": str},
    ),
    "releases": Verb(
        _release,
        {
            "done": parse_duration,
            "result": str,
            "checkpoint": str,
            "lease": str,
            "session": str,
            "uncounted": _flag,
            "lost": _flag,
        },
    ),
    "fails": Verb(
        _fail,
        {
            "reason": str,
            "retry": parse_duration,
            "checkpoint": str,
            "lease": str,
            "session": str,
            "lost": _flag,
        },
    ),
    "transfers": Verb(
        _transfer,
        {
            "to": str,
            "to-session": str,
            "ttl": parse_duration,
            "checkpoint": str,
            "lease": str,
            "session": str,
        },
    ),
    "breaks": Verb(_break, {"reason": str}),
    "frees": Verb(lambda asked: commands.Free(ns=NS, name=asked.job, principal=asked.principal), {}),
    "restricts": Verb(_set_acl, {"acl": _list, "admin": _flag}),
    "closes": Verb(_close, {"for": parse_duration, "until": parse_duration, "reason": str}),
    "reopens": Verb(lambda asked: commands.Open(ns=NS, name=asked.job, principal=asked.principal), {}),
    "pools": Verb(_set_pool, {"slots": _number}),
    "looks-at": Verb(lambda asked: commands.Inspect(ns=NS, name=asked.job), {}),
    "opens": Verb(_open, {"ttl": parse_duration, "of": str}),
    "keeps": Verb(lambda asked: commands.KeepSession(**_session(asked)), {"bound": str}),
    "ends": Verb(_end, {"dead": _flag, "bound": str}),
    "looks-at-session": Verb(
        lambda asked: commands.InspectSession(**_session(asked)), {"bound": str, "operator": _flag}
    ),
    "sweeps": Verb(lambda asked: commands.Sweep(key=lock_key(NS, asked.job)), {}),
    "sweeps-session": Verb(lambda asked: commands.Sweep(key=session_key(asked.job)), {}),
    "sweeps-place": Verb(_sweep_place, {"ticket": str}),
    "freezes": Verb(lambda asked: commands.Freeze(id=asked.worker), {}, names_job=False),
    "thaws": Verb(lambda asked: commands.Thaw(id=asked.worker), {}, names_job=False),
    "beats": Verb(_beat, {"since": parse_duration}, names_job=False),
}
