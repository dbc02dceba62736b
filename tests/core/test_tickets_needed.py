"""A place needs the jobs that its session does not have. What the session has is not judged again: it may be done,
parked or smaller meanwhile."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import events as kinds
from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    Close,
    EndSession,
    Free,
    KeepTickets,
    Leave,
    Open,
    OpenSession,
    Release,
    SetAcl,
    SetPool,
    Transfer,
)
from dibs.core.records import EXCLUSIVE, SHARED, LockRecord, Ticket, lock_key, ticket_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.build import tries

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.core.events import Event

NS = "d"
HOUR_MS = 3_600_000


class World:
    """Sessions s0 to s3 on one store. `said` has the events of the last command."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.coordinator = Coordinator(self.store)
        self.said: list[Event] = []
        self.asked = 0
        for session in ("s0", "s1", "s2", "s3"):
            self.run(OpenSession(ns=NS, fresh_id=session, principal="p", owner=session, ttl_ms=HOUR_MS))

    def run(self, command: Command) -> Any:
        before = self.store.newest_seq()
        outcome = self.coordinator.one(command)
        self.said = self.store.events(before, 1_000)
        return outcome

    def terms(self, session: str, **fields: Any) -> dict[str, Any]:
        self.asked += 1
        fresh = {"fresh_lease_id": f"L{self.asked}", "owner": session, "session": session, "ttl_ms": 0}
        return {"ns": NS, "principal": "p", **fresh, **fields}

    def claim(self, session: str, name: str, **fields: Any) -> Any:
        return self.run(Acquire(name=name, **self.terms(session, **fields)))

    def claim_all(self, session: str, *names: str, **fields: Any) -> Any:
        return self.run(AcquireAll(names=names, **self.terms(session, wait=True, **fields)))

    def release(self, session: str, name: str, **fields: Any) -> Any:
        return self.run(Release(ns=NS, name=name, principal="p", session=session, **fields))

    def set_pool(self, name: str, slots: int) -> Any:
        return self.run(SetPool(ns=NS, name=name, principal="op", slots=slots))

    def lock(self, name: str) -> LockRecord:
        found = self.store.read([lock_key(NS, name)]).records[lock_key(NS, name)].record
        return found if isinstance(found, LockRecord) else LockRecord(ns=NS, name=name)

    def ticket(self, name: str, number: int) -> Ticket | None:
        key = ticket_key(NS, name, number)
        found = self.store.read([key]).records[key].record
        return found if isinstance(found, Ticket) else None

    def owners(self, name: str) -> list[str | None]:
        return [holder.session for holder in self.lock(name).holders]


# How s1 has "p" beside s0, and what it asks for with it.
SHARES: dict[str, dict[str, Any]] = {
    "a slot": {"slots": 2},
    "a share": {"mode": SHARED},
    "units": {"units": 2},
}


# How s2 has all of "b".
ALONE: dict[str, dict[str, Any]] = {"a slot": {"units": 2}, "a share": {"mode": EXCLUSIVE}, "units": {}}


def spoil_done(world: World) -> None:
    world.release("s0", "p", done_ms=HOUR_MS)


def spoil_parked(world: World) -> None:
    world.release("s0", "p", failed=True)


def spoil_list(world: World) -> None:
    world.run(SetAcl(ns=NS, name="p", principal="op", acl=("somebody",), admin=True))


def spoil_pool(world: World) -> None:
    world.set_pool("p", 1)


SPOILS = {"done": spoil_done, "parked": spoil_parked, "for others": spoil_list, "smaller": spoil_pool}
CASES = [(share, spoil) for share in SHARES for spoil in SPOILS if (share, spoil) != ("a share", "smaller")]


def before(share: str) -> tuple[World, dict[str, Any]]:
    """s0 and s1 have "p", s2 has "b"."""
    world, terms = World(), SHARES[share]
    if share == "units":
        world.set_pool("p", 4)
        world.set_pool("b", 2)
    for session, name, more in (("s0", "p", {}), ("s1", "p", {}), ("s2", "b", ALONE[share])):
        granted = world.claim(session, name, max_attempts=1, **{**terms, **more})
        assert isinstance(granted, outcomes.Granted)
    return world, terms


@pytest.mark.fault("F-272")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("share", "spoil"), CASES)
def test_a_place_stays_when_a_job_that_its_session_has_is_for_nobody_else_any_more(
    share: str, spoil: str, closed: bool
) -> None:
    world, terms = before(share)
    if closed:
        world.run(Close(ns=NS, name="else", principal="op", reason="", length_ms=HOUR_MS))
    SPOILS[spoil](world)
    place = world.claim_all("s1", "b", "p", **terms)
    assert isinstance(place, outcomes.Queued)
    assert world.ticket("b", place.ticket) is not None
    newcomer = world.claim("s3", "b", wait=True, **{**terms, "mode": EXCLUSIVE})
    assert (newcomer.position, world.ticket("b", place.ticket) is None) == (2, False)
    world.release("s2", "b")
    assert world.owners("b")[0] == "s1"


@pytest.mark.fault("F-272")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize(("share", "spoil"), CASES)
def test_the_place_that_exists_stays_and_is_served(share: str, spoil: str) -> None:
    world, terms = before(share)
    place = world.claim_all("s1", "b", "p", **terms)
    SPOILS[spoil](world)
    assert not [event for event in world.said if event.kind == kinds.LEFT]
    again = world.claim_all("s1", "b", "p", ticket=place.ticket, ticket_id=place.ticket_id, **terms)
    assert isinstance(again, outcomes.Queued)
    world.release("s2", "b")
    assert world.owners("b")[0] == "s1"


@pytest.mark.fault("F-272")
@pytest.mark.parametrize("spoil", ["done", "parked"])
def test_a_place_goes_once_its_session_has_lost_the_job_that_is_for_nobody(spoil: str) -> None:
    world, terms = before("a slot")
    place = world.claim_all("s1", "b", "p", **terms)
    SPOILS[spoil](world)
    world.release("s1", "p", uncounted=True)
    world.claim("s3", "b", wait=True, slots=2)
    assert world.ticket("b", place.ticket) is None
    answer = world.claim_all("s1", "b", "p", ticket=place.ticket, ticket_id=place.ticket_id, **terms)
    assert isinstance(answer, outcomes.Refused)


@pytest.mark.fault("F-273")
@pytest.mark.promise("queue:newest")
def test_who_would_close_a_circle_by_replacing_its_own_place_is_refused_and_keeps_it() -> None:
    world = World()
    for session, name in (("s0", "x"), ("s1", "y")):
        world.claim(session, name)
    older = world.claim("s1", "x", wait=True, replaces="g", request_key="one")
    world.claim_all("s2", "x", "y")
    answer = world.claim("s1", "x", wait=True, replaces="g", request_key="two")
    assert isinstance(answer, outcomes.Deadlock)
    assert answer.cycle[0] == "s1"
    assert older.ticket in world.lock("x").line
    assert world.said == []


NAMES = ("a", "b", "p", "q")
SESSIONS = ("s0", "s1", "s2", "s3")
FEATURES = ("slots", "shared", "units", "done", "parked", "closed", "pools", "lists", "replaces", "transfer", "ends")
HOLDS: dict[
    str, Callable[[LockRecord, int], bool]
] = {  # what a job has that a place is dropped for, by the reason that is told
    "done": lambda lock, now_ms: lock.done is not None and now_ms < lock.done.until_ms,
    "parked": lambda lock, now_ms: lock.parked,
    "pool changed": lambda lock, now_ms: True,
    "forbidden": lambda lock, now_ms: bool(lock.acl),
}


class Walk(World):
    """Claims of several jobs beside slots, shares, units, pools, done marks, parked jobs, closures, access lists,
    groups. Each walk has a random half of them, so that pairs meet often."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.chance = Random(seed)
        self.on = {each for each in FEATURES if self.chance.random() < 0.5}
        self.outcome: Any = None
        self.queued = self.kept = 0

    def step(self) -> None:
        chance = self.chance
        session, name = chance.choice(SESSIONS), chance.choice(NAMES)
        acts = ["ask", "ask", "ask all", "ask all", "let go", "let go", "keep", *(sorted(self.on & RARE.keys()))]
        act = chance.choice(acts)
        locks, places = self.state()
        if act == "ask":
            self.outcome = self.claim(session, name, wait=chance.random() < 0.6, **self.wishes())
        elif act == "ask all":
            self.outcome = self.claim_all(session, *chance.sample(NAMES, 2), **self.wishes())
        elif act == "let go":
            self.outcome = self.let_go(session, name)
        elif act == "keep":
            kept = tuple([(NS, *place) for place in places])
            self.outcome = self.run(KeepTickets(tickets=kept))
        else:
            self.outcome = self.run(RARE[act](chance, session, name))
        self.check(locks, places)
        self.clock.advance(chance.choice((1, 1, 500, 4_000)))

    def wishes(self) -> dict[str, Any]:
        chance, on = self.chance, self.on
        wishes: dict[str, Any] = {"max_attempts": 1 if "parked" in on else 0}
        if "slots" in on and chance.random() < 0.7:
            wishes["slots"] = 2
        if "shared" in on and chance.random() < 0.4:
            wishes |= {"mode": SHARED, "slots": 0}
        elif "units" in on and chance.random() < 0.4:
            wishes["units"] = 2
        if "replaces" in on and chance.random() < 0.3:
            wishes["replaces"] = "g"
        if chance.random() < 0.7:
            wishes["request_key"] = f"k{self.asked if chance.random() < 0.8 else self.asked // 2}"
        return wishes

    def let_go(self, session: str, name: str) -> Any:
        how: dict[str, Any] = {}
        if "done" in self.on and self.chance.random() < 0.5:
            how = {"done_ms": 10_000}
        elif "parked" in self.on and self.chance.random() < 0.4:
            how = {"failed": True}
        return self.release(session, name, **how)

    def state(self) -> tuple[dict[str, LockRecord], dict[tuple[str, int], Ticket]]:
        locks = {name: self.lock(name) for name in NAMES}
        found = [self.ticket(name, number) for name, lock in locks.items() for number in lock.line]
        return locks, {(each.name, each.number): each for each in found if each is not None}

    def check(self, locks: dict[str, LockRecord], places: dict[tuple[str, int], Ticket]) -> None:
        after, left = self.state()
        if isinstance(self.outcome, outcomes.Queued):
            assert (self.outcome.name, self.outcome.ticket) in left
            self.queued += 1
        assert len(self.said) < 100
        taken = {(event.job, event.ticket) for event in self.said if event.kind == kinds.QUEUED}
        for event in self.said:
            if event.kind != kinds.LEFT or event.reason == "granted otherwise":
                continue
            assert (event.job, event.ticket) not in taken, event
            ticket = places[event.job, event.ticket]
            if event.reason in HOLDS:
                assert self.is_pointless(ticket, event.reason, locks, after), event
        for ticket in left.values():
            if ticket.whole and any(_has(after[part.name], ticket) for part in ticket.whole):
                self.kept += 1

    def is_pointless(
        self, ticket: Ticket, reason: str, locks: dict[str, LockRecord], after: dict[str, LockRecord]
    ) -> bool:
        """Whether a job of which this is true is not the session's, before or after the command."""
        parts = ticket.whole or (ticket,)
        return any(
            not (_has(locks[part.name], ticket) and _has(after[part.name], ticket))
            and HOLDS[reason](after[part.name], self.clock())
            for part in parts
        )


def _has(lock: LockRecord, ticket: Ticket) -> bool:
    return any((each.session, each.mode) == (ticket.session, ticket.mode) for each in lock.holders)


def close(chance: Random, session: str, name: str) -> Command:
    if chance.random() < 0.5:
        return Open(ns=NS, name=name, principal="op")
    return Close(ns=NS, name=chance.choice((name, "else")), principal="op", reason="", length_ms=5_000)


def share_out(chance: Random, session: str, name: str) -> Command:
    return SetPool(ns=NS, name=name, principal="op", slots=chance.choice((None, 1, 2, 3)))


def set_list(chance: Random, session: str, name: str) -> Command:
    return SetAcl(ns=NS, name=name, principal="op", acl=chance.choice(((), ("other",))), admin=True)


def hand_over(chance: Random, session: str, name: str) -> Command:
    fresh = f"T{chance.random()}"
    to = chance.choice(SESSIONS)
    return Transfer(ns=NS, name=name, principal="p", session=session, fresh_lease_id=fresh, to_session=to)


def free(chance: Random, session: str, name: str) -> Command:
    return Free(ns=NS, name=name, principal="op")


def end(chance: Random, session: str, name: str) -> Command:
    if chance.random() < 0.3:
        return EndSession(session=session, principal="p")
    return OpenSession(ns=NS, fresh_id=session, principal="p", owner=session, ttl_ms=HOUR_MS)


RARE = {"closed": close, "pools": share_out, "lists": set_list, "transfer": hand_over, "parked": free, "ends": end}


@pytest.mark.fault("F-272")
@pytest.mark.promise("queue:fifo")
def test_in_random_walks_no_place_is_dropped_for_a_job_that_its_session_has() -> None:
    queued = kept = 0
    for number in range(tries(60, 2_000)):
        walk = Walk(f"needed {number}")
        try:
            for _ in range(80):
                walk.step()
        except AssertionError as error:
            raise AssertionError(f"walk {number}, {sorted(walk.on)}: {walk.outcome}") from error
        queued, kept = queued + walk.queued, kept + walk.kept
    assert min(queued, kept) > tries(60, 2_000)  # the walks meet what they are for


@pytest.mark.fault("F-378")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("group", [None, "main"])
def test_a_place_of_which_a_part_was_stored_takes_no_other_with_it(group: str | None, repeats: bool) -> None:
    """A git remote that is killed may have a part of a push: here all but what is of "a"."""
    world = World()
    for name in ("a", "b"):
        world.claim("s0", name)
    world.claim("s3", "b", wait=True)  # so the numbers of one place differ
    before = {lock_key(NS, "a"): world.lock("a"), ticket_key(NS, "a", 1): None}
    ask = AcquireAll(names=("a", "b"), **world.terms("s1", wait=True, replaces=group))
    first = world.run(ask)
    read = world.store.read(list(before))
    world.store.commit({key: found.version for key, found in read.records.items()}, before, ())
    second = world.run(ask) if repeats else world.claim_all("s2", "a", "b", replaces=group)
    assert isinstance(second, outcomes.Queued)
    assert (first.ticket, second.ticket) == (1, 1)  # the number is given again
    world.run(Leave(ns=NS, name="b", principal="p", ticket=2, ticket_id=first.ticket_id))
    kept = world.ticket("a", 1)
    assert kept is not None
    assert kept.lease_id == second.ticket_id
    assert world.lock("a").line == (1,)
