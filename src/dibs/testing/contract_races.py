"""The store contract: several writers at once, leases, and a store without room."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from dibs.base.errors import StoreFull, StoreUnavailable
from dibs.base.ids import new_id
from dibs.core.commands import Acquire, Break, Release, Renew, TakeNumber
from dibs.core.lease_outcomes import Numbered, Released, Renewed
from dibs.core.outcomes import Granted, Held, NotCurrent, Outcome
from dibs.core.records import META_KEY, Meta
from dibs.engine.coordinator import run_one
from dibs.stores.port import Busy, Conflict, Store
from dibs.testing.contract_base import (
    Connect,
    ContractBase,
    PassTime,
    event,
    in_threads,
    key_of,
    lock,
    put,
    record_of,
    versions,
)
from dibs.testing.faulty import Fault, FaultyStore

THREADS = 6


def increment(store: Store) -> None:
    """Count one up. Try again after every conflict."""
    while True:
        found = store.read([META_KEY]).records[META_KEY]
        count = found.record.token_floor if isinstance(found.record, Meta) else 0
        try:
            store.commit(
                {META_KEY: found.version},
                {META_KEY: Meta(token_floor=count + 1)},
                [event("n", token=count + 1)],
            )
            return
        except Conflict:
            continue


def _repeat(times: int, call: Callable[..., None], *args: object) -> None:
    for _ in range(times):
        call(*args)


class RaceContract(ContractBase):
    rounds = 15  # a store with slow commits may set a smaller number

    @pytest.mark.promise("excl")
    def test_of_several_connections_that_write_one_free_key_exactly_one_wins(self, connect: Connect) -> None:
        stores = [connect() for _ in range(THREADS)]
        for round_ in range(self.rounds):
            name = f"job-{round_}"
            won: list[int] = []

            def claim(number: int, name: str = name, won: list[int] = won) -> None:
                try:
                    stores[number].commit({key_of(name): 0}, {key_of(name): lock(name, token=number)}, ())
                    won.append(number)
                except Conflict:
                    pass

            in_threads([partial(claim, number) for number in range(THREADS)])
            assert len(won) == 1
            assert record_of(stores[0], name) == lock(name, token=won[0])

    def test_a_thread_that_must_not_wait_is_answered_or_learns_that_the_store_is_busy(self, connect: Connect) -> None:
        first, second = connect(), connect()
        at_once = first.at_once()
        if at_once is None:
            pytest.skip("it declares that calls may take long")
        for _ in range(2):
            with at_once:
                increment(first)

        def hurried() -> None:
            for _ in range(self.rounds):
                try:
                    with at_once:
                        increment(first)
                except Busy:
                    increment(first)

        in_threads(
            [hurried, partial(_repeat, self.rounds, increment, first), partial(_repeat, self.rounds, increment, second)]
        )
        assert first.read([META_KEY]).records[META_KEY].record == Meta(token_floor=2 + 3 * self.rounds)

    @pytest.mark.fault("F-035")
    @pytest.mark.promise("excl")
    def test_large_and_small_decisions_at_once_lose_nothing(self, connect: Connect) -> None:
        names = [f"job-{number}" for number in range(150)]
        rounds = min(4, self.rounds)

        def count_up(store: Store, *names: str) -> None:
            """Raise the tokens of all these records by one. Try again after every conflict."""
            keys = [key_of(name) for name in names]
            while True:
                found = store.read(keys).records
                tokens = [0 if each.record is None else each.record.token for each in found.values()]  # type: ignore[union-attr]
                puts = {key_of(name): lock(name, token=token + 1) for name, token in zip(names, tokens, strict=True)}
                expect = {key: each.version for key, each in found.items()}
                try:
                    store.commit(expect, puts, [event(names[0])])
                    return
                except Conflict:
                    continue

        stores = [connect() for _ in range(4)]
        all_of_them = [partial(_repeat, rounds, count_up, store, *names) for store in stores[:2]]
        one_of_them = [
            partial(_repeat, 3 * rounds, count_up, stores[at], name) for at, name in ((2, names[0]), (3, names[-1]))
        ]
        in_threads([*all_of_them, *one_of_them])
        found = stores[0].read(map(key_of, names)).records.values()
        tokens = [each.record.token for each in found if each.record is not None]  # type: ignore[union-attr]
        assert tokens == [5 * rounds, *[2 * rounds] * 148, 5 * rounds]
        assert len(stores[0].events(0, 1_000)) == 8 * rounds

    @pytest.mark.parametrize("shared", [True, False], ids=["one connection", "a connection each"])
    def test_many_threads_that_count_up_one_record_lose_nothing(self, connect: Connect, shared: bool) -> None:
        first = connect()
        stores = [first if shared else connect() for _ in range(THREADS)]

        in_threads([partial(_repeat, self.rounds, increment, store) for store in stores])
        total = THREADS * self.rounds
        assert first.read([META_KEY]).records[META_KEY].record == Meta(token_floor=total)
        assert [each.token for each in first.events(0, total + 1)] == list(range(1, total + 1))

    def test_two_records_that_change_together_are_never_seen_apart(self, connect: Connect) -> None:
        reader, writer = connect(), connect()
        keys = [key_of("left"), key_of("right")]
        put(writer, lock("left", token=0), lock("right", token=0))
        rounds = self.rounds * 10
        torn = []

        def write() -> None:
            for token in range(1, rounds + 1):
                put(writer, lock("left", token=token), lock("right", token=token))

        def read() -> None:
            token = 0
            while token < rounds:
                left, right = reader.read(keys).records.values()
                if left.version != right.version:
                    torn.append((left, right))
                token = max(token, left.record.token if left.record else 0)  # type: ignore[union-attr]
                reader.read(keys[:1])  # so that one of the two may be remembered and the other not

        in_threads([write, read])
        assert not torn
        assert versions(reader, *keys) == versions(writer, *keys)


# Leases driven through the coordinator behave the same on every store.

TTL_MS = 120


def acquire(store: Store, name: str = "issue-42", *, owner: str = "a", ttl_ms: int = TTL_MS) -> Outcome:
    command = Acquire(ns="default", name=name, principal="p", owner=owner, ttl_ms=ttl_ms, fresh_lease_id=new_id())
    return run_one(store, command)


def granted(store: Store, *, owner: str = "a", ttl_ms: int = TTL_MS) -> Granted:
    outcome = acquire(store, owner=owner, ttl_ms=ttl_ms)
    assert isinstance(outcome, Granted)
    return outcome


def renew(store: Store, lease_id: str) -> Outcome:
    return run_one(store, Renew(ns="default", name="issue-42", principal="p", lease_id=lease_id))


def release(store: Store, lease_id: str) -> Outcome:
    return run_one(store, Release(ns="default", name="issue-42", principal="p", lease_id=lease_id))


def numbered(store: Store, request_key: str = "") -> int:
    key = request_key or new_id()
    outcome = run_one(store, TakeNumber(ns="default", name="migrations", principal="p", owner="a", request_key=key))
    assert isinstance(outcome, Numbered)
    return outcome.number


class LeaseContract(ContractBase):
    @pytest.mark.promise("excl")
    def test_a_held_job_is_not_given_to_another_connection(self, connect: Connect, store: Store) -> None:
        mine = granted(store, ttl_ms=3_600_000)
        held = acquire(connect(), owner="b")
        assert isinstance(held, Held)
        assert [blocker.holder for blocker in held.blockers] == [mine.lease]

    @pytest.mark.promise("lease:never-early")
    @pytest.mark.promise("token:rises")
    def test_an_expired_job_is_given_on_after_its_time_with_a_higher_token(
        self, connect: Connect, store: Store, pass_time: PassTime
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

    def test_a_renewed_lease_outlives_its_first_time(self, store: Store, pass_time: PassTime) -> None:
        mine = granted(store, ttl_ms=1_000)
        pass_time(200)
        renewed = renew(store, mine.lease.lease_id)
        assert isinstance(renewed, Renewed)
        assert renewed.lease.expires_ms >= mine.lease.expires_ms + 200

    @pytest.mark.promise("token:rises")
    def test_tokens_rise_through_release_on_any_connection(self, connect: Connect, store: Store) -> None:
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
        self, connect: Connect, store: Store, pass_time: PassTime
    ) -> None:
        stores = [connect() for _ in range(5)]
        for _ in range(4):
            outcomes: list[Outcome] = []

            def claim(each: Store, outcomes: list[Outcome] = outcomes) -> None:
                outcomes.append(acquire(each))

            in_threads([partial(claim, each) for each in stores])
            assert {type(each) for each in outcomes} <= {Granted, Held}
            # On a busy machine a late claim may come after the winner's TTL. Then it rightly wins, too.
            won = [each for each in outcomes if isinstance(each, Granted)]
            grants = sorted(won, key=lambda grant: grant.lease.token)
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

    @pytest.mark.promise("number")
    def test_of_many_that_take_numbers_each_gets_its_own_without_a_gap(self, connect: Connect) -> None:
        stores = [connect() for _ in range(5)]
        found: list[int] = []

        def take(each: Store) -> None:
            for _ in range(4):
                found.append(numbered(each))

        in_threads([partial(take, each) for each in stores])
        assert sorted(found) == list(range(1, 21))

    @pytest.mark.promise("number")
    @pytest.mark.parametrize(
        "faults", [["lost after"], ["lost before"], ["conflict"], ["lost after", "lost after"]], ids=" then ".join
    )
    def test_a_lost_reply_is_neither_a_lost_number_nor_a_second_one(self, store: Store, faults: list[Fault]) -> None:
        assert numbered(FaultyStore(store, faults), "k") == 1
        assert numbered(store, "k") == 1
        assert numbered(store) == 2
        assert [each.kind for each in store.events(0, 10)] == ["numbered", "numbered"]

    def test_a_refused_commit_is_reported_and_changes_nothing(self, store: Store) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            acquire(FaultyStore(store, ["refused"]))
        assert not caught.value.unknown
        assert store.events(0, 10) == []
        assert granted(store).lease.token == 1

    def test_what_must_not_be_done_twice_is_not_when_its_reply_was_lost(self, store: Store) -> None:
        granted(store, ttl_ms=3_600_000)
        command = Break(ns="default", name="issue-42", principal="op", reason="stuck")
        with pytest.raises(StoreUnavailable) as caught:
            run_one(FaultyStore(store, ["lost after"]), command)
        assert caught.value.unknown
        assert [each.kind for each in store.events(0, 10)] == ["acquired", "broken"]


class TroubleContract(ContractBase):
    """A store without room says so until it has room again."""

    def fill(self, place: Any) -> Callable[[], None] | None:
        """Leave no room for writes at `place`. Returns what makes room again. None: this place cannot be filled."""
        return None

    @pytest.mark.fault("F-040")
    @pytest.mark.promise("damage:told")
    def test_a_full_store_says_so_until_it_has_room_again(self, place: Any, store: Store) -> None:
        put(store, lock("before"))
        assert store.trouble() is None
        make_room = self.fill(place)
        if make_room is None:
            pytest.skip("nobody said how it is filled")
        try:
            with pytest.raises(StoreFull):
                _write_on(store)
            for _ in range(3):
                assert isinstance(store.trouble(), StoreFull)
                with suppress(StoreUnavailable):
                    store.commit({}, {}, ())  # even this may not fit
            assert record_of(store, "before") == lock("before")
        finally:
            make_room()
        store.commit({}, {}, ())
        assert store.trouble() is None
        put(store, lock("after"), events=(event("after"),))
        assert store.trouble() is None


def _write_on(store: Store) -> None:
    for number in range(10_000):
        put(store, lock(f"job-{number}"), events=(event(f"job-{number}"),))
