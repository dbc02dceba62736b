"""After a copy the numbers of events go on far above those before it: what is there keeps its numbers, is found, and is
pruned by how many events there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.engine.event_log import EventFilter, collect, read_page
from dibs.stores.memory import MemoryStore
from dibs.stores.port import maintenance_of
from dibs.stores.registry import open_store
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.stores.port import Store
    from tests.etcd import Cluster
    from tests.postgres import Schema

FAR = 1_795_000_000_000_000
FURTHER = FAR + 10**12
JOBS = 7


@pytest.fixture(params=["memory", "sqlite", "postgresql", "etcd"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_schema: Callable[[], Schema], etcd_cluster: Cluster
) -> Iterator[Store]:
    made: dict[str, Callable[[], Store]] = {
        "memory": lambda: MemoryStore(ManualClock()),
        "sqlite": lambda: open_store(f"sqlite:{tmp_path}/dibs.db"),
        "postgresql": lambda: open_store(postgres_schema().url),
        "etcd": lambda: open_store(etcd_cluster.url(new_id())),
    }
    store = made[request.param]()
    yield store
    store.close()


# Of the others, missing numbers say nothing.
GAPLESS = pytest.mark.parametrize("store", ["memory", "sqlite", "postgresql"], indirect=True)


def write(store: Store, first: int, count: int) -> list[int]:
    """Events with these instants, in commits of several sizes. Returns their numbers."""
    before, left = store.newest_seq(), [event(f"job-{at % JOBS}", at_ms=at) for at in range(first, first + count)]
    while left:
        size = 1 + left[0].at_ms % 40
        store.commit({}, {}, left[:size])
        left = left[size:]
    return [each.seq for each in store.events(before, 10_000)]


@pytest.mark.fault("F-415")
def test_events_keep_their_numbers_and_are_found_on_both_sides_of_skipped_ones(store: Store) -> None:
    numbers = write(store, 0, 700)
    for seq in (FAR, FURTHER):
        maintenance_of(store).number_from(seq)
        assert [each.seq for each in store.events(0, 10_000)] == numbers
        assert store.events(numbers[-1], 10) == []
        added = write(store, len(numbers), 300)
        assert added[0] > seq
        numbers += added
    everything = store.events(0, 10_000)
    assert [each.seq for each in everything] == numbers
    assert [each.at_ms for each in everything] == list(range(1_300))
    for index in (0, 1, 255, 698, 699, 700, 999, 1_000, 1_298):
        for limit in (1, 5, 2_000):
            assert [each.seq for each in store.events(numbers[index], limit)] == numbers[index + 1 :][:limit]
            for job in ("job-3", "nobody"):
                of_job = [each.seq for each in everything if each.job == job and each.seq > numbers[index]]
                found = store.events(numbers[index], limit, ("default", job))
                assert [each.seq for each in found] == of_job[:limit]
                found = store.events(numbers[index], limit, ("default", job), newest=True)
                assert [each.seq for each in found] == of_job[-limit:]
        assert store.watch(numbers[index], 0)
    assert not store.watch(numbers[-1], 0)
    assert [each.seq for each in store.events(FAR - 1, 1)] == [numbers[700]]


@pytest.mark.fault("F-415")
def test_what_is_kept_is_counted_by_events_and_not_by_numbers(store: Store) -> None:
    write(store, 0, 300)
    maintenance_of(store).number_from(FAR)
    write(store, 300, 50)
    for keep, dropped in ((1_000, 0), (350, 0), (340, 10), (50, 290), (40, 10), (0, 40)):
        assert store.prune(keep=keep, before_ms=0) == dropped
        assert [each.at_ms for each in store.events(0, 1_000)] == list(range(350 - min(keep, 350), 350))
    assert store.newest_seq() > FAR


@GAPLESS
@pytest.mark.promise("events:told")
@pytest.mark.fault("F-472")
@pytest.mark.parametrize("after", [1, 5, 14, 20])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_who_follows_one_job_is_told_once_of_skipped_numbers(store: Store, after: int, limit: int) -> None:
    wanted = EventFilter(ns="default", name="job-3")
    write(store, 0, 20)
    told: list[int] = []
    seen: list[int] = []
    at = after
    for numbers_from, added in ((0, 0), (FAR, 0), (0, 20), (FURTHER, 20), (0, 10)):
        if numbers_from:
            maintenance_of(store).number_from(numbers_from)
        write(store, 100 + len(seen), added)
        is_last = False
        for _ in range(200):
            page = read_page(store, at, limit, wanted)
            told += [] if page.oldest is None else [page.oldest]
            seen += [each.seq for each in page.events]
            assert page.upto >= at
            at, is_last = page.upto, page.is_last
            if is_last:
                break
        assert is_last
        assert at == store.newest_seq()
    assert seen == [each.seq for each in store.events(after, 1_000, ("default", "job-3"))]
    assert told == [FAR + 1, FURTHER + 1]


@GAPLESS
@pytest.mark.promise("events:told")
@pytest.mark.fault("F-472")
def test_a_page_of_one_job_ends_before_skipped_numbers_and_the_next_one_reports_them(store: Store) -> None:
    wanted = EventFilter(ns="default", name="job-3")
    write(store, 0, 20)
    maintenance_of(store).number_from(FAR)
    write(store, 20, 20)
    first = collect(store, wanted, 1, 100)
    assert (first.oldest, first.is_last) == (None, False)
    second = collect(store, wanted, first.upto, 100)
    assert (second.oldest, second.is_last) == (FAR + 1, True)
    assert [each.seq for each in (*first.events, *second.events)] == [
        each.seq for each in store.events(1, 100, ("default", "job-3"))
    ]
    assert collect(store, wanted, second.upto, 100).oldest is None
