"""The events of one job are found by the marks of blocks, and the counters go on when events are gone."""

from __future__ import annotations

import itertools
import sqlite3
from typing import TYPE_CHECKING

import pytest

from dibs.stores.sqlite import SqliteStore
from dibs.stores.sqlite.queries import marks_of
from dibs.stores.sqlite.rows import BLOCK
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.core.events import Event

JOBS = ("a", "b", "", "often", "é", "a/b")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dibs.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def job_of(number: int) -> str:
    return JOBS[number % len(JOBS)] if number % 100 < 30 else "often"


def write(*stores: SqliteStore, count: int) -> None:
    """Commits of all sizes, by several connections in turn."""
    sizes, writers, number = itertools.cycle((1, 2, 7, 31, 300)), itertools.cycle(stores), 0
    while number < count:
        size = min(next(sizes), count - number)
        events = [event(job_of(each), at_ms=each) for each in range(number, number + size)]
        assert next(writers).commit({}, {}, events) == number + size
        number += size


def assert_each_job_is_found(store: SqliteStore) -> None:
    everything = store.events(0, 100_000)
    for job in (*JOBS, "nobody"):
        of_job = [each for each in everything if each.job == job]
        for after, limit in itertools.product((0, 100, BLOCK, BLOCK + 1, 1_500, 9_999), (0, 1, 5, 10_000)):
            later = [each for each in of_job if each.seq > after]
            assert store.events(after, limit, ("default", job)) == later[:limit]
            newest: list[Event] = later[-limit:] if limit else []
            assert store.events(after, limit, ("default", job), newest=True) == newest


def marked(path: str) -> list[int]:
    db = sqlite3.connect(path)
    blocks = [block for (block,) in db.execute("SELECT block FROM event_blocks ORDER BY block")]
    db.close()
    return blocks


def test_the_events_of_each_job_are_found_whoever_wrote_them(path: str, store: SqliteStore) -> None:
    other = SqliteStore(path)
    write(store, other, count=2_000)
    assert marked(path) == list(range(2_000 // BLOCK))
    assert_each_job_is_found(store)
    assert_each_job_is_found(other)
    other.close()


def test_pruned_blocks_are_forgotten_and_the_rest_is_found(path: str, store: SqliteStore) -> None:
    write(store, count=2_000)
    assert store.prune(keep=2_000 - BLOCK - 10, before_ms=0) == BLOCK + 10
    assert marked(path) == list(range(1, 2_000 // BLOCK))
    assert_each_job_is_found(store)
    assert store.prune(keep=0, before_ms=0) == 2_000 - BLOCK - 10
    assert marked(path) == []
    assert_each_job_is_found(store)
    store.commit({}, {}, [event("a") for _ in range(BLOCK)])
    assert_each_job_is_found(store)


def test_a_block_without_marks_is_read(path: str, store: SqliteStore) -> None:
    write(store, count=2_000)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM event_blocks WHERE block IN (0, 3)")
    db.commit()
    db.close()
    assert_each_job_is_found(store)


def test_two_jobs_with_one_mark_are_told_apart(store: SqliteStore) -> None:
    twin, name = "plumless", "buckeroo"
    assert marks_of([("default", twin)]) == marks_of([("default", name)])
    store.commit({}, {}, [event(twin) for _ in range(BLOCK)])
    assert store.events(0, 10, ("default", name)) == []


def test_a_rare_job_is_found_without_reading_the_blocks_of_others(store: SqliteStore) -> None:
    store.commit({}, {}, [event("rare"), *[event("often") for _ in range(20 * BLOCK)]])
    asked: list[str] = []
    with store._link as db:
        db.set_trace_callback(asked.append)
    assert len(store.events(0, 10, ("default", "rare"))) == 1
    assert sum("ORDER BY seq" in each for each in asked) == 2  # its block, and the last one, which is not full


@pytest.mark.promise("token:rises")
def test_numbers_go_on_when_the_events_that_carried_them_are_gone(path: str) -> None:
    clock = ManualClock()

    def opened() -> SqliteStore:
        return SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)

    store = opened()
    for token in range(1, 4):
        put(store, lock("x", token=token), events=(event("x", at_ms=clock()),))
    assert store.read([key_of("x")]).records[key_of("x")].version == 3
    assert store.prune(keep=0, before_ms=0) == 3
    store.close()
    clock.step_wall(-1_000_000)
    now_ms = clock()
    clock.reboot()
    store = opened()
    assert store.read(()).now_ms >= now_ms
    assert put(store, lock("x", token=4), events=(event("x", at_ms=store.read(()).now_ms),)) == 4
    assert store.read([key_of("x")]).records[key_of("x")].version == 4
    store.close()


def test_events_with_times_of_another_store_do_not_move_the_clock(path: str) -> None:
    clock = ManualClock()
    store = SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)
    for at_ms in (1, clock() + 10**9):
        store.commit({}, {}, [event("x", at_ms=at_ms)])
    store.close()
    clock.reboot()
    store = SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)
    assert store.read(()).now_ms == clock()
    assert store.commit({}, {}, [event("x")]) == 3
    store.close()
