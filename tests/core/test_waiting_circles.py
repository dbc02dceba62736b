"""Nobody waits in a circle, whichever command closed it: sessions with many places, judged by brute force.

After every command the dumb model finds the sessions that would wait for ever: every session that waits for nothing
releases its jobs, every place that can be served is served, until nothing changes. `test_coordination.py` compares
every answer on all kinds of lives; these lives do little but wait and lose things, so circles come by the hundred.
`DIBS_CIRCLE_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import events as kinds
from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    Break,
    EndSession,
    Free,
    KeepPlaces,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    SetAcl,
    Sweep,
    Transfer,
)
from dibs.core.records import EXCLUSIVE, SHARED
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import COMPILED, tries
from tests.core import raw as raws
from tests.core.raw import NS, raw_of

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome

SEED = os.environ.get("DIBS_CIRCLE_SEED")
STEPS = 60
WORLDS = {
    "jobs": ("a", "b", "c"),
    "slots": ("a", "b", "gpu"),
    "a tree": ("a", "path:s", "path:s/x", "path:t"),
}


class Life:
    """Few sessions and fewer jobs, for which they wait again and again under other request keys."""

    def __init__(self, seed: int, jobs: tuple[str, ...]) -> None:
        self.chance = random.Random(seed)
        self.jobs = jobs
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms)
        self.coordinator = Coordinator(self.store)
        self.fresh = 0
        self.sessions: list[str] = []
        self.places: list[tuple[str, int, str]] = []
        self.told: Counter[str] = Counter()
        for _ in range(4):
            self.open()

    def open(self) -> None:
        self.fresh += 1
        self.sessions.append(f"s{self.fresh}")
        self.ask(OpenSession(ns="default", fresh_id=self.sessions[-1], principal="team", owner="w", ttl_ms=600_000))

    def ask(self, command: Command) -> Outcome:
        outcome = self.coordinator.one(command)
        self.told[type(outcome).__name__] += 1
        if isinstance(outcome, outcomes.Queued):
            self.places.append((outcome.name, outcome.ticket, outcome.ticket_id))
        raws.nobody_waits_in_a_circle(raw_of(self.store, self.now_ms))
        return outcome

    def claim(self) -> Command:
        chance = self.chance
        self.fresh += 1
        mode = chance.choice((EXCLUSIVE, EXCLUSIVE, EXCLUSIVE, SHARED))
        asked: dict[str, Any] = {
            "ns": NS,
            "principal": "team",
            "owner": "w",
            "fresh_lease_id": f"lease-{self.fresh}",
            "session": chance.choice(self.sessions),
            "ttl_ms": chance.choice((0, 0, 10_000)),
            "mode": mode,
            "request_key": chance.choice((None, f"key-{self.fresh}")),
            "wait": chance.random() < 0.9,
        }
        names = chance.sample(self.jobs, chance.choice((1, 1, 2, 2)))
        tree = [name for name in names if name.startswith("path:s")]
        if len(names) == 1 or len(tree) > 1:
            slots = 2 if names[0] == "gpu" and mode == EXCLUSIVE else 1
            return Acquire(name=names[0], slots=slots, **asked)
        return AcquireAll(names=tuple(sorted(names)), **asked)

    def command(self) -> Command:
        chance = self.chance
        job, session = chance.choice(self.jobs), chance.choice(self.sessions)
        mine: dict[str, Any] = {"ns": NS, "name": job, "principal": "team", "session": session}
        what = chance.random()
        if what < 0.60:
            return self.claim()
        if what < 0.72 and self.places:
            name, number, ticket_id = chance.choice(self.places[-8:])
            return Leave(ns=NS, name=name, principal="team", ticket=number, ticket_id=ticket_id)
        if what < 0.80:
            return Release(failed=chance.random() < 0.2, **mine)
        if what < 0.85:
            self.fresh += 1
            heir = chance.choice(self.sessions)
            return Transfer(fresh_lease_id=f"lease-{self.fresh}", to_session=heir, **mine)
        if what < 0.87:
            return Break(ns=NS, name=job, principal="op", reason="why")
        if what < 0.96:
            kept = self.places[-chance.randint(1, 8) :]
            return KeepPlaces(places=tuple((NS, name, number) for name, number, _ in kept))
        if what < 0.97:
            acl = chance.choice((None, None, None, ("other",)))
            return SetAcl(ns=NS, name=job, principal="op", admin=True, acl=acl or ())
        if what < 0.99:
            return Free(ns=NS, name=job, principal="op")
        return KeepSession(session=session, principal="team")

    def step(self) -> None:
        chance = self.chance
        if chance.random() < 0.1:
            self.now_ms += chance.choice((1, 800, 3_000, 8_000))
            while due := self.store.due(1).keys:
                self.ask(Sweep(key=due[0]))
        if chance.random() < 0.01:
            self.ask(EndSession(session=self.sessions.pop(0), principal="team"))
            self.open()
        self.ask(self.command())


def live(seed: int, jobs: tuple[str, ...]) -> Life:
    life = Life(seed, jobs)
    for _ in range(STEPS):
        life.step()
    return life


@pytest.mark.promise("deadlock")
@pytest.mark.parametrize("world", WORLDS)
def test_no_command_leaves_a_circle_of_waiters_behind(world: str) -> None:
    told: Counter[str] = Counter()
    given_up = 0
    for seed in [int(SEED)] if SEED else range(tries(25, 60)):
        try:
            life = live(seed, WORLDS[world])
        except AssertionError as error:
            raise AssertionError(f"DIBS_CIRCLE_SEED={seed}: {error}") from error
        told += life.told
        history = raw_of(life.store, life.now_ms).events
        given_up += sum(1 for each in history if each.kind == kinds.LEFT and each.reason == "deadlock")
    assert SEED or COMPILED or (given_up and told["Deadlock"] >= 100), "too few circles to show anything"
    print(world, dict(told), f"given up: {given_up}")
