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
    Close,
    EndSession,
    Free,
    KeepSession,
    KeepTickets,
    Leave,
    OpenSession,
    Release,
    Renew,
    SetAcl,
    SetPool,
    Sweep,
    Transfer,
)
from dibs.core.draft import Draft, View
from dibs.core.limits import SESSION_TOMBSTONE_MS
from dibs.core.records import EXCLUSIVE, META_KEY, SHARED, SessionRecord, Want, session_key
from dibs.core.waiting.deadlock import _cycle, _free
from dibs.core.waiting.wait_graph import Need, Node, WaitGraph, Words
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import COMPILED, tries
from tests.core import raw as raws
from tests.core.raw import NS, raw_of
from tests.models.queue import Wish

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome

SEED = os.environ.get("DIBS_CIRCLE_SEED")
STEPS = 60
WORLDS = {
    "jobs": ("a", "b", "c"),
    "slots": ("a", "b", "gpu"),
    "a tree": ("a", "path:s", "path:s/x", "path:t"),
    "slots in a tree": ("a", "path:s", "path:s/gpu", "path:t"),
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
            if names[0].endswith("gpu") and mode == EXCLUSIVE:
                asked |= {"slots": 2, "units": chance.choice((1, 1, 1, 2))}
            return Acquire(name=names[0], **asked)
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
            return KeepTickets(tickets=tuple((NS, name, number) for name, number, _ in kept))
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


def test_a_session_waits_for_what_one_left_behind_that_is_known_no_more() -> None:
    now_ms = [1_000_000]
    store = MemoryStore(lambda: now_ms[0])
    coordinator = Coordinator(store)
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "owner": "o", "ttl_ms": 8 * SESSION_TOMBSTONE_MS}
    for one in ("gone", "here"):
        coordinator.one(OpenSession(fresh_id=one, **terms))
    coordinator.one(Acquire(name="a", session="gone", ephemeral=False, fresh_lease_id="L1", **terms))
    coordinator.one(Acquire(name="b", session="here", fresh_lease_id="L2", **terms))
    coordinator.one(EndSession(session="gone", principal="team"))
    now_ms[0] += SESSION_TOMBSTONE_MS
    while due := store.due(1).keys:
        coordinator.one(Sweep(key=due[0]))
    assert store.read(["session/gone"]).records["session/gone"].record is None
    asked = Acquire(name="a", session="here", fresh_lease_id="L3", wait=True, **terms)
    assert isinstance(coordinator.one(asked), outcomes.Queued)


@pytest.mark.fault("F-270")
@pytest.mark.promise("deadlock")
def test_slots_that_places_ahead_will_have_count_while_another_path_is_in_the_way() -> None:
    """The second has a job, and waits for both slots behind the first, which will have one of them by then."""
    coordinator = Coordinator(MemoryStore(lambda: 1_000_000))
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "ttl_ms": 60_000}
    for one in ("owner", "first", "second"):
        coordinator.one(OpenSession(fresh_id=one, owner=one, **terms))

    def ask(session: str, name: str, units: int = 1, slots: int = 2) -> type[Outcome]:
        fresh = f"{session}-{name}"
        asked = Acquire(
            name=name, slots=slots, units=units, session=session, owner=session, fresh_lease_id=fresh, **terms
        )
        return type(coordinator.one(asked.replace(wait=True)))

    assert ask("owner", "path:s", slots=1) is outcomes.Granted
    assert ask("second", "b") is outcomes.Granted
    assert ask("first", "path:s/gpu") is outcomes.Queued
    assert ask("second", "path:s/gpu", units=2) is outcomes.Queued
    assert ask("first", "b", units=2) is outcomes.Deadlock


def of(session: str | None, **how: Any) -> dict[str, Any]:
    terms = {"ns": NS, "principal": "team", "owner": session or "x", "ttl_ms": 0 if session else 20_000}
    return terms | {"session": session, "fresh_lease_id": f"{session}{sorted(how.items())}", "wait": True} | how


DECIDED: dict[str, tuple[list[Command], Command, type[Outcome]]] = {
    # The claim-all is one of two owners of `a`, whatever the pool has once it is given slots.
    "a paused pool, and slots of another job": (
        [
            SetPool(ns=NS, name="gpu", principal="op", slots=0),
            Acquire(name="a", **of("s1", mode=SHARED)),
            Acquire(name="a", **of("s2", slots=2)),
            AcquireAll(names=("a", "gpu"), **of(None, slots=2)),
        ],
        Acquire(name="gpu", **of("s2")),
        outcomes.Queued,
    ),
    # It has its part of the pool from before there was one, in a way in which it could not have it now.
    "a part of a pool that it could not have now": (
        [
            Acquire(name="gpu", **of("s1", mode=SHARED)),
            SetPool(ns=NS, name="gpu", principal="op", slots=0),
            Acquire(name="a", **of("s2")),
            AcquireAll(names=("a", "gpu"), **of("s2")),
            Acquire(name="a", **of(None, mode=SHARED)),
        ],
        AcquireAll(names=("a", "gpu"), **of("s1", mode=SHARED)),
        outcomes.Deadlock,
    ),
    # Both places will be served, with one hold. Who polled met the first of them.
    "two places of the asking session": (
        [
            Acquire(name="a", **of("s1")),
            Close(ns=NS, name="c", principal="op", reason="r", length_ms=10_000),
            AcquireAll(names=("b", "c"), **of("s2", request_key="k1")),
            AcquireAll(names=("b", "c"), **of("s2", request_key="k2")),
            Acquire(name="b", **of("s1", wait=False)),
        ],
        Acquire(name="a", **of("s2", wait=False)),
        outcomes.Deadlock,
    ),
    # It left the line of a job that it had, and shares it since: the same claim would be refused now.
    "what it has in another mode it does not wait for": (
        [
            Acquire(name="b", **of("s1")),
            Acquire(name="c", **of("s3")),
            Acquire(name="b", **of("s2", request_key="k1")),
            AcquireAll(names=("b", "c"), **of("s1", fresh_lease_id="left")),
            Leave(ns=NS, name="b", principal="team", ticket=2, ticket_id="left"),
            Renew(ns=NS, name="b", principal="team", session="s1", mode=SHARED),
        ],
        Acquire(name="b", **of("s2", request_key="k2")),
        outcomes.Queued,
    ),
}


@pytest.mark.fault("F-573")
@pytest.mark.promise("deadlock")
@pytest.mark.parametrize("case", DECIDED)
def test_the_model_decides_which_of_these_is_a_circle(case: str) -> None:
    first, last, told = DECIDED[case]
    life = Life(0, ("a", "gpu"))
    for command in first:
        life.ask(command)
    before = raw_of(life.store, life.now_ms)
    assert type(life.ask(last)) is told  # and nobody waits in a circle after it
    assert isinstance(last, Acquire | AcquireAll)
    names = last.names if isinstance(last, AcquireAll) else (last.name,)
    wish = Wish(names, last.owner, last.principal, "", shared=last.mode == SHARED, session=last.session)
    assert raws.world_of(before).would_be_stuck(wish, wait=last.wait) == (told is outcomes.Deadlock, False)


def free_of(needs: dict[Node, list[Need]]) -> set[Node]:
    """Whoever needs nothing of those who are stuck is free, until nobody is found any more."""
    free: set[Node] = set()
    while found := [node for node in needs if node not in free and not any(each.in_vain(free) for each in needs[node])]:
        free.update(found)
    return free


@pytest.mark.parametrize("seed", range(300))
def test_those_are_free_whom_a_look_at_everybody_again_and_again_finds(seed: int) -> None:
    chance = random.Random(seed)
    nodes: list[Node] = [("node", str(number)) for number in range(chance.randint(1, 7))]

    def need() -> Need:
        of: list[tuple[Node, Words, int]] = [
            (node, (), chance.choice((1, 1, 2))) for node in chance.choices(nodes, k=chance.randint(0, 4))
        ]
        return Need(of, chance.choice((1, 1, 2, 3)))

    shared = [need() for _ in range(2)]
    needs = {node: [chance.choice((need(), *shared)) for _ in range(chance.choice((0, 1, 1, 2)))] for node in nodes}
    assert _free(needs) == free_of(needs)


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


@pytest.mark.parametrize(
    ("wants", "whose", "until_ms", "counts"),
    [
        (True, "other", 1_000_001, True),
        (True, "other", 1_000_000, False),  # for so long, and no longer
        (True, "asker", 1_000_001, False),  # its present claim counts instead
        (False, "other", 1_000_001, False),  # whoever polls is told when it polls again
        (False, "asker", 1_000_001, False),
    ],
)
def test_a_refused_claim_counts_as_waiting_for_others_and_for_a_while(
    wants: bool, whose: str, until_ms: int, counts: bool
) -> None:
    want = Want(ns=NS, name="a", until_ms=until_ms, at_ms=1)
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "owner": "w", "ttl_ms": 9, "since_ms": 0, "renewed_ms": 0}
    asker, other = (SessionRecord(id=each, expires_ms=2_000_000, want=want, **terms) for each in ("asker", "other"))
    draft = Draft(View(1_000_000, {META_KEY: None, session_key("asker"): asker, session_key("other"): other}))
    graph = WaitGraph(draft, asker, wants=wants)
    assert graph._want(asker if whose == "asker" else other) == (want if counts else None)
    if whose == "other":
        assert graph.waits("other") is counts


class Drawn:
    """Stands for the graph of waits: the needs are given."""

    def __init__(self, needs: dict[Node, list[Node]]) -> None:
        self.needs = {node: [Need([(each, (each[1],), 1)]) for each in of] for node, of in needs.items()}

    def session_needs(self, session: SessionRecord) -> list[Need]:
        return []

    def reach(self, root: Node, first: list[Need]) -> dict[Node, list[Need]]:
        return {root: first, **self.needs}


@pytest.mark.skipif(COMPILED, reason="compiled code takes no other graph")
@pytest.mark.parametrize(("back_to", "cycle"), [("b", ()), ("a", ("a", "b", "c")), ("place", ("a", "b", "c"))])
def test_who_is_stuck_behind_a_circle_is_not_in_it(back_to: str, cycle: tuple[str, ...]) -> None:
    """The place of `a` waits for `b`, and `b` for `c`, who waits for one of them."""
    place: Node = ("place", "place")
    sessions: dict[str, Node] = {each: ("session", each) for each in "abc"}
    graph: Any = Drawn({place: [sessions["b"]], sessions["b"]: [sessions["c"]], sessions["c"]: []})
    graph.needs[sessions["c"]] = [Need([(place if back_to == "place" else sessions[back_to], (back_to,), 1)])]
    terms: dict[str, Any] = {"ns": NS, "principal": "p", "ttl_ms": 9, "since_ms": 0, "renewed_ms": 0, "expires_ms": 9}
    asker = SessionRecord(id="a", owner="a", **terms)
    found = _cycle(graph, asker, [Need([(place, ("job",), 1)])], place)
    assert found == (("a", "job", *cycle[1:]) if cycle else ())
