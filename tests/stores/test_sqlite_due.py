"""What is due in an SQLite file. Its index may say so too early, and never too late."""

from __future__ import annotations

import random
import sqlite3
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.client import store_admin
from dibs.core.records import LockRecord
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Due
from dibs.stores.sqlite import SqliteStore, queries
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import drop, event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable

LATER_MS = 60_000


def entry_of(path: str, name: str) -> int | None:
    """When the file has a record as due."""
    db = sqlite3.connect(path)
    (due_ms,) = db.execute("SELECT due_ms FROM records WHERE key = ?", (key_of(name),)).fetchone()
    db.close()
    assert due_ms is None or isinstance(due_ms, int)
    return due_ms


def test_a_renewal_leaves_the_entry_and_it_is_corrected_when_its_time_comes(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store, first_ms = connect(), clock() + LATER_MS
    put(store, lock("x", expires_ms=first_ms))
    for renewed in range(1, 6):
        put(store, lock("x", expires_ms=first_ms + renewed * 1_000))
    assert entry_of(path, "x") == first_ms
    clock.advance(LATER_MS)
    assert store.due(10).keys == []
    assert entry_of(path, "x") == store.due(0).next_ms == first_ms + 5_000
    clock.advance(4_999)
    assert store.due(10).keys == []
    clock.advance(1)
    assert store.due(10).keys == [key_of("x")]


@pytest.mark.promise("lease:never-early")
def test_what_comes_sooner_than_before_is_due_in_time(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store = connect()
    put(
        store,
        lock("sooner", expires_ms=clock() + LATER_MS),
        LockRecord(ns="default", name="never", parked=True),
    )
    assert entry_of(path, "never") is None
    put(store, lock("sooner", expires_ms=clock() + 10), lock("never", expires_ms=clock() + 20))
    assert store.due(0).next_ms == clock() + 10
    clock.advance(10)
    assert store.due(10).keys == [key_of("sooner")]
    clock.advance(10)
    assert store.due(10).keys == [key_of("sooner"), key_of("never")]


def test_what_is_never_due_any_more_leaves_the_index_when_its_time_comes(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store = connect()
    put(store, lock("x", expires_ms=clock() + 10))
    put(store, LockRecord(ns="default", name="x", parked=True))
    clock.advance(10)
    assert (store.due(10).keys, store.due(0).next_ms) == ([], None)
    assert entry_of(path, "x") is None


@pytest.mark.promise("lease:never-early")
def test_it_says_the_same_as_a_store_that_looks_at_every_record(
    connect: Callable[[], SqliteStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "CORRECTED_MIN", 7)
    stores, true = [connect(), connect()], MemoryStore(clock)
    chance = random.Random(7)
    for _ in range(400):
        name = str(chance.randrange(12))
        if chance.random() < 0.1:
            for store in (chance.choice(stores), true):
                drop(store, key_of(name))
        else:
            record = lock(name, expires_ms=clock() + chance.randrange(-5, 100))
            if chance.random() < 0.2:
                record = LockRecord(ns="default", name=name, acl=("user:a",))
            for store in (chance.choice(stores), true):
                put(store, record)
        clock.advance(chance.randrange(4))
        said, really = chance.choice(stores).due(20), true.due(20)
        while said.next_ms == clock() and said.keys != really.keys:  # more than a few were early
            said = chance.choice(stores).due(20)
        assert said.keys == really.keys
        assert said.next_ms is None or really.next_ms is None or said.next_ms <= really.next_ms
        assert (said.next_ms is None) <= (really.next_ms is None)


def come_due_behind_early_entries(store: SqliteStore, clock: ManualClock) -> None:
    """One job is due, and 40 others have an earlier entry and were renewed."""
    now_ms = clock()
    names = [f"job-{number}" for number in range(40)]
    put(store, *[lock(name, expires_ms=now_ms + 10) for name in names])
    put(store, *[lock(name, expires_ms=now_ms + LATER_MS) for name in names])
    put(store, lock("due", expires_ms=now_ms + 20))
    clock.advance(20)


def test_many_early_entries_do_not_hide_what_is_due(
    connect: Callable[[], SqliteStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "CORRECTED_MIN", 5)
    store, now_ms = connect(), clock()
    come_due_behind_early_entries(store, clock)
    found = store.due(1)
    for _ in range(40):
        if found.keys:
            break
        assert found.next_ms is not None
        assert found.next_ms <= clock()  # a sweeper comes again soon
        found = store.due(1)
    assert found.keys == [key_of("due")]
    assert store.due(0).next_ms == now_ms + 20


def test_a_sweep_of_the_whole_store_gets_beyond_early_entries(
    connect: Callable[[], SqliteStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "CORRECTED_MIN", 5)
    monkeypatch.setattr(store_admin, "SWEEP_BATCH_MAX", 5)
    store = connect()
    come_due_behind_early_entries(store, clock)
    assert store_admin.sweep(store)["expired"] == 1


def test_a_sweep_gets_beyond_early_entries_if_what_stays_due_is_before_them(
    connect: Callable[[], SqliteStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "CORRECTED_MIN", 5)
    monkeypatch.setattr(store_admin, "SWEEP_BATCH_MAX", 5)
    store, newer, now_ms = connect(), connect(), clock()
    newer.commit({"kind/1": 0}, {"kind/1": lock("of a kind unknown here", expires_ms=now_ms + 5)}, ())
    come_due_behind_early_entries(store, clock)
    assert store.due(5) == Due(keys=["kind/1"], next_ms=now_ms + 5, has_more=True)
    assert store_admin.sweep(store)["expired"] == 1


@pytest.mark.promise("excl")
def test_a_correction_does_not_undo_what_another_process_wrote_meanwhile(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    one, other = connect(), connect()
    put(one, lock("x", expires_ms=clock() + 10))
    put(one, lock("x", expires_ms=clock() + LATER_MS))
    clock.advance(10)
    sooner_ms = clock() + 5

    def meanwhile(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":
            put(other, lock("x", expires_ms=sooner_ms))

    with one._link as db:
        db.set_trace_callback(meanwhile)
    one.due(10)
    assert entry_of(path, "x") == sooner_ms


def test_a_file_that_cannot_be_written_says_so_if_an_entry_is_early(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store = connect()
    put(store, lock("early", expires_ms=clock() + 10), lock("due", expires_ms=clock() + 10))
    with store._link as db:
        db.execute("PRAGMA query_only = 1")
    assert store.due(1).next_ms == clock() + 10
    with store._link as db:
        db.execute("PRAGMA query_only = 0")
    put(store, lock("early", expires_ms=clock() + LATER_MS))
    with store._link as db:
        db.execute("PRAGMA query_only = 1")
    clock.advance(10)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        store.due(1)
    assert entry_of(path, "early") == clock()
    assert store.due(1).keys == [key_of("due")]  # on another connection, which may write


def test_a_renewal_writes_neither_index(connect: Callable[[], SqliteStore], path: str, clock: ManualClock) -> None:
    store = connect()
    asked: list[str] = []
    put(store, lock("x", expires_ms=clock() + LATER_MS), events=(event("x", at_ms=clock()),))
    with store._link as db:
        db.set_trace_callback(asked.append)
    put(store, lock("x", expires_ms=clock() + 2 * LATER_MS))
    (update,) = [each for each in asked if each.startswith("UPDATE records")]
    db = sqlite3.connect(path)
    roots = {
        root
        for (root,) in db.execute("SELECT rootpage FROM sqlite_master WHERE name IN ('records_live', 'records_due')")
    }
    assert len(roots) == 2
    plan = db.execute(f"EXPLAIN {update}").fetchall()
    assert not roots & {row[3] for row in plan if row[1] == "OpenWrite"}
    db.close()


def test_a_due_record_of_a_newer_version_is_named_and_left_as_it_is(
    connect: Callable[[], SqliteStore], path: str, clock: ManualClock
) -> None:
    store = connect()
    put(store, lock("x", expires_ms=clock()))
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE records SET key = 'newer/x', body = '{}'")
    db.close()
    assert store.due(10).keys == ["newer/x"]
    assert store.due(0).next_ms == clock()
