"""Scenarios: short text scripts that are run through the rules, with every answer written beside the question.

    # A line like this is for the reader.
    at 0s   a1 claims issue-1 ttl=10s   -> granted attempt=1 token=1 remaining=10s
    at 5s   a2 claims issue-1           -> held by=a1 token=1 remaining=5s
    at 10s  a2 claims issue-1           -> granted attempt=2 token=2 remaining=1m previous=a1:expired#1
    at 10s  a1 renews issue-1           -> not-current ended=expired ended-at=10s holder=a2
    events
        acquired a1 issue-1#1
        expired a1 issue-1#1
        acquired a2 issue-1#2

A line is `at TIME WHO VERB [JOB] [option=value] [flag]`, or `events`, which is followed by what was added to
history since the last time it was asked. Times are durations from the start and never go back. Text with blanks is
quoted as in a shell.

WHO is a worker, `a1`, whose credential is its own, or `a1@team`, whose credential is that of its team. A worker
shows the lease it was last given for the job; `lease=a2` shows that of another worker, and a worker that was
never given one shows one that nobody ever had. With the flag `lost` a worker never hears the answer.

`VERBS` says what can be asked, with which words; `ANSWERS` how each outcome reads. A new rule is a row in each.
`run` gives the whole script back with the answers it got: compare it with the script, or write it over it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.core import commands, events, outcomes
from dibs.core.durations import parse_duration
from dibs.core.limits import TTL_MS_DEFAULT
from dibs.core.record import Record
from dibs.errors import InvalidInput
from dibs.service.coordinator import Coordinator

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.records import Ending, Holder
    from dibs.stores.port import Store

NS = "default"
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


class ScenarioError(Exception):
    """The script itself is wrong; the message begins with the line's number."""


# What can be asked


class Asked(NamedTuple):
    """One line, read: who wants what of which job, and the ids that the line may use."""

    worker: str
    principal: str
    job: str
    options: dict[str, Any]
    lease: str
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


def _claim(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Acquire(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        owner=asked.worker,
        ttl_ms=options.get("ttl", TTL_MS_DEFAULT),
        fresh_lease_id=asked.fresh,
        metadata=options.get("metadata"),
        request_key=options.get("key"),
        lease_id=asked.lease if "lease" in options else None,
        delay_ms=options.get("delay", 0),
        again=options.get("again", False),
        acl=options.get("acl"),
        badges=options.get("badges", (asked.principal,)),
        admin=options.get("admin", False),
        over_quota=options.get("over-quota", False),
    )


def _renew(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Renew(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        lease_id=asked.lease,
        ttl_ms=options.get("ttl"),
        metadata=options.get("metadata"),
        checkpoint=options.get("checkpoint"),
    )


def _release(asked: Asked) -> commands.Command:
    options = asked.options
    return commands.Release(
        ns=NS,
        name=asked.job,
        principal=asked.principal,
        lease_id=asked.lease,
        done_ms=options.get("done", 0),
        result=options.get("result"),
        checkpoint=options.get("checkpoint"),
    )


def _break(asked: Asked) -> commands.Command:
    reason = asked.options.get("reason", "")
    return commands.Break(ns=NS, name=asked.job, principal=asked.principal, reason=reason)


def _set_acl(asked: Asked) -> commands.Command:
    acl, admin = asked.options.get("acl", ()), asked.options.get("admin", False)
    return commands.SetAcl(ns=NS, name=asked.job, principal=asked.principal, acl=acl, admin=admin)


def _beat(asked: Asked) -> commands.Command:
    return commands.Beat(alive_since_ms=asked.options.get("since", asked.now_ms))


VERBS: dict[str, Verb] = {
    "claims": Verb(
        _claim,
        {
            "ttl": parse_duration,
            "metadata": str,
            "key": str,
            "lease": str,
            "delay": parse_duration,
            "acl": _list,
            "badges": _list,
            "again": _flag,
            "admin": _flag,
            "over-quota": _flag,
            "lost": _flag,
        },
    ),
    "renews": Verb(_renew, {"ttl": parse_duration, "metadata": str, "checkpoint": str, "lease": str}),
    "releases": Verb(
        _release, {"done": parse_duration, "result": str, "checkpoint": str, "lease": str, "lost": _flag}
    ),
    "breaks": Verb(_break, {"reason": str}),
    "restricts": Verb(_set_acl, {"acl": _list, "admin": _flag}),
    "looks-at": Verb(lambda asked: commands.Inspect(ns=NS, name=asked.job), {}),
    "sweeps": Verb(lambda asked: commands.Sweep(ns=NS, name=asked.job), {}),
    "beats": Verb(_beat, {"since": parse_duration}, names_job=False),
}


# How answers read


def span(ms: int) -> str:
    """Exact, in the largest unit that fits, and readable by `parse_duration`."""
    for unit, size in _UNITS:
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def _quoted(text: str) -> str:
    return text if text and not any(each.isspace() or each in "'\"" for each in text) else shlex.quote(text)


def _words(*parts: str | None, **pairs: object) -> str:
    """`granted token=1 metadata='a b'`: words, then pairs; what is None is left out."""
    said = [part for part in parts if part]
    said += [
        f"{name.replace('_', '-')}={_quoted(str(value))}"
        for name, value in pairs.items()
        if value is not None
    ]
    return " ".join(said)


def _hold(holder: Holder, now_ms: int) -> dict[str, object]:
    return {
        "token": holder.token,
        "remaining": span(holder.expires_ms - now_ms),
        "metadata": holder.metadata,
        "checkpoint": holder.checkpoint,
    }


def _end(ending: Ending | None) -> dict[str, object]:
    if ending is None:
        return {}
    return {
        "ended": ending.how,
        "ended_at": span(ending.at_ms),
        "broken_by": ending.by,
        "reason": ending.reason,
    }


def _granted(told: outcomes.Granted) -> str:
    before = told.previous
    return _words(
        "granted",
        "again" if told.again else None,
        attempt=told.lease.attempt,
        **_hold(told.lease, told.now_ms),
        previous=f"{before.owner}:{before.how}#{before.token}" if before else None,
        previous_checkpoint=before.checkpoint if before else None,
    )


def _held(told: outcomes.Held) -> str:
    return "; ".join(_words("held", by=holder.owner, **_hold(holder, told.now_ms)) for holder in told.holders)


def _done(told: outcomes.AlreadyDone) -> str:
    done, now_ms = told.done, told.now_ms
    return _words(
        "done",
        by=done.owner,
        ago=span(now_ms - done.at_ms),
        remaining=span(done.until_ms - now_ms),
        result=done.result,
    )


def _not_current(told: outcomes.NotCurrent) -> str:
    return _words("not-current", **_end(told.ending), holder=", ".join(h.owner for h in told.holders) or None)


def _status(told: outcomes.Status) -> str:
    lock = told.lock
    acl = ",".join(lock.acl) or None
    if not lock.holders:
        return _words(
            "free",
            None if told.seen else "unseen",
            token=lock.token,
            done_by=lock.done.owner if lock.done and told.now_ms < lock.done.until_ms else None,
            rests=span(lock.delay_until_ms - told.now_ms) if told.now_ms < lock.delay_until_ms else None,
            acl=acl,
        )
    return "; ".join(_words("held", by=h.owner, **_hold(h, told.now_ms), acl=acl) for h in lock.holders)


ANSWERS: dict[type[Record], Callable[[Any], str]] = {
    outcomes.Granted: _granted,
    outcomes.Held: _held,
    outcomes.AlreadyDone: _done,
    outcomes.Delayed: lambda told: _words(
        "delayed", remaining=span(told.until_ms - told.now_ms), of=span(told.delay_ms)
    ),
    outcomes.Renewed: lambda told: _words("renewed", **_hold(told.lease, told.now_ms)),
    outcomes.Released: lambda told: _words(
        "released",
        "again" if told.again else None,
        token=told.ending.token,
        checkpoint=told.ending.checkpoint,
    ),
    outcomes.NotCurrent: _not_current,
    outcomes.KeySpent: lambda told: _words("key-spent", token=told.ending.token, **_end(told.ending)),
    outcomes.Forbidden: lambda told: "forbidden",
    outcomes.AclDiffers: lambda told: "acl-differs",
    outcomes.AclSet: lambda told: _words("acl-set", acl=",".join(told.acl)),
    outcomes.NotFound: lambda told: "not-found",
    outcomes.QuotaExceeded: lambda told: "over-quota",
    outcomes.Broken: lambda told: _words(
        "broken", taken_from=", ".join(h.owner for h in told.holders) or "nobody"
    ),
    outcomes.Status: _status,
    outcomes.Swept: lambda told: _words(
        "swept", "forgotten" if told.forgotten else None, expired=told.expired or None
    ),
    outcomes.Beaten: lambda told: _words("beaten", outage=span(told.outage_ms) if told.outage_ms else None),
}


def _event(event: events.Event) -> str:
    if event.kind == events.OUTAGE:
        return _words("outage", lasted=span(event.at_ms - (event.began_ms or 0)))
    about = f"{event.job}#{event.token}"
    return _words(
        event.kind,
        event.owner,
        about,
        metadata=event.metadata,
        checkpoint=event.checkpoint,
        result=event.result,
        done_until=span(event.done_until_ms) if event.done_until_ms else None,
        by=event.by,
        reason=event.reason,
    )


# Running a script


@dataclass
class _Run:
    """A script under way: the clock, the store behind its coordinator, and which worker was given which lease."""

    open_store: Callable[[Callable[[], int]], Store]
    now_ms: int = 0
    line: int = 0
    fresh: int = 0
    told_seq: int = 0
    leases: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.open_store(lambda: self.now_ms)
        self.coordinator = Coordinator(self.store)

    def wrong(self, what: str) -> ScenarioError:
        return ScenarioError(f"line {self.line}: {what}")

    def answer(self, question: str) -> str:
        try:
            words = shlex.split(question)
        except ValueError as error:
            raise self.wrong(f"{error}") from None
        if len(words) < 4 or words[0] != "at":
            raise self.wrong(f"neither 'at TIME WHO VERB ...' nor 'events': {question!r}")
        return self.ask(words[1], words[2], words[3], words[4:])

    def history(self) -> list[str]:
        fresh = self.store.events(self.told_seq, 1_000_000)
        self.told_seq = fresh[-1].seq if fresh else self.told_seq
        return [f"    {_event(event)}" for event in fresh] or ["    none"]

    def ask(self, time: str, who: str, verb_name: str, rest: list[str]) -> str:
        now_ms: int = self.read(parse_duration, time, "time")
        if now_ms < self.now_ms:
            raise self.wrong(f"time goes back to {time}")
        verb = VERBS.get(verb_name)
        if verb is None:
            raise self.wrong(f"no such verb: {verb_name!r}; there are {', '.join(VERBS)}")
        if verb.names_job and not rest:
            raise self.wrong(f"{verb_name} what?")
        job = rest[0] if verb.names_job else ""
        worker, _, team = who.partition("@")
        options = self.options(verb_name, verb, rest[1:] if verb.names_job else rest)
        self.now_ms = now_ms
        self.fresh += 1
        lease = self.leases.get((options.get("lease", worker), job), "no-such-lease")
        asked = Asked(worker, team or worker, job, options, lease, f"lease-{self.fresh}", now_ms)
        outcome = self.coordinator.one(verb.make(asked))
        if isinstance(outcome, outcomes.Granted) and "lost" not in options:
            self.leases[worker, job] = outcome.lease.lease_id
        return ANSWERS[type(outcome)](outcome)

    def options(self, verb_name: str, verb: Verb, words: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word in words:
            name, _, text = word.partition("=")
            reader = verb.options.get(name)
            if reader is None:
                raise self.wrong(
                    f"{verb_name} knows no {name!r}; it knows {', '.join(verb.options) or 'no options'}"
                )
            if name in found:
                raise self.wrong(f"{name!r} is said twice")
            found[name] = self.read(reader, text, name)
        return found

    def read(self, reader: Callable[[str], Any], text: str, what: str) -> Any:
        try:
            return reader(text)
        except InvalidInput as error:
            raise self.wrong(f"{what}: {error}") from None


def run(script: str, open_store: Callable[[Callable[[], int]], Store]) -> str:
    """`script` with the answers it really got. `open_store` is given the clock, in milliseconds from 0."""
    running = _Run(open_store)
    lines: list[tuple[str, str | None]] = []
    for number, line in enumerate(script.splitlines(), start=1):
        running.line = number
        question = line.partition(" -> ")[0].rstrip()
        if not question or question.startswith("#"):
            lines.append((line.rstrip(), None))
        elif question == "events":
            lines += [(each, None) for each in ["events", *running.history()]]
        elif not question.startswith(" "):  # what is indented was an answer
            lines.append((question, running.answer(question)))
    width = max([len(question) for question, answer in lines if answer is not None], default=0)
    said = [question if answer is None else f"{question:<{width}} -> {answer}" for question, answer in lines]
    return "\n".join(said) + "\n"
