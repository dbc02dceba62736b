"""Renewals leave the file's counters alone, and still no version of a record comes twice."""

from __future__ import annotations

import random
import sqlite3
from typing import TYPE_CHECKING

import pytest

from dibs.stores.port import Conflict
from dibs.stores.sqlite import SqliteStore, backup
from dibs.stores.sqlite.rows import PROGRESS, UNWRITTEN_MS
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import drop, event, key_of, lock, put, versions

if TYPE_CHECKING:
    from collections.abc import Callable


def row_of(path: str) -> tuple[int, int]:
    db = sqlite3.connect(path)
    revision, time_ms = db.execute(f"SELECT revision, time_ms FROM {PROGRESS}").fetchone()
    db.close()
    return revision, time_ms


def test_renewals_write_the_counters_once_a_second_and_not_more_often(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store = connect()
    put(store, lock("x"), events=(event("x", at_ms=clock()),))
    before = row_of(path)
    clock.advance(UNWRITTEN_MS - 1)
    for _ in range(3):
        put(store, lock("x"))
    assert row_of(path) == before
    assert versions(store, key_of("x")) == {key_of("x"): before[0] + 3}
    clock.advance(1)
    put(store, lock("x"))
    assert row_of(path) == (before[0] + 4, clock())


@pytest.mark.promise("excl")
def test_no_version_of_a_record_repeats_whoever_writes_and_deletes(
    connect: Callable[[], SqliteStore], clock: ManualClock
) -> None:
    stores, chance = [connect(), connect()], random.Random(3)
    seen: dict[str, set[int]] = {name: {0} for name in "abc"}
    for turn in range(300):
        if turn % 50 == 49:
            stores[turn % 2].close()
            stores[turn % 2] = connect()
        store, name = chance.choice(stores), chance.choice("abc")
        if chance.random() < 0.2:
            drop(store, key_of(name))
            continue
        told = (event(name, at_ms=clock()),) if chance.random() < 0.3 else ()
        put(store, lock(name), events=told)
        (version,) = versions(chance.choice(stores), key_of(name)).values()
        assert version not in seen[name]
        seen[name].add(version)
        clock.advance(chance.randrange(200))


@pytest.mark.promise("excl")
def test_who_read_a_record_before_it_was_renewed_deleted_and_made_again_is_refused(
    connect: Callable[[], SqliteStore], clock: ManualClock
) -> None:
    one, other = connect(), connect()
    put(one, lock("x"), events=(event("x", at_ms=clock()),))
    for _ in range(5):
        put(one, lock("x"))
    read = versions(other, key_of("x"))
    drop(one, key_of("x"))
    put(one, lock("x"), events=(event("x", at_ms=clock()),))
    for _ in range(10):
        with pytest.raises(Conflict):
            other.commit(read, {key_of("x"): lock("x", token=9)}, ())
        put(one, lock("x"))


@pytest.mark.promise("durable")
def test_after_a_power_cut_time_is_not_behind_the_last_renewal(
    connect: Callable[[], SqliteStore], clock: ManualClock
) -> None:
    store = connect()
    put(store, lock("x"), events=(event("x", at_ms=clock()),))
    clock.advance(UNWRITTEN_MS - 1)
    put(store, lock("x", token=2))
    renewed_ms = clock()
    store.close()
    clock.step_wall(-1_000_000)
    clock.reboot()
    store = connect()
    assert renewed_ms <= store.read(()).now_ms <= renewed_ms + UNWRITTEN_MS
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x", token=2)


def test_what_comes_after_a_restored_file_is_above_the_renewals_of_the_replaced_one(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store = connect()
    put(store, lock("x"), events=(event("x", at_ms=clock()),))
    for _ in range(5):
        put(store, lock("x"))
    store.close()
    with backup.sole_use(path) as found:
        assert found is not None
        assert found.revision == 6
