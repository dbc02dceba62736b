"""A claim of several jobs whose reply was lost, and which is asked again when it is not whole any more."""

from __future__ import annotations

import pytest

from dibs.core.commands import AcquireAll, Break, Inspect
from dibs.core.outcomes import GrantedAll, Refused
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

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

    assert isinstance(claim("k", "l1"), GrantedAll)
    now_ms += 1
    rules.one(Break(ns="default", name="a", principal="op", reason="stuck"))
    assert isinstance(claim("k", "l2"), Refused)
    for name in NAMES:
        assert not rules.one(Inspect(ns="default", name=name)).lock.holders  # type: ignore[union-attr]  # a state
    assert isinstance(claim("other", "l3", "q"), GrantedAll)
