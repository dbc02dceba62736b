"""Pools, slots and units: random walks that the dumb model predicts, and what single steps show."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    Leave,
    OpenSession,
    Release,
    Renew,
    SetPool,
    Transfer,
)
from dibs.core.events import ACQUIRED, LEFT, POOL_SET
from dibs.core.limits import TICKET_MS
from dibs.core.records import EXCLUSIVE, SHARED, LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import tries
from tests.core.test_coordination import NS, WORDS, Predicted, granted_in
from tests.models.queue import Run

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Holder

JOBS = ("gpu", "gpu", "a", "b")
POOLS = ("gpu", "a")
CALLERS = ("s1", "s2", "s3", None, None)


class Walk(Predicted):
    """Many claims, units and changes of pools on few jobs, each answer compared with the model's."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        ends_ms = self.now_ms + 60_000
        self.ask(OpenSession(ns=NS, fresh_id="s3", principal="team", owner="s3", ttl_ms=60_000))
        self.world.runs["s3"] = Run("team", "s3", 60_000, ends_ms)

    def asked(self, names: tuple[str, ...]) -> dict[str, Any]:
        chance = self.chance
        session = chance.choice(CALLERS)
        shared = chance.random() < 0.08
        return {
            "ns": NS,
            "principal": "team",
            "owner": session or "nobody",
            "fresh_lease_id": self.fresh_id(),
            "session": session,
            "ttl_ms": chance.choice((5_000, 60_000, 3_600_000)),
            "mode": SHARED if shared else EXCLUSIVE,
            "slots": chance.choice((0, 0, 0, 0, 2, 3)) if len(names) == 1 and not shared else 0,
            "units": chance.choice((1, 1, 1, 2, 3)) if len(names) == 1 and not shared else 1,
            "request_key": None,
            "delay_ms": 0,
            "max_attempts": 0,
        }

    def step(self) -> None:
        getattr(self, self.chance.choice(_STEPS))()
        self.to(self.now_ms + 1)  # what a poll was refused for is older than what came after it

    def one(self) -> None:
        job = self.chance.choice(JOBS)
        asked = self.asked((job,))
        self.claim(Acquire(name=job, wait=self.chance.random() < 0.8, **asked), self.wish((job,), asked))

    def all(self) -> None:
        names = tuple(sorted({self.chance.choice(JOBS), self.chance.choice(JOBS)}))
        asked = self.asked(names)
        if len(names) > 1:
            self.claim(AcquireAll(names=names, wait=self.chance.random() < 0.8, **asked), self.wish(names, asked))

    def some(self) -> None:
        count = self.chance.randint(1, 3)
        asked = self.asked(POOLS)
        names = ("b", "a", "gpu")
        expected, _ = self.world.claim_any(self.wish(names, asked), count)
        outcome = self.ask(AcquireAny(names=names, count=count, **asked))
        assert WORDS[type(outcome)] == expected
        assert len(granted_in(outcome)) in (0, count)
        self.agree()

    def let_go(self) -> None:
        if self.world.holds:
            hold = self.chance.choice(self.world.holds)
            job, lease = hold.job, hold.wish.lease
            assert self.world.release(job, "team", lease, None) == "released"
            self.ask(Release(ns=NS, name=job, principal="team", lease_id=lease))
            self.agree()

    def hand_over(self) -> None:
        if self.world.holds:
            hold = self.chance.choice(self.world.holds)
            job, lease, heir, fresh = hold.job, hold.wish.lease, self.chance.choice(CALLERS), self.fresh_id()
            expected = self.world.transfer(job, "team", lease, None, heir, fresh)
            outcome = self.ask(
                Transfer(
                    ns=NS,
                    name=job,
                    principal="team",
                    fresh_lease_id=fresh,
                    lease_id=lease,
                    to_session=heir,
                    to_owner=None if heir else "heir",
                )
            )
            assert WORDS[type(outcome)] == expected
            self.agree()

    def pool(self) -> None:
        job, slots = self.chance.choice(POOLS), self.chance.choice((None, 0, 1, 2, 3, 3, 4))
        self.world.set_pool(job, slots)
        outcome = self.ask(SetPool(ns=NS, name=job, principal="op", slots=slots))
        assert isinstance(outcome, lease_outcomes.PoolSet)
        self.agree()

    def leave(self) -> None:
        if self.world.line:
            ticket_id = self.chance.choice(self.world.line).wish.lease
            names, number, _ = next(place for place in self.places if place[2] == ticket_id)
            assert self.world.leave(ticket_id, "team")
            self.ask(Leave(ns=NS, name=names[0], principal="team", ticket=number, ticket_id=ticket_id))
            self.agree()

    def take_away(self) -> None:
        job = self.chance.choice(JOBS)
        self.world.break_(job)
        self.ask(Break(ns=NS, name=job, principal="op", reason="why"))
        self.agree()

    def time(self) -> None:
        self.to(self.now_ms + self.chance.choice((500, TICKET_MS)))


_STEPS = (*["one"] * 12, *["all"] * 2, *["let_go"] * 4, *["pool"] * 2)
_STEPS += ("some", "hand_over", "leave", "take_away", "time")


@pytest.mark.promise("excl", "units", "slot:number", "pool:change", "queue:fifo", "deadlock", "all-or-nothing")
@pytest.mark.parametrize("part", range(2))
def test_every_answer_about_a_pool_is_the_one_the_model_gives(part: int) -> None:
    for seed in range(tries(60, 5_000)):
        walk = Walk(Random(f"{part}/{seed}"))
        try:
            for _ in range(40):
                walk.step()
        except AssertionError as error:
            error.add_note(f"part {part}, seed {seed}")
            raise


# Single steps.


class Pool:
    """One store, and claims by name: `claim` answers with the lease or the word of the refusal."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms)
        self.coordinator = Coordinator(self.store)
        self.fresh = 0

    def set(self, slots: int | None, job: str = "gpu") -> lease_outcomes.PoolSet:
        outcome = self.coordinator.one(SetPool(ns=NS, name=job, principal="op", slots=slots))
        assert isinstance(outcome, lease_outcomes.PoolSet)
        return outcome

    def claim(self, owner: str, job: str = "gpu", *, wait: bool = False, **terms: Any) -> Outcome:
        self.fresh += 1
        asked: dict[str, Any] = {
            "principal": "team",
            "ttl_ms": 60_000,
            "fresh_lease_id": f"lease-{self.fresh}",
            **terms,
        }
        return self.coordinator.one(Acquire(ns=NS, name=job, owner=owner, wait=wait, **asked))

    def take(self, owner: str, job: str = "gpu", **terms: Any) -> Holder:
        outcome = self.claim(owner, job, **terms)
        assert isinstance(outcome, outcomes.Granted), outcome
        return outcome.lease

    def release(self, lease: Holder, job: str = "gpu") -> None:
        self.coordinator.one(Release(ns=NS, name=job, principal="team", lease_id=lease.lease_id))

    def lock(self, job: str = "gpu") -> LockRecord:
        found = self.store.read([lock_key(NS, job)]).records[lock_key(NS, job)].record
        assert isinstance(found, LockRecord)
        return found

    def owners(self) -> dict[str, tuple[int, ...]]:
        return {holder.owner: holder.slot_numbers for holder in self.lock().holders}


def refused_as(outcome: Outcome) -> tuple[str, str, str]:
    assert isinstance(outcome, outcomes.Differs), outcome
    return outcome.what, outcome.has, outcome.asked


@pytest.mark.promise("pool:operator")
def test_claims_of_a_pool_need_not_name_its_slots_and_name_no_other_number() -> None:
    pool = Pool()
    assert (pool.set(2).was, pool.set(2).was) == (None, 2)
    assert [pool.take(owner).slot_numbers for owner in ("a", "b")] == [(0,), (1,)]
    assert isinstance(pool.claim("c"), outcomes.Held)
    assert isinstance(pool.claim("c", slots=2), outcomes.Held)
    for slots in (1, 3):
        assert refused_as(pool.claim("c", slots=slots)) == ("slots", "2", str(slots))
    assert refused_as(pool.claim("c", mode=SHARED)) == ("mode", "exclusive", "shared")
    assert [event.reason for event in pool.store.events(0, 10) if event.kind == POOL_SET] == ["2 slots"]


@pytest.mark.promise("pool:change")
def test_with_fewer_slots_nobody_is_thrown_out_and_the_next_comes_when_enough_have_left() -> None:
    pool = Pool()
    pool.set(3)
    first, second, third = [pool.take(owner) for owner in "abc"]
    changed = pool.set(1)
    assert (changed.taken, changed.was) == (3, 3)
    assert isinstance(pool.claim("d", wait=True), outcomes.Queued)
    pool.release(first)
    pool.release(second)
    assert pool.owners() == {"c": (2,)}, "a number above the count stays until its owner leaves"
    pool.release(third)
    assert pool.owners() == {"d": (0,)}


@pytest.mark.promise("deadlock")
@pytest.mark.parametrize(("slots", "left"), [(1, ["deadlock"]), (3, [])])
def test_a_pool_with_fewer_slots_may_close_a_circle_and_a_place_in_it_is_given_up(slots: int, left: list[str]) -> None:
    pool = Pool()
    for one in ("s1", "s2"):
        pool.coordinator.one(OpenSession(ns=NS, fresh_id=one, principal="team", owner=one, ttl_ms=60_000))
    pool.set(2)
    pool.take("s1", "a", session="s1")
    pool.take("s2", session="s2")
    pool.take("free")  # it may go, so nobody is stuck
    assert isinstance(pool.claim("s1", wait=True, session="s1"), outcomes.Queued)
    assert isinstance(pool.claim("s2", "a", wait=True, session="s2"), outcomes.Queued)
    pool.set(slots)  # of one slot both owners must leave, and one of them waits
    assert [event.reason for event in pool.store.events(0, 100) if event.kind == LEFT] == left


@pytest.mark.promise("pool:operator")
def test_an_owner_from_before_a_pool_of_one_slot_cannot_share_it() -> None:
    pool = Pool()
    lease = pool.take("a")
    pool.set(1)
    share = Renew(ns=NS, name="gpu", principal="team", lease_id=lease.lease_id, mode=SHARED)
    assert refused_as(pool.coordinator.one(share)) == ("mode", "exclusive in 1 slots", "shared")


@pytest.mark.promise("pool:change")
def test_more_slots_serve_the_line_in_the_same_decision() -> None:
    pool = Pool()
    pool.set(1)
    pool.take("a")
    for owner in "bcd":
        assert isinstance(pool.claim(owner, wait=True), outcomes.Queued)
    pool.set(3)
    assert pool.owners() == {"a": (0,), "b": (1,), "c": (2,)}


@pytest.mark.promise("pool:pause")
def test_a_paused_pool_says_so_keeps_its_line_and_goes_on_where_it_was() -> None:
    pool = Pool()
    pool.set(1)
    lease = pool.take("a")
    assert isinstance(pool.claim("b", wait=True), outcomes.Queued)
    pool.set(0)
    refused, waiting = pool.claim("c"), pool.claim("d", wait=True)
    assert isinstance(refused, outcomes.Held)
    assert isinstance(waiting, outcomes.Queued)
    assert (refused.paused, waiting.paused) == (True, True)
    pool.release(lease)
    assert pool.owners() == {}
    assert isinstance(pool.claim("e"), outcomes.Held)
    pool.set(1)
    assert pool.owners() == {"b": (0,)}


@pytest.mark.promise("pool:change")
def test_an_owner_from_before_the_pool_has_the_job_alone_until_it_leaves() -> None:
    pool = Pool()
    alone = pool.take("a")
    pool.set(4)
    assert isinstance(pool.claim("b", wait=True), outcomes.Queued)
    assert pool.owners() == {"a": ()}
    pool.release(alone)
    assert pool.owners() == {"b": (0,)}


@pytest.mark.promise("pool:change")
def test_without_the_pool_the_next_owner_is_alone() -> None:
    pool = Pool()
    pool.set(2)
    leases = [pool.take(owner) for owner in "ab"]
    assert isinstance(pool.claim("c", wait=True), outcomes.Queued)
    assert pool.set(None).was == 2
    assert (pool.lock().pooled, pool.lock().slots) == (False, 1)
    assert isinstance(pool.claim("d"), outcomes.Held)
    pool.release(leases[0])
    assert pool.owners() == {"b": (1,)}
    pool.release(leases[1])
    assert pool.owners() == {"c": ()}


@pytest.mark.promise("pool:change")
def test_who_waits_for_more_than_a_smaller_pool_has_is_told_so() -> None:
    pool = Pool()
    pool.set(4)
    lease = pool.take("a", units=3)
    place = pool.claim("b", wait=True, units=3)
    assert isinstance(place, outcomes.Queued)
    assert isinstance(pool.claim("c", wait=True, units=2), outcomes.Queued)
    pool.set(2)
    left = [event for event in pool.store.events(0, 20) if event.kind == LEFT]
    assert [(event.owner, event.reason) for event in left] == [("b", "pool changed")]
    again = pool.claim("b", wait=True, units=3, ticket=place.ticket, ticket_id=place.ticket_id)
    assert refused_as(again) == ("units", "2", "3")
    pool.release(lease)
    assert pool.owners() == {"c": (0, 1)}


@pytest.mark.promise("pool:change")
@pytest.mark.parametrize("units", [1, 2, 3])
def test_without_the_pool_nobody_waits_for_several_units_of_it(units: int) -> None:
    pool = Pool()
    pool.set(4)
    lease = pool.take("a", units=4)
    assert isinstance(pool.claim("b", wait=True, units=units), outcomes.Queued)
    pool.set(None)
    left = [event.reason for event in pool.store.events(0, 20) if event.kind == LEFT]
    assert left == (["pool changed"] if units > 1 else [])
    pool.release(lease)
    assert pool.owners() == ({} if units > 1 else {"b": ()})


@pytest.mark.promise("slot:number")
def test_a_slot_is_the_lowest_free_number_and_stays_with_its_owner() -> None:
    pool = Pool()
    pool.set(3)
    first, second, _ = [pool.take(owner) for owner in "abc"]
    pool.release(first)
    kept = pool.coordinator.one(Renew(ns=NS, name="gpu", principal="team", lease_id=second.lease_id))
    assert isinstance(kept, lease_outcomes.Renewed)
    assert kept.lease.slot_numbers == (1,)
    heir = pool.coordinator.one(
        Transfer(ns=NS, name="gpu", principal="team", lease_id=second.lease_id, fresh_lease_id="heir", to_owner="heir")
    )
    assert isinstance(heir, lease_outcomes.Transferred)
    assert heir.lease.slot_numbers == (1,)
    assert pool.take("d", units=1).slot_numbers == (0,)
    told = [event.slot_numbers for event in pool.store.events(0, 20) if event.kind == ACQUIRED]
    assert told == [(0,), (1,), (2,), (1,), (0,)]


@pytest.mark.promise("slot:number")
def test_slots_that_claims_name_are_numbered_and_a_job_without_slots_has_no_number() -> None:
    pool = Pool()
    assert [pool.take(owner, "api", slots=2).slot_numbers for owner in "ab"] == [(0,), (1,)]
    assert pool.take("a", "plain").slot_numbers == ()
    assert pool.take("a", "one", slots=1).slot_numbers == ()
    assert pool.take("a", "docs", mode=SHARED).slot_numbers == ()


@pytest.mark.promise("units")
def test_small_claims_do_not_pass_the_head_of_the_line() -> None:
    pool = Pool()
    pool.set(4)
    small = [pool.take(f"small-{number}") for number in range(3)]
    assert isinstance(pool.claim("large", units=3, wait=True), outcomes.Queued)
    for number in range(3, 6):
        assert isinstance(pool.claim(f"small-{number}", wait=True), outcomes.Queued)
        assert isinstance(pool.claim(f"small-{number}"), outcomes.Held), "a poll does not pass it, either"
    pool.release(small[0])
    assert "large" not in pool.owners()
    assert len(pool.owners()) == 2
    pool.release(small[1])
    assert pool.owners() == {"small-2": (2,), "large": (0, 1, 3)}


@pytest.mark.promise("units")
def test_more_units_than_there_are_slots_are_refused_at_once() -> None:
    pool = Pool()
    pool.set(4)
    assert refused_as(pool.claim("a", units=5, wait=True)) == ("units", "4", "5")
    assert refused_as(pool.claim("a", "plain", units=2)) == ("units", "1", "2")
    assert refused_as(pool.claim("a", "api", units=3, slots=2)) == ("units", "2", "3")
    assert pool.take("a", "api", units=2, slots=2).slot_numbers == (0, 1)


@pytest.mark.promise("units")
def test_a_session_that_claims_again_has_its_units_and_gets_no_others() -> None:
    pool = Pool()
    pool.set(4)
    session: dict[str, Any] = {"session": "s", "ttl_ms": 0}
    pool.coordinator.one(OpenSession(ns=NS, fresh_id="s", principal="team", owner="s", ttl_ms=60_000))
    leases = [pool.take("s", units=2, **session), pool.take("s", **session), pool.take("s", units=2, **session)]
    assert {(lease.lease_id, lease.slot_numbers) for lease in leases} == {("lease-1", (0, 1))}
    assert refused_as(pool.claim("s", units=3, **session)) == ("units", "2", "3")


@pytest.mark.promise("units")
@pytest.mark.parametrize(
    "proof", [{"session": "s1", "ttl_ms": 0}, {"request_key": "k"}], ids=["session", "request key"]
)
def test_who_waits_for_some_units_cannot_ask_for_others_in_the_same_place(proof: dict[str, Any]) -> None:
    pool = Pool()
    pool.set(4)
    pool.coordinator.one(OpenSession(ns=NS, fresh_id="s1", principal="team", owner="s1", ttl_ms=60_000))
    first = pool.take("a", units=4)
    assert isinstance(pool.claim("b", wait=True, units=2, **proof), outcomes.Queued)
    assert refused_as(pool.claim("b", wait=True, units=3, **proof)) == ("units", "2", "3")
    if "session" in proof:
        assert refused_as(pool.claim("b", wait=True, units=3, request_key="other", **proof)) == ("units", "2", "3")
    assert isinstance(pool.claim("b", wait=True, **proof), outcomes.Queued), "one that names none keeps its place"
    pool.release(first)
    assert pool.owners() == {"b": (0, 1)}


def test_an_owner_from_a_pool_that_was_removed_cannot_share_the_job_beside_the_others() -> None:
    pool = Pool()
    pool.set(2)
    first, _ = pool.take("a"), pool.take("b")
    pool.set(None)
    shared = pool.coordinator.one(Renew(ns=NS, name="gpu", principal="team", lease_id=first.lease_id, mode=SHARED))
    assert isinstance(shared, outcomes.Differs)
    assert {holder.mode for holder in pool.lock().holders} == {EXCLUSIVE}


@pytest.mark.promise("units")
def test_a_subagent_of_an_owner_needs_a_slot_of_its_own() -> None:
    pool = Pool()
    pool.set(1)
    for session, parent in (("s", None), ("child", "s")):
        asked: dict[str, Any] = {"principal": "team", "owner": session, "ttl_ms": 60_000, "parent": parent}
        pool.coordinator.one(OpenSession(ns=NS, fresh_id=session, **asked))
    pool.take("s", session="s", ttl_ms=0)
    assert isinstance(pool.claim("child", session="child", ttl_ms=0), outcomes.Held)


@pytest.mark.promise("all-or-nothing")
def test_several_limits_are_claimed_in_one_step() -> None:
    pool = Pool()
    pool.set(2, "api")
    asked: dict[str, Any] = {"ns": NS, "principal": "team", "ttl_ms": 60_000, "wait": True}
    for number in range(3):
        names = ("api", f"customer-{number % 2}")
        outcome = pool.coordinator.one(AcquireAll(names=names, owner="w", fresh_lease_id=f"w{number}", **asked))
        assert isinstance(outcome, outcomes.Queued if number == 2 else outcomes.GrantedAll)
    assert [holder.slot_numbers for holder in pool.lock("api").holders] == [(0,), (1,)]
    assert isinstance(pool.claim("late", "customer-0"), outcomes.Held), "nothing is held by who waits, nor passed"
    pool.coordinator.one(Release(ns=NS, name="api", principal="team", lease_id="w1"))
    assert [holder.lease_id for holder in pool.lock("api").holders] == ["w0"], "reserved until the other is free"
    pool.coordinator.one(Release(ns=NS, name="customer-0", principal="team", lease_id="w0"))
    assert [holder.lease_id for holder in pool.lock("api").holders] == ["w0", "w2"]


def some(pool: Pool, fresh: str, count: int, key: str | None = None) -> Outcome:
    asked: dict[str, Any] = {
        "principal": "team",
        "owner": fresh,
        "ttl_ms": 60_000,
        "fresh_lease_id": fresh,
        "request_key": key,
    }
    return pool.coordinator.one(AcquireAny(ns=NS, names=("l1", "l2", "l3", "l4"), count=count, **asked))


@pytest.mark.promise("all-or-nothing")
def test_so_many_of_several_are_claimed_together_or_none() -> None:
    pool = Pool()
    pool.take("other", "l2")
    assert [each.name for each in granted_in(some(pool, "a", 2))] == ["l1", "l3"]
    refused = some(pool, "b", 2)
    assert isinstance(refused, outcomes.Refused)
    assert (refused.free, refused.count, len(refused.outcomes)) == (1, 2, 3)
    assert pool.claim("c", "l4").lease.owner == "c", "nothing of a refused claim is left"  # type: ignore[attr-defined]


def _tokens(outcome: Outcome) -> dict[str, int]:
    return {each.name: each.lease.token for each in granted_in(outcome)}


@pytest.mark.promise("idem:acquire")
def test_a_repeated_claim_of_so_many_gives_the_same_leases_and_never_more() -> None:
    pool = Pool()
    first = some(pool, "a", 2, "key")
    pool.coordinator.one(Break(ns=NS, name="l4", principal="op", reason="nothing"))
    for fresh, key in (("again", "key"), ("a", None)):
        assert _tokens(some(pool, fresh, 2, key)) == _tokens(first) == {"l1": 1, "l2": 1}
    pool.coordinator.one(Break(ns=NS, name="l1", principal="op", reason="why"))
    refused = some(pool, "again", 2, "key")
    assert isinstance(refused, outcomes.Refused)
    assert [type(each).__name__ for each in refused.outcomes] == ["KeySpent"]
    assert [each.name for each in refused.left] == ["l2"], "its caller may not know of the rest"


@pytest.mark.fault("F-230")
def test_a_transfer_serves_the_parent_that_waits_for_the_job() -> None:
    pool = Pool()
    for session, parent in (("s", None), ("child", "s")):
        asked: dict[str, Any] = {"principal": "team", "owner": session, "ttl_ms": 60_000, "parent": parent}
        pool.coordinator.one(OpenSession(ns=NS, fresh_id=session, **asked))
    lease = pool.take("giver")
    assert isinstance(pool.claim("s", session="s", ttl_ms=0, wait=True), outcomes.Queued)
    given: dict[str, Any] = {
        "principal": "team",
        "lease_id": lease.lease_id,
        "fresh_lease_id": "heir",
        "to_session": "child",
    }
    pool.coordinator.one(Transfer(ns=NS, name="gpu", **given))
    assert set(pool.owners()) == {"child", "s"}
