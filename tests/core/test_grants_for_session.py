"""Leases of a session of which several of its claims were told: none runs out beneath another."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import (
    Acquire,
    AcquireAny,
    EndSession,
    Inspect,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    Sweep,
    Transfer,
)
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

JOB: dict[str, Any] = {"ns": "default", "name": "b"}
ASK: dict[str, Any] = {"ns": "default", "principal": "p", "owner": "p", "ttl_ms": 0, "session": "s"}
OTHERS = Acquire(**ASK, name="b", fresh_lease_id="l7", request_key="other")  # of another process of the session
RENEWED: dict[str, Any] = {**JOB, "principal": "p", "session": "s"}


def owner(rules: Coordinator) -> str | None:
    """The lease of the job."""
    holders = rules.one(Inspect(**JOB)).lock.holders  # type: ignore[attr-defined]
    return holders[0].lease_id if holders else None


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
