"""The store contract: leases driven through the coordinator behave the same on every store."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Break, Release, Renew
from dibs.core.lease_outcomes import Released, Renewed
from dibs.core.outcomes import Granted, Held, NotCurrent
from dibs.engine.coordinator import Coordinator
from dibs.testing.contract_base import ContractBase, in_threads
from dibs.testing.faulty import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Store
    from dibs.testing.faulty import Fault

TTL_MS = 120


def acquire(store: Store, name: str = "issue-42", *, owner: str = "a", ttl_ms: int = TTL_MS) -> Outcome:
    command = Acquire(ns="default", name=name, principal="p", owner=owner, ttl_ms=ttl_ms, fresh_lease_id=new_id())
    return Coordinator(store).one(command)


def granted(store: Store, *, owner: str = "a", ttl_ms: int = TTL_MS) -> Granted:
    outcome = acquire(store, owner=owner, ttl_ms=ttl_ms)
    assert isinstance(outcome, Granted)
    return outcome


def renew(store: Store, lease_id: str) -> Outcome:
    return Coordinator(store).one(Renew(ns="default", name="issue-42", principal="p", lease_id=lease_id))


def release(store: Store, lease_id: str) -> Outcome:
    return Coordinator(store).one(Release(ns="default", name="issue-42", principal="p", lease_id=lease_id))


def _token(grant: Granted) -> int:
    return grant.lease.token


class LeaseContract(ContractBase):
    @pytest.mark.promise("excl")
    def test_a_held_job_is_not_given_to_another_connection(self, connect: Callable[[], Store], store: Store) -> None:
        mine = granted(store, ttl_ms=3_600_000)
        held = acquire(connect(), owner="b")
        assert isinstance(held, Held)
        assert [blocker.holder for blocker in held.blockers] == [mine.lease]

    @pytest.mark.promise("lease:never-early")
    @pytest.mark.promise("token:rises")
    def test_an_expired_job_is_given_on_after_its_time_with_a_higher_token(
        self, connect: Callable[[], Store], store: Store, pass_time: Callable[[int], None]
    ) -> None:
        first = granted(store)
        other = connect()
        while isinstance(outcome := acquire(other, owner="b"), Held):
            assert outcome.now_ms < first.lease.expires_ms
            pass_time(15)
        assert isinstance(outcome, Granted)
        assert outcome.now_ms >= first.lease.expires_ms
        assert outcome.lease.token > first.lease.token
        assert outcome.previous is not None
        assert (outcome.previous.owner, outcome.previous.how) == ("a", "expired")
        assert isinstance(renew(store, first.lease.lease_id), NotCurrent)
        assert isinstance(release(store, first.lease.lease_id), NotCurrent)

    def test_a_renewed_lease_outlives_its_first_time(self, store: Store, pass_time: Callable[[int], None]) -> None:
        mine = granted(store, ttl_ms=1_000)
        pass_time(200)
        renewed = renew(store, mine.lease.lease_id)
        assert isinstance(renewed, Renewed)
        assert renewed.lease.expires_ms >= mine.lease.expires_ms + 200

    @pytest.mark.promise("token:rises")
    def test_tokens_rise_through_release_on_any_connection(self, connect: Callable[[], Store], store: Store) -> None:
        tokens = []
        for round_ in range(6):
            each = store if round_ % 2 else connect()
            mine = granted(each, ttl_ms=3_600_000)
            tokens.append(mine.lease.token)
            assert isinstance(release(each, mine.lease.lease_id), Released)
        assert tokens == sorted(set(tokens))
        kinds = [each.kind for each in store.events(0, 100, ("default", "issue-42"))]
        assert kinds == ["acquired", "released"] * 6

    @pytest.mark.promise("excl")
    def test_of_many_that_race_for_a_free_and_for_an_expired_job_one_wins(
        self, connect: Callable[[], Store], store: Store, pass_time: Callable[[int], None]
    ) -> None:
        stores = [connect() for _ in range(5)]
        for _ in range(4):
            outcomes: list[Outcome] = []

            def claim(each: Store, outcomes: list[Outcome] = outcomes) -> None:
                outcomes.append(acquire(each))

            in_threads([partial(claim, each) for each in stores])
            assert {type(each) for each in outcomes} <= {Granted, Held}
            # On a busy machine a late claim may come after the winner's TTL. Then it rightly wins, too.
            grants = sorted([each for each in outcomes if isinstance(each, Granted)], key=_token)
            assert grants
            for earlier, later in itertools.pairwise(grants):
                assert later.lease.since_ms >= earlier.lease.expires_ms
            pass_time(TTL_MS + 1)

    @pytest.mark.promise("idem:acquire")
    @pytest.mark.parametrize(
        "faults",
        [
            ["lost after"],
            ["lost before"],
            ["conflict"],
            ["lost after", "lost after"],
            ["lost before", "lost after"],
        ],
        ids=" then ".join,
    )
    def test_a_lost_reply_is_neither_a_lost_lease_nor_a_second_one(self, store: Store, faults: list[Fault]) -> None:
        mine = granted(FaultyStore(store, faults), ttl_ms=3_600_000)
        events = store.events(0, 10)
        assert [each.kind for each in events] == ["acquired"]
        assert isinstance(renew(store, mine.lease.lease_id), Renewed)
        assert isinstance(acquire(store, owner="b"), Held)

    @pytest.mark.promise("idem:release")
    def test_a_release_whose_reply_was_lost_is_a_release(self, store: Store) -> None:
        mine = granted(store, ttl_ms=3_600_000)
        assert isinstance(release(FaultyStore(store, ["lost after"]), mine.lease.lease_id), Released)
        assert [each.kind for each in store.events(0, 10)] == ["acquired", "released"]

    def test_a_refused_commit_is_told_and_changes_nothing(self, store: Store) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            acquire(FaultyStore(store, ["refused"]))
        assert not caught.value.unknown
        assert store.events(0, 10) == []
        assert granted(store).lease.token == 1

    def test_what_must_not_be_done_twice_is_not_when_its_reply_was_lost(self, store: Store) -> None:
        granted(store, ttl_ms=3_600_000)
        command = Break(ns="default", name="issue-42", principal="op", reason="stuck")
        with pytest.raises(StoreUnavailable) as caught:
            Coordinator(FaultyStore(store, ["lost after"])).one(command)
        assert caught.value.unknown
        assert [each.kind for each in store.events(0, 10)] == ["acquired", "broken"]
