"""A claim of several jobs whose reply was lost, and which is asked again when it is not whole any more."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Break, Close, Inspect, OpenSession, Release
from dibs.core.limits import REMEMBERED_MAX
from dibs.core.outcomes import GrantedAll, Queued, Refused
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

NAMES = ("a", "b", "c")
TERMS: dict[str, Any] = {"ns": "default", "names": NAMES, "principal": "p", "owner": "p", "ttl_ms": 60_000}
CLAIM = AcquireAll(**TERMS, fresh_lease_id="l1", request_key="k")


def held(rules: Coordinator) -> dict[str, str]:
    """The lease of each job that has one."""
    locks = {name: rules.one(Inspect(ns="default", name=name)).lock for name in NAMES}  # type: ignore[attr-defined]
    return {name: lock.holders[0].lease_id for name, lock in locks.items() if lock.holders}


def left(outcome: object) -> list[tuple[str, str]]:
    """What a refusal says that its claim still has."""
    assert isinstance(outcome, Refused)
    return [(each.name, each.lease.lease_id) for each in outcome.left]


@pytest.mark.fault("F-113")
@pytest.mark.promise("all-or-nothing")
def test_who_repeats_a_claim_of_which_a_job_was_lost_is_told_what_it_still_has() -> None:
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(CLAIM)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    for lease in ("l2", "l3"):  # the answer to a repeat may be lost as well
        assert left(rules.one(CLAIM.replace(fresh_lease_id=lease))) == [("b", "l1"), ("c", "l1")]
    assert held(rules) == {"b": "l1", "c": "l1"}


@pytest.mark.fault("F-255")
@pytest.mark.promise("all-or-nothing")
def test_a_repeat_of_a_count_of_jobs_is_told_what_it_still_has() -> None:
    rules = Coordinator(MemoryStore(lambda: 1_000))
    claim = AcquireAny(**TERMS, fresh_lease_id="l1", request_key="k", count=2)
    assert isinstance(rules.one(claim), GrantedAll)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    assert left(rules.one(claim.replace(fresh_lease_id="l2"))) == [("b", "l1")]


@pytest.mark.fault("F-259")
@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("session", [None, "s"])
def test_a_late_copy_of_a_claim_takes_nothing_from_an_owner_that_has_read_the_answer(session: str | None) -> None:
    """It may have sent no heartbeat yet, or only those of its session: nothing shows that it knows of its jobs."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=60_000))
    claim = CLAIM.replace(session=session, ttl_ms=0 if session else 60_000)
    rules.one(claim)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    rules.one(claim.replace(fresh_lease_id="l2"))
    assert held(rules) == {"b": "l1", "c": "l1"}


@pytest.mark.fault("F-131")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("failed", [False, True])
def test_a_late_repeat_takes_nothing_from_an_owner_that_let_go_of_one_of_its_jobs(failed: bool) -> None:
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(CLAIM)
    rules.one(Release(ns="default", name="a", principal="p", lease_id="l1", failed=failed))
    assert left(rules.one(CLAIM.replace(fresh_lease_id="l2"))) == [("b", "l1"), ("c", "l1")]
    assert held(rules) == {"b": "l1", "c": "l1"}


@pytest.mark.fault("F-258")
@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
def test_a_refusal_does_not_name_what_the_session_had_before() -> None:
    """Whoever gave it back would take it from another block of the session."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=60_000))
    asks: dict[str, Any] = {"ns": "default", "principal": "p", "owner": "p", "session": "s"}
    rules.one(Acquire(**asks, name="b", ttl_ms=0, fresh_lease_id="l0"))
    claim = CLAIM.replace(session="s")
    rules.one(claim)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    assert left(rules.one(claim.replace(fresh_lease_id="l3"))) == [("c", "l1")]
    assert held(rules) == {"b": "l0", "c": "l1"}


@pytest.mark.fault("F-258")
@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
def test_a_refusal_does_not_name_what_another_ask_of_the_session_was_told_of() -> None:
    """Another process of the session relies on it: who repeats the claim would take it from there."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=60_000))
    claim = CLAIM.replace(session="s", ttl_ms=0)
    rules.one(claim)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    asks: dict[str, Any] = {"ns": "default", "principal": "p", "owner": "p", "session": "s"}
    rules.one(Acquire(**asks, name="b", ttl_ms=0, fresh_lease_id="l2", request_key="other"))
    assert left(rules.one(claim.replace(fresh_lease_id="l3"))) == [("c", "l1")]


@pytest.mark.fault("F-665")
@pytest.mark.promise("all-or-nothing", "idem:acquire")
@pytest.mark.parametrize("other", ["of another", "closed"])
def test_who_repeats_a_claim_of_which_a_job_was_lost_that_its_session_had_before_does_not_stand_in_line(
    other: str,
) -> None:
    """It has all of it, or had. In the line it might lose the rest, and get it once more."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="p", ttl_ms=60_000))
    asks: dict[str, Any] = {"ns": "default", "principal": "p", "owner": "p", "session": "s"}
    rules.one(Acquire(**asks, name="b", ttl_ms=0, fresh_lease_id="l0"))
    claim = CLAIM.replace(session="s", wait=True)
    assert isinstance(rules.one(claim), GrantedAll)
    rules.one(Release(ns="default", name="b", principal="p", lease_id="l0"))
    if other == "closed":
        rules.one(Close(ns="default", name="b", principal="op", reason="repairs", length_ms=1_000))
    else:
        rules.one(Acquire(ns="default", name="b", principal="q", owner="q", ttl_ms=60_000, fresh_lease_id="q"))
    assert left(rules.one(claim.replace(fresh_lease_id="l2"))) == [("a", "l1"), ("c", "l1")]
    new = claim.replace(fresh_lease_id="l3", request_key="k2")
    assert isinstance(rules.one(new), Queued), "another ask of the session waits for what it lacks"


@pytest.mark.fault("F-262")
@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize(
    ("claim", "waits"),
    [
        (CLAIM, {}),
        (CLAIM, {"wait": True}),
        (AcquireAny(**TERMS, fresh_lease_id="l1", request_key="k", count=3), {}),
    ],
    ids=["all", "all, in line", "so many"],
)
def test_what_is_left_is_named_though_the_end_of_the_lost_job_is_long_forgotten(
    claim: AcquireAll | AcquireAny, waits: dict[str, Any]
) -> None:
    """Who waits for all of them would wait for itself: it has the others."""
    rules = Coordinator(MemoryStore(lambda: 1_000))
    rules.one(claim)
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    others: dict[str, Any] = {"ns": "default", "name": "a", "principal": "q"}
    for lease in map(str, range(REMEMBERED_MAX)):
        rules.one(Acquire(**others, owner="q", ttl_ms=60_000, fresh_lease_id=lease))
        rules.one(Release(**others, lease_id=lease))
    rules.one(Acquire(**others, owner="q", ttl_ms=60_000, fresh_lease_id="last"))
    assert left(rules.one(claim.replace(fresh_lease_id="l2", **waits))) == [("b", "l1"), ("c", "l1")]
