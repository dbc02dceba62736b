"""A claim that is withdrawn, at any moment of its life: nothing of it is left, nothing of anybody else's is taken."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    Inspect,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    Sweep,
    Transfer,
    Withdraw,
)
from dibs.core.lease_outcomes import Released
from dibs.core.limits import IDLE_RECORD_MS, REMEMBERED_MAX, REMEMBERED_MS
from dibs.core.outcomes import Granted, GrantedAll, KeySpent, Queued, Refused, Withdrawn
from dibs.core.records import SHARED, LockRecord, Ticket, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock

NS: dict[str, Any] = {"ns": "default"}
ASK: dict[str, Any] = {**NS, "principal": "p", "owner": "p", "ttl_ms": 60_000, "request_key": "k"}
HOLDER: dict[str, Any] = {**NS, "principal": "h", "owner": "h", "ttl_ms": 3_600_000}
CLAIMS: dict[str, Any] = {
    "one": Acquire(**ASK, name="a", fresh_lease_id="l1", wait=True),
    "all": AcquireAll(**ASK, names=("a", "b"), fresh_lease_id="l1", wait=True),
    "any": AcquireAny(**ASK, names=("b", "a"), fresh_lease_id="l1"),
}
UNDO = Withdraw(**NS, principal="p", names=("a", "b"), request_key="k")


class Store:
    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.rules = Coordinator(self.store)

    def one(self, command: Any) -> Any:
        return self.rules.one(command)

    def opened(self, *sessions: str) -> Store:
        for session in sessions:
            self.one(OpenSession(**NS, fresh_id=session, principal="p", owner="p", ttl_ms=3_600_000))
        return self

    def lock(self, name: str) -> LockRecord:
        found = self.store.read((lock_key("default", name),)).records[lock_key("default", name)].record
        return found if isinstance(found, LockRecord) else LockRecord(ns="default", name=name)

    def leases(self) -> dict[str, str]:
        return {name: each.lease_id for name in "ab" for each in self.lock(name).holders}

    def places(self) -> list[str]:
        found = [each.record for _, each in self.store.scan("ticket/")]
        return [each.lease_id for each in found if isinstance(each, Ticket)]


def grants_in(outcome: Any) -> list[Granted]:
    if isinstance(outcome, Granted):
        return [outcome]
    return list(outcome.grants) if isinstance(outcome, GrantedAll) else []


@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("is_held", [True, False])
def test_in_whatever_order_things_arrive_a_withdrawn_claim_has_nothing(kind: str, is_held: bool) -> None:
    """The ask, a repeat and a late copy of it, the withdrawal and its copy, the hand-over, the end of its lease."""
    claim = CLAIMS[kind]
    steps = ("ask", "repeat", "withdraw", "free", "expire", "copy")
    for order in permutations(steps):
        store = Store()
        if is_held:
            store.one(Acquire(**HOLDER, name="a", fresh_lease_id="held"))
            store.one(Acquire(**HOLDER, name="b", fresh_lease_id="held"))
        is_withdrawn = False
        for step in order:
            if step in ("ask", "repeat", "copy"):
                outcome = store.one(claim.replace(fresh_lease_id={"ask": "l1", "repeat": "l2", "copy": "l3"}[step]))
                if is_withdrawn:
                    told = outcome.outcomes if isinstance(outcome, Refused) else (outcome,)
                    assert any(isinstance(each, KeySpent) for each in told), (order, step)
            elif step == "withdraw":
                assert not store.one(UNDO).kept, order
                assert store.one(UNDO) == Withdrawn(now_ms=store.clock()), "it may come twice"
                is_withdrawn = True
            elif step == "free":
                for name in "ab":
                    store.one(Release(**NS, name=name, principal="h", lease_id="held"))
            else:
                store.clock.advance(ASK["ttl_ms"])
            if is_withdrawn:
                assert "p" not in [each.principal for name in "ab" for each in store.lock(name).holders], (order, step)
                assert store.places() == [], (order, step)
        for name in "ab":
            store.one(Release(**NS, name=name, principal="h", lease_id="held"))
            store.one(Sweep(key=lock_key("default", name)))
            assert isinstance(store.one(Acquire(**HOLDER, name=name, fresh_lease_id="last")), Granted), order


@pytest.mark.promise("idem:withdraw")
@pytest.mark.promise("queue:fifo")
def test_who_waits_behind_a_withdrawn_claim_is_served_and_nobody_is_overtaken() -> None:
    store = Store()
    store.one(Acquire(**HOLDER, name="a", fresh_lease_id="held"))
    for number in (1, 2, 3):
        store.one(CLAIMS["one"].replace(request_key=f"k{number}", fresh_lease_id=f"l{number}"))
    assert store.one(UNDO.replace(request_key="k1")).left
    store.one(Release(**NS, name="a", principal="h", lease_id="held"))
    assert store.leases() == {"a": "l2"}
    assert store.one(UNDO.replace(request_key="k2")).released == ("a",)
    assert store.leases() == {"a": "l3"}


OTHER = Acquire(**{**ASK, "request_key": "other"}, name="a", fresh_lease_id="l7", session="s")


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
@pytest.mark.promise("idem:withdraw")
@pytest.mark.parametrize("ttl_ms", [0, 60_000])
@pytest.mark.parametrize(
    "told",
    [
        OTHER,
        OTHER.replace(request_key=None),
        OTHER.replace(lease_id="l1"),
        OTHER.replace(ttl_ms=0),
        AcquireAll(**{**ASK, "request_key": "other", "session": "s"}, names=("a", "c"), fresh_lease_id="l7"),
        Renew(**NS, name="a", principal="p", session="s"),
        Renew(**NS, name="a", principal="p", session="s", mode=SHARED),
    ],
    ids=["claim", "no key", "with its lease id", "as long as the session", "of two", "heartbeat", "share"],
)
def test_what_another_ask_of_the_session_was_told_of_stays(told: Any, ttl_ms: int) -> None:
    """The answer of the first was lost. Another process of the session was told of the lease, and works with it."""
    store = Store().opened("s")
    store.one(CLAIMS["all"].replace(session="s", ttl_ms=ttl_ms))
    store.one(told)
    for _ in range(2):
        undone = store.one(UNDO)
        assert undone.kept == ("a",)
        assert store.leases() == {"a": "l1"}
    assert isinstance(store.one(Release(**NS, name="a", principal="p", lease_id="l1")), Released)


@pytest.mark.promise("idem:withdraw")
def test_a_sign_of_life_of_the_session_and_a_heartbeat_of_the_ask_itself_keep_nothing() -> None:
    store = Store().opened("s")
    store.one(CLAIMS["one"].replace(session="s"))
    store.one(KeepSession(session="s", principal="p"))
    store.one(Renew(**NS, name="a", principal="p", lease_id="l1"))
    assert store.one(UNDO).released == ("a",)


@pytest.mark.promise("excl")
def test_what_was_handed_over_stays() -> None:
    store = Store()
    store.one(CLAIMS["one"])
    store.one(Transfer(**NS, name="a", principal="p", lease_id="l1", fresh_lease_id="heir", to_owner="q"))
    assert store.one(UNDO) == Withdrawn(now_ms=store.clock())
    assert store.leases() == {"a": "heir"}


@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("idem:withdraw")
def test_another_ask_of_the_session_keeps_its_place() -> None:
    store = Store().opened("s")
    store.one(Acquire(**HOLDER, name="a", fresh_lease_id="held"))
    first = CLAIMS["one"].replace(session="s")
    store.one(first)
    store.one(first.replace(request_key="other", fresh_lease_id="l2"))
    assert store.one(UNDO).left
    assert store.places() == ["l2"]


def test_a_key_means_nothing_to_another_principal() -> None:
    store = Store()
    store.one(CLAIMS["one"])
    assert store.one(UNDO.replace(principal="q")) == Withdrawn(now_ms=store.clock())
    assert store.leases() == {"a": "l1"}
    assert isinstance(store.one(CLAIMS["one"].replace(fresh_lease_id="l2")), Granted), "nor is it refused"


@pytest.mark.promise("idem:withdraw")
def test_by_its_ticket_a_place_ends_and_nothing_else() -> None:
    store = Store()
    store.one(Acquire(**HOLDER, name="a", fresh_lease_id="held"))
    place = store.one(CLAIMS["one"])
    undo = Withdraw(**NS, principal="p", names=("a",), ticket_id=place.ticket_id, ticket=place.ticket)
    assert store.one(undo.replace(ticket_id="wrong")) == Withdrawn(now_ms=store.clock())
    assert store.one(undo).left
    again = store.one(CLAIMS["one"].replace(fresh_lease_id="l2"))
    assert isinstance(again, Queued), "the key may ask again"
    store.one(Release(**NS, name="a", principal="h", lease_id="held"))
    assert store.one(undo.replace(ticket_id=again.ticket_id, ticket=again.ticket)).kept == ("a",)
    assert store.leases() == {"a": "l2"}


@pytest.mark.promise("excl")
@pytest.mark.parametrize("again", ["ticket", "session", "lease id", "heartbeat"])
def test_a_claim_without_a_key_is_not_withdrawn_under_somebody_who_was_told_of_it(again: str) -> None:
    """Its first server stood still, and hears late that the caller went on elsewhere."""
    store = Store().opened("s")
    store.one(Acquire(**HOLDER, name="a", fresh_lease_id="held"))
    claim = CLAIMS["one"].replace(request_key=None, session="s")
    place = store.one(claim)
    more = {"ticket": place.ticket, "ticket_id": place.ticket_id}
    if again in ("ticket", "session"):
        store.one(claim.replace(fresh_lease_id="l2", **(more if again == "ticket" else {})))
    store.one(Release(**NS, name="a", principal="h", lease_id="held"))
    if again == "lease id":
        store.one(claim.replace(fresh_lease_id="l2", lease_id="l1"))
    elif again == "heartbeat":
        store.one(Renew(**NS, name="a", principal="p", lease_id="l1"))
    undo = Withdraw(**NS, principal="p", names=("a",), fresh_lease_id="l1")
    assert store.one(undo).kept == ("a",)
    assert store.leases() == {"a": "l1"}


@pytest.mark.promise("idem:withdraw")
def test_a_mark_refuses_for_its_time_and_is_forgotten_then() -> None:
    store = Store()
    store.one(UNDO)
    store.clock.advance(REMEMBERED_MS - 1)
    for kind in CLAIMS.values():
        outcome = store.one(kind)
        assert outcome == KeySpent(now_ms=store.clock(), name="a", ending=None)
    store.one(Sweep(key=lock_key("default", "a")))
    assert store.lock("a").withdrawn
    store.clock.advance(1)
    store.one(Sweep(key=lock_key("default", "a")))
    assert not store.rules.one(Inspect(**NS, name="a")).seen, "the record was there for the mark alone"  # type: ignore[attr-defined]
    assert isinstance(store.one(CLAIMS["one"]), Granted)


@pytest.mark.promise("idem:withdraw")
def test_a_job_remembers_so_many_withdrawn_claims_the_newest_ones() -> None:
    store = Store()
    for number in range(REMEMBERED_MAX + 3):
        store.one(UNDO.replace(request_key=str(number)))
    assert len(store.lock("a").withdrawn) == REMEMBERED_MAX
    assert isinstance(store.one(CLAIMS["one"].replace(request_key="3")), KeySpent)
    assert isinstance(store.one(CLAIMS["one"].replace(request_key="2")), Granted)


@pytest.mark.fault("F-382")
@pytest.mark.promise("idem:release")
def test_a_release_is_recognised_after_many_other_owners() -> None:
    store = Store()
    store.one(CLAIMS["one"])
    mine = Release(**NS, name="a", principal="p", lease_id="l1")
    store.one(mine)
    assert REMEMBERED_MAX >= 32
    for number in range(REMEMBERED_MAX - 1):
        store.one(Acquire(**HOLDER, name="a", fresh_lease_id=str(number)))
        store.one(Release(**NS, name="a", principal="h", lease_id=str(number)))
    store.clock.advance(REMEMBERED_MS - 1)
    assert store.one(mine).again
    assert isinstance(store.one(CLAIMS["one"].replace(fresh_lease_id="l2")), KeySpent)


def test_an_end_is_reported_to_the_next_owner_for_long_and_refuses_its_key_no_longer() -> None:
    store = Store()
    store.one(CLAIMS["one"])
    store.one(Release(**NS, name="a", principal="p", lease_id="l1"))
    store.clock.advance(IDLE_RECORD_MS - 1)
    granted = store.one(CLAIMS["one"].replace(fresh_lease_id="l2"))
    assert isinstance(granted, Granted)
    assert granted.previous is not None
    assert granted.previous.lease_id == "l1"


@pytest.mark.fault("F-383")
@pytest.mark.promise("lease:never-early")
def test_a_late_repeat_does_not_change_the_lease_of_another_ask() -> None:
    """It would make the lease last as long as the session: a worker that hangs would keep it."""
    store = Store().opened("s")
    first = CLAIMS["one"].replace(session="s", ttl_ms=0)
    store.one(first)
    store.one(Release(**NS, name="a", principal="p", lease_id="l1"))
    store.one(first.replace(request_key="k2", fresh_lease_id="l2", ttl_ms=20_000))
    before = store.lock("a")
    assert isinstance(store.one(first.replace(fresh_lease_id="l3")), KeySpent)
    assert store.lock("a") == before


@pytest.mark.promise("idem:withdraw")
def test_what_a_claim_has_left_after_a_break_is_withdrawn() -> None:
    store = Store()
    store.one(CLAIMS["all"])
    store.one(Break(**NS, name="a", principal="op", reason="stuck"))
    assert isinstance(store.one(CLAIMS["all"].replace(fresh_lease_id="l2")), outcomes.Refused)
    assert store.one(UNDO).released == ("b",)
    assert store.one(UNDO) == Withdrawn(now_ms=store.clock())


def test_a_withdrawn_lease_says_nothing_about_the_work() -> None:
    store = Store()
    store.one(CLAIMS["one"].replace(max_attempts=2))
    store.one(Release(**NS, name="a", principal="p", lease_id="l1", failed=True))
    store.one(CLAIMS["one"].replace(request_key="k2", fresh_lease_id="l2"))
    store.one(UNDO.replace(request_key="k2"))
    assert store.lock("a").failures == 1
