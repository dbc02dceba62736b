"""The store contract: several writers at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from dibs.core.keys import META_KEY
from dibs.core.records import Meta
from dibs.stores.port import Busy, Conflict
from dibs.testing.contract_base import ContractBase, event, in_threads, key_of, lock, put, versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.port import Store

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


def _count(store: Store, times: int) -> None:
    for _ in range(times):
        increment(store)


class RaceContract(ContractBase):
    rounds = 15  # a store with slow commits may set a smaller number

    @pytest.mark.promise("excl")
    def test_of_several_connections_that_write_one_free_key_exactly_one_wins(
        self, connect: Callable[[], Store]
    ) -> None:
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
            assert stores[0].read([key_of(name)]).records[key_of(name)].record == lock(name, token=won[0])

    def test_a_thread_that_must_not_wait_is_answered_or_told_that_the_store_is_busy(
        self, connect: Callable[[], Store]
    ) -> None:
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

        in_threads([hurried, partial(_count, first, self.rounds), partial(_count, second, self.rounds)])
        assert first.read([META_KEY]).records[META_KEY].record == Meta(token_floor=2 + 3 * self.rounds)

    @pytest.mark.fault("F-035")
    @pytest.mark.promise("excl")
    def test_large_and_small_decisions_at_once_lose_nothing(self, connect: Callable[[], Store]) -> None:
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

        def all_of_them(store: Store) -> None:
            for _ in range(rounds):
                count_up(store, *names)

        def one_of_them(store: Store, name: str) -> None:
            for _ in range(rounds * 3):
                count_up(store, name)

        stores = [connect() for _ in range(4)]
        in_threads(
            [
                partial(all_of_them, stores[0]),
                partial(all_of_them, stores[1]),
                partial(one_of_them, stores[2], names[0]),
                partial(one_of_them, stores[3], names[-1]),
            ]
        )
        found = stores[0].read(map(key_of, names)).records.values()
        tokens = [each.record.token for each in found if each.record is not None]  # type: ignore[union-attr]
        assert tokens == [5 * rounds, *[2 * rounds] * 148, 5 * rounds]
        assert len(stores[0].events(0, 1_000)) == 8 * rounds

    @pytest.mark.parametrize("shared", [True, False], ids=["one connection", "a connection each"])
    def test_many_threads_that_count_up_one_record_lose_nothing(
        self, connect: Callable[[], Store], shared: bool
    ) -> None:
        first = connect()
        stores = [first if shared else connect() for _ in range(THREADS)]

        in_threads([partial(_count, store, self.rounds) for store in stores])
        total = THREADS * self.rounds
        assert first.read([META_KEY]).records[META_KEY].record == Meta(token_floor=total)
        assert [each.token for each in first.events(0, total + 1)] == list(range(1, total + 1))

    def test_two_records_that_change_together_are_never_seen_apart(self, connect: Callable[[], Store]) -> None:
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
