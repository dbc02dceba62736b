"""How much a principal may have: limits are exact, and the usage record says what the records say, whatever happens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import lease_outcomes, outcomes, session_outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    EndSession,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    Renew,
    Sweep,
    Transfer,
)
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.records import META_KEY, USAGE_PREFIX, LockRecord, SessionRecord, Ticket, lock_key
from dibs.core.service.credentials import Usage
from dibs.engine.coordinator import Coordinator
from dibs.engine.queries import disagreeing, recount
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.core.outcomes import Outcome

NS = "default"
LIMITS = {"p": (4, 2, 2), "q": (3, 0, 1), "free": (0, 0, 0)}  # held, waiting, sessions
JOBS = ("a", "b", "c", "d", "path:x", "path:x/y", "repo:r")


class Scene:
    """A store, and principals of whom some have limits."""

    def __init__(self, limits: dict[str, tuple[int, int, int]] | None = None) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = MemoryStore(self.clock)
        self.coordinator = Coordinator(self.store)
        self.limits = dict(LIMITS if limits is None else limits)
        self.ids = iter(f"id-{number}" for number in range(10**9))

    def run(self, command: Any) -> Outcome:
        return self.coordinator.one(command)

    def payer(self, who: str) -> str | None:
        return f"/{who}" if any(self.limits[who]) else None

    def terms(self, who: str, **more: Any) -> dict[str, Any]:
        held, waiting, _ = self.limits[who]
        made = {"ns": NS, "principal": who, "owner": who, "ttl_ms": 10_000, "fresh_lease_id": next(self.ids)}
        return {**made, "payer": self.payer(who), "held_max": held, "waiting_max": waiting, **more}

    def claim(self, who: str, name: str, **more: Any) -> Outcome:
        return self.run(Acquire(name=name, **self.terms(who, **more)))

    def open(self, who: str) -> Outcome:
        made = OpenSession(fresh_id=next(self.ids), principal=who, owner=who, ttl_ms=20_000, ns=NS)
        return self.run(made.replace(payer=self.payer(who), sessions_max=self.limits[who][2]))

    def usage(self, who: str) -> tuple[int, int, int]:
        key = f"{USAGE_PREFIX}/{who}"
        found = self.store.read((key,)).records[key].record
        return (found.held, found.waiting, found.sessions) if isinstance(found, Usage) else (0, 0, 0)

    def counted(self, who: str) -> tuple[int, int, int]:
        """The dumb way: all records, one after another."""
        held = waiting = sessions = 0
        for _, found in self.store.scan("", limit=10**6):
            record = found.record
            if isinstance(record, LockRecord):
                held += len([each for each in record.holders if each.principal == who])
            elif isinstance(record, Ticket):
                waiting += record.principal == who
            elif isinstance(record, SessionRecord):
                sessions += record.principal == who and not record.ended_ms
        return held, waiting, sessions

    def leases(self) -> Iterator[tuple[LockRecord, Any]]:
        for _, found in self.store.scan("lock/", limit=10**6):
            assert isinstance(found.record, LockRecord)
            for holder in found.record.holders:
                yield found.record, holder

    def sessions(self) -> list[SessionRecord]:
        found = [each.record for _, each in self.store.scan("session/", limit=10**6)]
        return [each for each in found if isinstance(each, SessionRecord) and not each.ended_ms]


class Life(Scene):
    """A random life, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)

    def step(self) -> Outcome | None:
        return self.dice.choice((self.take, self.take, self.take, self.let_go, self.keep, self.other, self.time))()

    def take(self) -> Outcome | None:
        who = self.dice.choice(tuple(self.limits))
        mine = [each.id for each in self.sessions() if each.principal == who]
        terms = self.terms(who, session=self.dice.choice([None, *mine]))
        if terms["session"] is not None and self.dice.random() < 0.5:
            terms["ttl_ms"] = 0
        wait = self.dice.random() < 0.5
        names = tuple(sorted(self.dice.sample(JOBS[:4], 2)))
        kind = self.dice.randrange(4)
        if kind == 0:
            return self.run(AcquireAny(names=names, **terms))
        if kind == 1:
            return self.run(AcquireAll(names=names, wait=wait, **terms))
        return self.run(Acquire(name=self.dice.choice(JOBS), wait=wait, **terms))

    def let_go(self) -> Outcome | None:
        held = list(self.leases())
        if not held:
            return None
        lock, holder = self.dice.choice(held)
        proof = {"ns": NS, "name": lock.name, "lease_id": holder.lease_id, "principal": holder.principal}
        kind = self.dice.randrange(4)
        if kind == 0:
            return self.run(Break(ns=NS, name=lock.name, principal="ops", reason="why"))
        if kind == 1:
            heirs = [each.id for each in self.sessions()]
            to = self.dice.choice([None, *heirs])
            return self.run(Transfer(**proof, fresh_lease_id=next(self.ids), to_owner="heir", to_session=to))
        return self.run(Release(**proof, failed=self.dice.random() < 0.3))

    def keep(self) -> Outcome | None:
        held = list(self.leases())
        if held and self.dice.random() < 0.5:
            lock, holder = self.dice.choice(held)
            renew = Renew(ns=NS, name=lock.name, lease_id=holder.lease_id, principal=holder.principal)
            return self.run(renew.replace(payer=self.payer(holder.principal)))
        open_ones = self.sessions()
        if not open_ones:
            return None
        session = self.dice.choice(open_ones)
        keep = KeepSession(session=session.id, principal=session.principal)
        return self.run(keep.replace(payer=self.payer(session.principal)))

    def other(self) -> Outcome | None:
        kind = self.dice.randrange(3)
        if kind == 0:
            return self.open(self.dice.choice(tuple(self.limits)))
        if kind == 1:
            open_ones = self.sessions()
            if not open_ones:
                return None
            session = self.dice.choice(open_ones)
            return self.run(EndSession(session=session.id, principal=None, dead=self.dice.random() < 0.5))
        tickets = [found.record for _, found in self.store.scan("ticket/", limit=10**6)]
        if not tickets:
            return None
        ticket = self.dice.choice(tickets)
        assert isinstance(ticket, Ticket)
        proof: Any = {"principal": ticket.principal, "ticket": ticket.number, "ticket_id": ticket.lease_id}
        return self.run(Leave(ns=NS, name=ticket.name, **proof))

    def time(self) -> Outcome | None:
        self.clock.advance(self.dice.choice((500, 3_000, 16_000, 25_000)))
        for key in self.store.due(1_000).keys:
            self.run(Sweep(key=key))
        if self.dice.random() < 0.1:
            recount(self.store, f"/{self.dice.choice(('p', 'q'))}")
        return None


@pytest.mark.promise("quota")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_the_usage_record_says_what_the_records_say(seed: int) -> None:
    life = Life(seed)
    refused = 0
    for number in range(150):
        before = {who: life.counted(who) for who in life.limits}
        outcome = life.step()
        refused += isinstance(outcome, outcomes.QuotaExceeded | outcomes.TooMany)
        for who, (held_max, waiting_max, sessions_max) in life.limits.items():
            held, waiting, sessions = life.counted(who)
            expected = (held, waiting, sessions) if life.payer(who) else (0, 0, 0)
            assert life.usage(who) == expected, f"seed {seed}, step {number}: {who} after {outcome}"
            grew = held + waiting > sum(before[who][:2])
            given = isinstance(outcome, lease_outcomes.Transferred)  # what is handed over is never refused
            assert not held_max or not grew or given or held + waiting <= held_max, (seed, number, outcome)
            assert not waiting_max or waiting <= max(waiting_max, before[who][1]), (seed, number, outcome)
            assert not sessions_max or sessions <= sessions_max, (seed, number, outcome)
    assert disagreeing(life.store) == []


def test_random_lives_meet_their_limits() -> None:
    life = Life(1)
    met = [type(life.step()).__name__ for _ in range(1_500)]
    assert {"QuotaExceeded", "TooMany", "Granted", "Queued", "Transferred"} <= set(met)


@pytest.mark.promise("quota")
@pytest.mark.parametrize(
    ("limits", "asks", "told"),
    [
        ((1, 0, 0), [("a", False), ("b", False)], ["Granted", "QuotaExceeded"]),
        ((2, 0, 0), [("a", False), ("b", False), ("c", False)], ["Granted", "Granted", "QuotaExceeded"]),
        # A place in a line becomes a job, and counts as one from the start.
        ((1, 0, 0), [("taken", True), ("a", False)], ["Queued", "QuotaExceeded"]),
        ((1, 0, 0), [("a", False), ("taken", True)], ["Granted", "QuotaExceeded"]),
        ((0, 1, 0), [("taken", True), ("taken-2", True), ("a", False)], ["Queued", "TooMany", "Granted"]),
        # Who cannot have it anyway is told who has it.
        ((1, 0, 0), [("a", False), ("taken", False)], ["Granted", "Held"]),
    ],
)
def test_a_limit_is_met_exactly(limits: tuple[int, int, int], asks: list[tuple[str, bool]], told: list[str]) -> None:
    scene = Scene({"p": limits, "other": (0, 0, 0)})
    for name in ("taken", "taken-2"):
        scene.claim("other", name)
    assert [type(scene.claim("p", name, wait=wait)).__name__ for name, wait in asks] == told


@pytest.mark.promise("quota")
def test_all_of_several_are_counted_together() -> None:
    scene = Scene({"p": (2, 0, 0)})
    refused = scene.run(AcquireAll(names=("a", "b", "c"), **scene.terms("p")))
    assert isinstance(refused, outcomes.Refused)
    assert [type(each) for each in refused.outcomes] == [outcomes.QuotaExceeded]
    assert scene.counted("p") == scene.usage("p") == (0, 0, 0)
    assert isinstance(scene.run(AcquireAll(names=("a", "b"), **scene.terms("p"))), outcomes.GrantedAll)
    assert scene.usage("p") == (2, 0, 0)


def test_a_hold_that_is_asked_for_again_is_not_counted_again() -> None:
    scene = Scene({"p": (1, 0, 0)})
    terms = scene.terms("p", request_key="k")
    for _ in range(3):
        assert isinstance(scene.run(Acquire(name="a", **terms)), outcomes.Granted)
    assert scene.usage("p") == (1, 0, 0)


@pytest.mark.promise("quota")
def test_who_has_more_than_a_new_limit_loses_nothing_and_gets_no_more() -> None:
    scene = Scene({"p": (0, 0, 0)})
    leases = [scene.claim("p", name) for name in "abc"]
    scene.limits["p"] = (2, 0, 0)
    recount(scene.store, "/p")
    assert scene.usage("p") == (3, 0, 0)
    assert isinstance(scene.claim("p", "d"), outcomes.QuotaExceeded)
    assert scene.counted("p") == (3, 0, 0)
    for name, granted in zip("ab", leases, strict=False):
        assert isinstance(granted, outcomes.Granted)
        scene.run(Release(ns=NS, name=name, principal="p", lease_id=granted.lease.lease_id))
    assert isinstance(scene.claim("p", "d"), outcomes.Granted)
    assert isinstance(scene.claim("p", "e"), outcomes.QuotaExceeded)


@pytest.mark.promise("quota")
def test_what_was_taken_before_the_limit_was_known_counts_from_its_next_heartbeat() -> None:
    """A server that has not heard of a new limit grants without a charge."""
    scene = Scene({"p": (2, 0, 0)})
    late = scene.claim("p", "a", payer=None)
    assert isinstance(late, outcomes.Granted)
    assert scene.usage("p") == (0, 0, 0)
    renew = Renew(ns=NS, name="a", principal="p", lease_id=late.lease.lease_id, payer="/p")
    for _ in range(2):
        scene.run(renew)
        assert scene.usage("p") == (1, 0, 0)
    scene.run(Release(ns=NS, name="a", principal="p", lease_id=late.lease.lease_id))
    assert scene.usage("p") == (0, 0, 0)


@pytest.mark.promise("quota")
def test_a_record_that_disagrees_is_found_and_counted_anew() -> None:
    """Somebody ended a hold in the store by hand."""
    scene = Scene({"p": (5, 0, 0)})
    for name in "ab":
        scene.claim("p", name)
    key = lock_key(NS, "a")
    found = scene.store.read((key,)).records[key]
    assert isinstance(found.record, LockRecord)
    scene.store.commit({key: found.version}, {key: found.record.replace(holders=())}, ())
    assert scene.usage("p") == (2, 0, 0)
    assert disagreeing(scene.store) == ["/p"]
    recount(scene.store, "/p")
    assert scene.usage("p") == scene.counted("p") == (1, 0, 0)
    assert disagreeing(scene.store) == []


def test_a_count_that_is_interrupted_is_finished_by_the_next() -> None:
    from dibs.core.commands import BeginCount, CountUsage

    scene = Scene({"p": (5, 0, 0)})
    leases = {name: scene.claim("p", name) for name in "abc"}
    scene.run(BeginCount(payer="/p"))
    scene.run(CountUsage(key=lock_key(NS, "a"), payer="/p"))
    granted = leases["b"]
    assert isinstance(granted, outcomes.Granted)
    scene.run(Release(ns=NS, name="b", principal="p", lease_id=granted.lease.lease_id))  # of the older count
    assert scene.usage("p") == (1, 0, 0)
    recount(scene.store, "/p")
    assert scene.usage("p") == scene.counted("p") == (2, 0, 0)


def test_credentials_of_one_name_for_two_namespaces_are_counted_apart() -> None:
    scene = Scene({"p": (1, 0, 0)})
    for ns in ("one", "two"):
        assert isinstance(scene.claim("p", "a", ns=ns, payer=f"{ns}/p"), outcomes.Granted)
        assert isinstance(scene.claim("p", "b", ns=ns, payer=f"{ns}/p"), outcomes.QuotaExceeded)
    recount(scene.store, "one/p")
    assert disagreeing(scene.store) == []


@pytest.mark.promise("quota")
def test_a_principal_without_a_limit_has_no_record_looked_at_or_written() -> None:
    acquire = Acquire(ns=NS, name="a", principal="p", owner="o", ttl_ms=1_000, fresh_lease_id="l")
    view = View(0, {META_KEY: None, lock_key(NS, "a"): None})
    decision = decide(view, acquire)
    assert view.seen == {META_KEY, lock_key(NS, "a")}
    assert decision.writes.keys() == {lock_key(NS, "a")}
    assert "charge" not in str(decision.writes[lock_key(NS, "a")])


@pytest.mark.promise("quota")
def test_a_limit_of_nothing_is_no_limit() -> None:
    """Of a principal with a limit of something else."""
    scene = Scene({"p": (9, 0, 0), "q": (0, 9, 0), "r": (0, 0, 9)})
    for who in scene.limits:
        for number in range(3):
            assert isinstance(scene.open(who), session_outcomes.SessionState), (who, number)
            assert isinstance(scene.claim(who, f"{who}{number}"), outcomes.Granted), (who, number)
            assert isinstance(scene.claim(who, "p0", wait=True), outcomes.Queued | outcomes.Granted), (who, number)
