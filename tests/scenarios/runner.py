"""Scenarios: short text scripts that are run through the rules, with every answer written beside the question.

    # A line like this is for the reader.
    at 0s   a1 claims issue-1 ttl=10s   -> granted attempt=1 token=1 remaining=10s
    at 5s   a2 claims issue-1           -> held by=a1 token=1 remaining=5s
    at 6s   a3 claims issue-1 wait      -> queued position=1 ticket=1 behind=a1
    at 10s  time sweeps-all             -> swept | a3 gets issue-1#2
    at 10s  a1 renews issue-1           -> not-current ended=expired ended-at=10s holder=a3
    events
        acquired a1 issue-1#1
        queued a3 issue-1 ticket=1
        expired a1 issue-1#1
        acquired a3 issue-1#2 ticket=1

A line is `at TIME WHO VERB [JOB] [option=value] [flag]`, or `events`, which is followed by what was added to
history since the last time it was asked. Times are durations from the start and never go back. Text with blanks is
quoted as in a shell. After a bar come the jobs that the same commit handed to waiters.

WHO is a worker, `a1`, whose credential is its own, or `a1@team`, whose credential is that of its team. A worker
shows the lease it was last given for the job; `lease=a2` shows that of another worker, and a worker that was
never given one shows one that nobody ever had. `ticket` and `ticket=a2` do the same with places in the line. With
the flag `lost` a worker never hears the answer. Several jobs are written with commas between them; the verbs of
sessions name the session where others name the job. `sweeps-all` sweeps what is due until nothing is.

`VERBS` says what can be asked, with which words; `ANSWERS` how each outcome reads. A new rule is a row in each.
`run` gives the whole script back with the answers it got: compare it with the script, or write it over it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dibs.base.errors import InvalidInput
from dibs.core import commands, lease_outcomes, outcomes
from dibs.core.durations import parse_duration
from dibs.engine.coordinator import Coordinator
from tests.scenarios.answers import ANSWERS, told_event, told_handed
from tests.scenarios.asks import VERBS, Asked, Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.draft import HandedOver
    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Store

__all__ = ["ANSWERS", "VERBS", "ScenarioError", "run"]

SWEEPS_MAX = 1_000


class ScenarioError(Exception):
    """The script itself is wrong; the message begins with the line's number."""


@dataclass
class _Run:
    """A script under way: the clock, the store behind its coordinator, and which worker was given which lease."""

    open_store: Callable[[Callable[[], int]], Store]
    now_ms: int = 0
    line: int = 0
    fresh: int = 0
    reported_seq: int = 0
    leases: dict[tuple[str, str], str] = field(default_factory=dict)
    tickets: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    handed: list[HandedOver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.open_store(lambda: self.now_ms)
        self.coordinator = Coordinator(self.store, on_handed=self.handed.extend)

    def wrong(self, what: str) -> ScenarioError:
        return ScenarioError(f"line {self.line}: {what}")

    def answer(self, question: str) -> str:
        try:
            words = shlex.split(question)
        except ValueError as error:
            raise self.wrong(f"{error}") from None
        if len(words) < 4 or words[0] != "at":
            raise self.wrong(f"neither 'at TIME WHO VERB ...' nor 'events': {question!r}")
        self.handed.clear()
        said = self.ask(words[1], words[2], words[3], words[4:])
        for each in self.handed:
            self.heard(each.outcome)
        return " | ".join([said, *map(told_handed, self.handed)])

    def history(self) -> list[str]:
        fresh = self.store.events(self.reported_seq, 1_000_000)
        self.reported_seq = fresh[-1].seq if fresh else self.reported_seq
        return [f"    {told_event(event)}" for event in fresh] or ["    none"]

    def ask(self, time: str, who: str, verb_name: str, rest: list[str]) -> str:
        now_ms: int = self.read(parse_duration, time, "time")
        if now_ms < self.now_ms:
            raise self.wrong(f"time goes back to {time}")
        if verb_name == "sweeps-all":
            self.now_ms = now_ms
            return self.sweep_all()
        verb = VERBS.get(verb_name)
        if verb is None:
            raise self.wrong(f"no such verb: {verb_name!r}; there are sweeps-all, {', '.join(VERBS)}")
        if verb.names_job and not rest:
            raise self.wrong(f"{verb_name} what?")
        job = rest[0] if verb.names_job else ""
        options = self.options(verb_name, verb, rest[1:] if verb.names_job else rest)
        self.now_ms = now_ms
        outcome = self.coordinator.one(verb.make(self.asked(who, job, options)))
        if "lost" not in options:
            self.heard(outcome, who.partition("@")[0], job)
        said = ANSWERS[type(outcome)](outcome)
        if isinstance(outcome, outcomes.Granted) and outcome.name != job:
            return f"{outcome.name} {said}"  # one of several
        return said

    def asked(self, who: str, job: str, options: dict[str, Any]) -> Asked:
        worker, _, team = who.partition("@")
        self.fresh += 1
        lease = self.leases.get((options.get("lease", worker), job), "no-such-lease")
        shown = options.get("ticket") or worker
        ticket = self.tickets.get((shown, ",".join(sorted(job.split(",")))), (0, "no-such-ticket"))
        return Asked(worker, team or worker, job, options, lease, ticket, f"lease-{self.fresh}", self.now_ms)

    def heard(self, outcome: Outcome, worker: str = "", job: str = "") -> None:
        """The proofs of an answer, which a worker keeps."""
        if isinstance(outcome, outcomes.GrantedAll | outcomes.Refused):
            for each in outcome.grants if isinstance(outcome, outcomes.GrantedAll) else outcome.left:
                self.heard(each, worker)
        elif isinstance(outcome, outcomes.Granted):
            self.leases[worker or outcome.lease.owner, outcome.name] = outcome.lease.lease_id
        elif isinstance(outcome, lease_outcomes.Transferred):
            self.leases[outcome.lease.owner, outcome.name] = outcome.lease.lease_id
        elif isinstance(outcome, outcomes.Queued):
            self.tickets[worker, ",".join(sorted(job.split(",")))] = (outcome.ticket, outcome.ticket_id)

    def sweep_all(self) -> str:
        for _ in range(SWEEPS_MAX):
            due = self.store.due(1).keys
            if not due:
                return "swept"
            self.coordinator.one(commands.Sweep(key=due[0]))
        raise self.wrong(f"{self.store.due(1).keys} stays due for ever")

    def options(self, verb_name: str, verb: Verb, words: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word in words:
            name, _, text = word.partition("=")
            reader = verb.options.get(name)
            if reader is None:
                raise self.wrong(f"{verb_name} knows no {name!r}; it knows {', '.join(verb.options) or 'no options'}")
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
    """`script` with its actual answers. `open_store` gets the clock, in milliseconds from 0."""
    running = _Run(open_store)
    lines: list[tuple[str, str | None]] = []
    for number, line in enumerate(script.splitlines(), start=1):
        running.line = number
        question = line.partition(" -> ")[0].rstrip()
        if not question or question.startswith("#"):
            lines.append((line.rstrip(), None))
        elif question == "events":
            lines += [(each, None) for each in ["events", *running.history()]]
        elif not question.startswith(" "):  # indented lines were answers
            lines.append((question, running.answer(question)))
    width = max([len(question) for question, answer in lines if answer is not None], default=0)
    said = [question if answer is None else f"{question:<{width}} -> {answer}" for question, answer in lines]
    return "\n".join(said) + "\n"
