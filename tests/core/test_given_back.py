"""A lease whose answer was lost is given back, and meanwhile another process of its session is told of it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    EndSession,
    Inspect,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    Sweep,
    Transfer,
)
from dibs.core.lease_outcomes import Released
from dibs.core.outcomes import Granted, GrantedAll, NotCurrent, Refused
from dibs.core.records import SHARED
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

JOB: dict[str, Any] = {"ns": "default", "name": "b"}
ASK: dict[str, Any] = {"ns": "default", "principal": "p", "owner": "p", "ttl_ms": 0, "session": "s"}
CLAIM = AcquireAll(**ASK, names=("a", "b"), fresh_lease_id="l1", request_key="k")
OTHERS = Acquire(**ASK, name="b", fresh_lease_id="l7", request_key="other")  # of another process of the session
PLAIN = Release(**JOB, principal="p", lease_id="l1", uncounted=True)
BACK = PLAIN.replace(unused=True)
RENEWED: dict[str, Any] = {**JOB, "principal": "p", "session": "s"}


def rules_with_a_lost_answer() -> Coordinator:
    """The answer to a claim of two jobs was never read, one was broken since, and the repeat is told of the other."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    for session in ("s", "t"):
        rules.one(OpenSession(ns="default", fresh_id=session, principal="p", owner="p", ttl_ms=60_000))
    rules.one(CLAIM)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    refused = rules.one(CLAIM.replace(fresh_lease_id="l2"))
    assert isinstance(refused, Refused)
    assert [each.name for each in refused.left] == ["b"]
    return rules


def owner(rules: Coordinator) -> str | None:
    """The lease of the job."""
    holders = rules.one(Inspect(**JOB)).lock.holders  # type: ignore[attr-defined]
    return holders[0].lease_id if holders else None


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize(
    "told",
    [
        OTHERS,
        OTHERS.replace(request_key=None),
        OTHERS.replace(ttl_ms=5_000),
        OTHERS.replace(lease_id="l1"),
        AcquireAll(**ASK, names=("b", "c"), fresh_lease_id="l7", request_key="other"),
        Renew(**RENEWED),
        Renew(**RENEWED, mode=SHARED),
    ],
    ids=["claim", "no key", "longer", "with its lease id", "claim of two", "heartbeat", "share"],
)
def test_what_another_process_of_the_session_was_told_of_is_not_given_back(told: Any) -> None:
    rules = rules_with_a_lost_answer()
    rules.one(told)
    for _ in range(2):  # a copy of it may come late
        outcome = rules.one(BACK)
        assert isinstance(outcome, NotCurrent)
        assert (outcome.known, [each.lease_id for each in outcome.holders]) == (True, ["l1"])
        assert owner(rules) == "l1"
    assert isinstance(rules.one(PLAIN), Released), "an owner that knows of it lets go as ever"


@pytest.mark.parametrize("back", [BACK, PLAIN])
def test_what_nobody_else_was_told_of_is_given_back(back: Release) -> None:
    rules = rules_with_a_lost_answer()
    assert isinstance(rules.one(back), Released)
    assert rules.one(OTHERS).lease.lease_id == "l7"  # type: ignore[attr-defined]
    assert rules.one(back).again  # type: ignore[attr-defined]
    assert owner(rules) == "l7"


def test_a_heartbeat_without_a_session_is_its_owner_s_and_forbids_it_nothing() -> None:
    """Nobody else can know of it: who claims, sends a heartbeat, and is interrupted then leaves nothing behind."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(OTHERS.replace(session=None, ttl_ms=60_000, fresh_lease_id="l1"))
    rules.one(Renew(**JOB, principal="p", lease_id="l1"))
    assert isinstance(rules.one(BACK), Released)


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
def test_in_whatever_order_late_copies_come_nobody_who_was_told_of_the_job_loses_it() -> None:
    """One process repeats its claim, gives back what is left, and copies of both come late. Another one of the session
    claims, lets go or hands over, and claims again. Nobody has a lease that it did not let go of taken away."""
    first: list[Any] = [CLAIM.replace(fresh_lease_id="l3"), BACK, CLAIM.replace(fresh_lease_id="l4"), BACK]
    ends: list[list[Any]] = [
        [Release(**JOB, principal="p", session="s")],
        [Transfer(**JOB, principal="p", fresh_lease_id="l9", session="s", to_session="t")],
        [EndSession(session="s", principal="p")],
        [Renew(**RENEWED, mode=SHARED)],
        [],
    ]
    for end in ends:
        second = [OTHERS, *end, OTHERS.replace(fresh_lease_id="l8", request_key="anew"), Renew(**RENEWED)]
        for places in combinations(range(len(first) + len(second)), len(first)):
            rules, mine, theirs = rules_with_a_lost_answer(), iter(first), iter(second)
            has: str | None = None  # the lease that the second was told of, and has not let go of
            for at in range(len(first) + len(second)):
                if at in places:
                    rules.one(next(mine))
                else:
                    command = next(theirs)
                    outcome = rules.one(command)
                    if command in end and not isinstance(command, Renew):
                        has = None
                    elif isinstance(outcome, Granted):
                        has = outcome.lease.lease_id
                assert has in (None, owner(rules)), (places, end)


@pytest.mark.fault("F-266")
@pytest.mark.promise("excl")
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in line"])
def test_who_claims_for_its_session_is_not_told_of_a_lease_that_ends_before(waits: bool) -> None:
    """Its heartbeats renew the session, and a TTL of another process's claim would run out beneath it."""
    now_ms = [1_000]
    rules = Coordinator(MemoryStore(lambda: now_ms[0]))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=60_000))
    stranger = Acquire(**{**ASK, "session": None, "ttl_ms": 9_000}, name="b", fresh_lease_id="l0")
    if waits:
        rules.one(stranger)
        rules.one(OTHERS.replace(wait=True))
        rules.one(Transfer(**JOB, principal="p", lease_id="l0", fresh_lease_id="l5", to_session="s", ttl_ms=5_000))
    else:
        rules.one(OTHERS.replace(ttl_ms=5_000, request_key="short", fresh_lease_id="l5"))
        told = rules.one(OTHERS)
        assert isinstance(told, Granted)
        assert told.lease.expires_ms == 61_000
    assert owner(rules) == "l5"
    now_ms[0] += 30_000
    assert not isinstance(rules.one(stranger.replace(fresh_lease_id="l8")), Granted)


def rules_with_time() -> tuple[list[int], Coordinator]:
    now_ms = [1_000]
    rules = Coordinator(MemoryStore(lambda: now_ms[0]))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=60_000))
    return now_ms, rules


STRANGER = Acquire(**{**ASK, "session": None, "ttl_ms": 9_000}, name="b", fresh_lease_id="l9")


@pytest.mark.fault("F-266")
@pytest.mark.promise("excl")
@pytest.mark.parametrize("is_first", [True, False], ids=["told of it", "who made it"])
def test_a_heartbeat_with_a_ttl_takes_nothing_from_who_claimed_for_the_session(is_first: bool) -> None:
    now_ms, rules = rules_with_time()
    short = OTHERS.replace(ttl_ms=5_000, request_key="short", fresh_lease_id="l5")
    for claim in (short, OTHERS) if is_first else (OTHERS, short):
        rules.one(claim)
    rules.one(Renew(**RENEWED, ttl_ms=5_000))
    now_ms[0] += 30_000
    assert not isinstance(rules.one(STRANGER), Granted)


@pytest.mark.fault("F-266")
@pytest.mark.promise("lease:never-early")
def test_a_heartbeat_with_a_short_ttl_leaves_the_time_that_another_claim_of_the_session_was_told() -> None:
    now_ms, rules = rules_with_time()
    rules.one(OTHERS.replace(ttl_ms=40_000, request_key="long", fresh_lease_id="l5"))
    told = rules.one(OTHERS.replace(ttl_ms=40_000))
    assert isinstance(told, Granted)
    rules.one(Renew(**RENEWED, ttl_ms=5_000))
    now_ms[0] = told.lease.expires_ms - 1
    assert not isinstance(rules.one(STRANGER), Granted)
    now_ms[0] += 2
    assert isinstance(rules.one(STRANGER), Granted)


def test_a_heartbeat_may_give_a_session_claim_that_only_its_owner_knows_a_ttl() -> None:
    now_ms, rules = rules_with_time()
    rules.one(OTHERS)
    rules.one(Renew(**RENEWED, ttl_ms=5_000))
    now_ms[0] += 30_000
    assert isinstance(rules.one(STRANGER), Granted)


@pytest.mark.fault("F-268")
@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in line"])
def test_a_lease_that_outlives_its_session_lasts_as_long_as_it_for_who_claims_so(waits: bool) -> None:
    """Its own TTL would run out beneath that claim. After the end of the session the TTL counts, as it did before."""
    now_ms, rules = rules_with_time()
    rules.one(STRANGER.replace(fresh_lease_id="l0"))
    lasting = OTHERS.replace(ttl_ms=5_000, ephemeral=False, request_key="lasting", fresh_lease_id="l5")
    if waits:
        rules.one(lasting.replace(wait=True))
        rules.one(OTHERS.replace(wait=True))
    rules.one(Release(**JOB, principal="p", lease_id="l0"))
    if not waits:
        rules.one(lasting)
        told = rules.one(OTHERS)
        assert isinstance(told, Granted)
        assert told.lease.expires_ms == 61_000
    for _ in range(3):
        now_ms[0] += 50_000
        rules.one(KeepSession(session="s", principal="p"))
        rules.one(Sweep(key="lock/default/b"))
        assert not isinstance(rules.one(STRANGER), Granted)
        due_ms = rules.one(Inspect(**JOB)).lock.due_ms()  # type: ignore[attr-defined]
        assert due_ms == now_ms[0] + 60_000, "a sweep looks at it again when the session may be over, not before"
    now_ms[0] += 59_000
    rules.one(Renew(**JOB, principal="p", lease_id="l5"))
    rules.one(EndSession(session="s", principal="p"))
    now_ms[0] += 4_999
    assert not isinstance(rules.one(STRANGER), Granted)
    now_ms[0] += 1
    assert isinstance(rules.one(STRANGER), Granted)


def test_a_lease_that_outlives_its_session_ends_by_its_ttl_if_only_its_owner_knows_of_it() -> None:
    now_ms, rules = rules_with_time()
    rules.one(OTHERS.replace(ttl_ms=5_000, ephemeral=False, fresh_lease_id="l5"))
    rules.one(Renew(**JOB, principal="p", lease_id="l5"))
    now_ms[0] += 5_000
    assert isinstance(rules.one(STRANGER), Granted)


REFUSED = {"waits": {"wait": True}, "polls": {}, "over its limit": {"payer": "default/p", "held_max": 2}}


@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize("key", ["k", "other"])
@pytest.mark.parametrize("how", REFUSED.values(), ids=REFUSED)
def test_a_claim_of_several_that_gets_none_changes_nothing_that_it_was_not_told_of(
    how: dict[str, Any], key: str
) -> None:
    now_ms, rules = rules_with_time()
    if "payer" not in how:
        rules.one(STRANGER.replace(name="a", ttl_ms=3_600_000))
    rules.one(OTHERS.replace(ttl_ms=5_000, payer=how.get("payer"), request_key=key))
    rules.one(Renew(**RENEWED))  # so another process of the session may know of it
    before = rules.one(Inspect(**JOB)).lock.holders  # type: ignore[attr-defined]
    outcome = rules.one(CLAIM.replace(names=("a", "b", "c"), **how))
    assert not isinstance(outcome, GrantedAll)
    assert rules.one(Inspect(**JOB)).lock.holders == before  # type: ignore[attr-defined]
    now_ms[0] += 30_000
    assert isinstance(rules.one(STRANGER), Granted)


@pytest.mark.promise("all-or-nothing")
def test_a_repeat_of_a_claim_of_any_changes_only_the_job_that_it_is_told_of() -> None:
    _, rules = rules_with_time()
    for name in "ab":
        rules.one(Acquire(**ASK, name=name, fresh_lease_id="l5", request_key="k").replace(ttl_ms=5_000))
    before = rules.one(Inspect(**JOB)).lock  # type: ignore[attr-defined]
    told = rules.one(AcquireAny(**ASK, names=("a", "b"), fresh_lease_id="l6", request_key="k"))
    assert isinstance(told, Granted)
    assert told.name == "a"
    assert rules.one(Inspect(**JOB)).lock == before  # type: ignore[attr-defined]


@pytest.mark.promise("lease:never-early")
def test_a_hold_that_is_handed_over_is_written_as_it_was_stored_and_not_as_it_is_shown() -> None:
    """Shown, its deadline is the session's of this moment, which later heartbeats of the session move."""
    now_ms = [1_000]
    rules = Coordinator(MemoryStore(lambda: now_ms[0]))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=30_000))
    rules.one(STRANGER.replace(fresh_lease_id="l0", ttl_ms=3_600_000))
    rules.one(OTHERS.replace(ttl_ms=60_000, wait=True))
    given = Transfer(**JOB, principal="p", lease_id="l0", fresh_lease_id="l1", to_session="s", ttl_ms=60_000)
    rules.one(given)
    now_ms[0] = 21_000
    rules.one(KeepSession(session="s", principal="p"))
    now_ms[0] = 40_000
    assert not isinstance(rules.one(STRANGER), Granted)
