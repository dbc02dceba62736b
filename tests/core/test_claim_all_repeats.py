"""A claim of several jobs whose reply was lost, and which is asked again when it is not whole any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core.commands import Acquire, AcquireAll, Break, Inspect, Release, Renew, Transfer
from dibs.core.outcomes import GrantedAll, Refused
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

if TYPE_CHECKING:
    from dibs.core.commands import Command

NAMES = ("a", "b", "c")


@pytest.mark.fault("F-113")
@pytest.mark.promise("all-or-nothing")
def test_the_rest_of_a_claim_that_was_broken_is_given_back_to_who_repeats_it() -> None:
    now_ms = 1_000
    rules = Coordinator(MemoryStore(lambda: now_ms))

    def claim(key: str, lease: str, principal: str = "p") -> object:
        return rules.one(
            AcquireAll(
                ns="default",
                names=NAMES,
                principal=principal,
                owner=principal,
                ttl_ms=60_000,
                fresh_lease_id=lease,
                request_key=key,
            )
        )

    lost = Acquire(ns="default", name="b", principal="p", owner="p", ttl_ms=60_000, fresh_lease_id="l0")
    rules.one(lost)
    rules.one(Release(ns="default", name="b", principal="p", lease_id="l0", failed=True))
    assert isinstance(claim("k", "l1"), GrantedAll)
    now_ms += 1
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    assert isinstance(claim("k", "l2"), Refused)
    for name in NAMES:
        assert not rules.one(Inspect(ns="default", name=name)).lock.holders  # type: ignore[attr-defined]  # a state
    assert rules.one(Inspect(ns="default", name="b")).lock.failures == 1  # type: ignore[attr-defined]  # a state
    assert isinstance(claim("other", "l3", "q"), GrantedAll)


@pytest.mark.fault("F-131")
@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize(
    "let_go",
    [
        Release(ns="default", name="a", principal="p", lease_id="l1"),
        Release(ns="default", name="a", principal="p", lease_id="l1", failed=True),
        Transfer(
            ns="default",
            name="a",
            principal="p",
            lease_id="l1",
            to_owner="q",
            fresh_lease_id="l3",
            ttl_ms=60_000,
        ),
    ],
    ids=["released", "failed", "transferred"],
)
def test_a_late_repeat_takes_nothing_from_an_owner_that_let_go_of_one_of_its_jobs(let_go: Command) -> None:
    """It proved with the lease id that it has read the reply, and relies on the others."""
    now_ms = 1_000
    rules = Coordinator(MemoryStore(lambda: now_ms))
    claim = AcquireAll(
        ns="default",
        names=NAMES,
        principal="p",
        owner="p",
        ttl_ms=60_000,
        fresh_lease_id="l1",
        request_key="k",
    )
    assert isinstance(rules.one(claim), GrantedAll)
    now_ms += 1
    rules.one(let_go)
    now_ms += 1
    assert isinstance(rules.one(claim.replace(fresh_lease_id="l2")), Refused)
    for name in ("b", "c"):
        (hold,) = rules.one(Inspect(ns="default", name=name)).lock.holders  # type: ignore[attr-defined]  # a state
        assert hold.lease_id == "l1"


@pytest.mark.fault("F-131")
@pytest.mark.promise("lease:never-early")
def test_a_late_repeat_takes_nothing_from_an_owner_that_has_renewed_one_of_its_jobs_so_far() -> None:
    now_ms = 1_000
    rules = Coordinator(MemoryStore(lambda: now_ms))
    claim = AcquireAll(
        ns="default",
        names=NAMES,
        principal="p",
        owner="p",
        ttl_ms=60_000,
        fresh_lease_id="l1",
        request_key="k",
    )
    assert isinstance(rules.one(claim), GrantedAll)
    now_ms += 30_000
    rules.one(Renew(ns="default", name="b", principal="p", lease_id="l1"))
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    assert isinstance(rules.one(claim.replace(fresh_lease_id="l2")), Refused)
    for name in ("b", "c"):
        (hold,) = rules.one(Inspect(ns="default", name=name)).lock.holders  # type: ignore[attr-defined]  # a state
        assert hold.lease_id == "l1"


@pytest.mark.fault("F-255")
@pytest.mark.promise("all-or-nothing")
def test_a_repeat_whose_answer_was_lost_as_well_does_not_prove_that_its_owner_knows_of_the_rest() -> None:
    now_ms = 1_000
    rules = Coordinator(MemoryStore(lambda: now_ms))
    claim = AcquireAll(
        ns="default", names=NAMES, principal="p", owner="p", ttl_ms=60_000, fresh_lease_id="l1", request_key="k"
    )
    for lease in ("l1", "l2"):
        assert isinstance(rules.one(claim.replace(fresh_lease_id=lease)), GrantedAll)
        now_ms += 1_000
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    assert isinstance(rules.one(claim.replace(fresh_lease_id="l3")), Refused)
    for name in NAMES:
        assert not rules.one(Inspect(ns="default", name=name)).lock.holders  # type: ignore[attr-defined]  # a state
