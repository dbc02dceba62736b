"""What is particular to the SQLite store: its cache, its statements, its failures half-way."""

from __future__ import annotations

import random
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreCorrupt, StoreFull, StoreUnavailable
from dibs.base.ids import new_id
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.stores import waiters
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Conflict
from dibs.stores.sqlite import SqliteStore, opener, queries, rows
from dibs.stores.sqlite.connection import TROUBLE_MS
from dibs.testing.contract_base import drop, event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.base.errors import DibsError
    from dibs.core.records import Stored
    from dibs.stores.port import Store


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], SqliteStore]]:
    opened: list[SqliteStore] = []

    def connect() -> SqliteStore:
        opened.append(SqliteStore(str(tmp_path / "dibs.db")))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()


@pytest.fixture
def store(connect: Callable[[], SqliteStore]) -> SqliteStore:
    return connect()


def statements(store: SqliteStore) -> list[str]:
    """From now on, what the store asks SQLite to do."""
    asked: list[str] = []
    with store._link as db:
        db.set_trace_callback(asked.append)
    return asked


def test_a_file_that_another_process_makes_between_looking_and_opening_is_opened(
    connect: Callable[[], SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = opener.connect

    def open_too_early(path: str, wait_ms: int, how: str) -> sqlite3.Connection:
        try:
            return open_file(path, wait_ms, how)
        except sqlite3.OperationalError:
            monkeypatch.undo()
            put(connect(), lock("x"))  # the other process
            raise

    monkeypatch.setattr(opener, "connect", open_too_early)
    assert connect().read([key_of("x")]).records[key_of("x")].record is not None


def test_opening_a_file_that_is_up_to_date_takes_two_statements(
    connect: Callable[[], SqliteStore], store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    plain = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = plain(*args, **kwargs)
        db.set_trace_callback(asked.append)
        return db

    monkeypatch.setattr("dibs.stores.sqlite.opener.sqlite3.connect", traced)
    connect()
    assert len([each for each in asked if not each.startswith("--")]) == 2, asked  # "--": a part of another


def test_a_record_is_fetched_once_while_nobody_else_writes(
    connect: Callable[[], SqliteStore], store: SqliteStore
) -> None:
    put(store, lock("x"), lock("y"))
    other = connect()
    asked = statements(other)
    for _ in range(3):
        assert other.read([key_of("x")]).records[key_of("x")].record == lock("x")
    assert sum("FROM records" in each for each in asked) == 1
    put(other, lock("x", token=2))
    asked.clear()
    put(other, lock("x", token=3))
    assert not any("SELECT" in each for each in asked)  # its own writes are known, too

    put(store, lock("y", token=2))
    asked.clear()
    assert other.read([key_of("x")]).records[key_of("x")].record == lock("x", token=3)
    assert sum("FROM records" in each for each in asked) == 1


def test_a_read_of_cached_and_fresh_records_shows_one_moment(
    connect: Callable[[], SqliteStore], store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect()
    put(other, lock("left", token=1), lock("right", token=1))
    store.read([key_of("left")])  # this one is remembered, and the other is not
    fetch = store._cache.fetch

    def too_late(db: sqlite3.Connection, keys: list[str]) -> None:
        monkeypatch.undo()
        put(other, lock("left", token=2), lock("right", token=2))
        fetch(db, keys)

    monkeypatch.setattr(store._cache, "fetch", too_late)
    left, right = store.read([key_of("left"), key_of("right")]).records.values()
    assert left.version == right.version
    assert (left.record, right.record) == (lock("left", token=2), lock("right", token=2))


def test_a_commit_through_the_same_store_wakes_a_watch_without_waiting_for_its_next_look(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "POLL_MS_MIN", 60_000)
    monkeypatch.setattr(waiters, "POLL_MS_MAX", 60_000)
    answers: list[bool] = []
    watching = threading.Thread(target=lambda: answers.append(store.watch(0, 60_000)), daemon=True)
    watching.start()
    store.commit({}, {}, [event("x")])
    watching.join(60)
    assert answers == [True]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("room", [4, 1_000], ids=["a tiny cache", "a large cache"])
def test_two_connections_with_caches_answer_as_one_store_without(
    connect: Callable[[], SqliteStore], seed: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CACHE_ENTRIES_MAX", room)
    monkeypatch.setattr(rows, "DROPPED_AT_ONCE", seed % 3)
    rng = random.Random(seed)
    model = MemoryStore(lambda: 0)
    stores = [connect(), connect()]
    keys = [key_of(str(number)) for number in range(6)]
    for step in range(300):
        store = rng.choice(stores)
        some = rng.sample(keys, rng.randint(1, 5))
        fresh = {key: (found.version > 0, found.record) for key, found in store.read(some).records.items()}
        assert fresh == {key: (found.version > 0, found.record) for key, found in model.read(some).records.items()}
        if rng.random() < 0.7:
            expect = {key: found.version for key, found in store.read(some).records.items()}
            if rng.random() < 0.3:  # somebody is faster, and perhaps it matters
                changed = rng.choice(keys)
                for each in (rng.choice(stores), model):
                    put(each, lock(changed.rsplit("/", 1)[1], token=-step))
                if changed in some:
                    with pytest.raises(Conflict):
                        store.commit(expect, {}, [event("never")])
                    continue
            puts: dict[str, Stored | None] = {
                key: None if rng.random() < 0.3 else lock(key.rsplit("/", 1)[1], token=step)
                for key in rng.sample(some, rng.randint(0, len(some)))
            }
            told = [event("x", token=step)] * rng.randint(0, 2)
            versions = {key: found.version for key, found in model.read(some).records.items()}
            assert store.commit(expect, puts, told) == model.commit(versions, puts, told)
    for store in stores:
        assert [(key, found.record) for key, found in store.scan("")] == [
            (key, found.record) for key, found in model.scan("")
        ]
        assert store.events(0, 10_000) == model.events(0, 10_000)


def test_what_came_first_is_forgotten_first(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CACHE_ENTRIES_MAX", 10)
    monkeypatch.setattr(rows, "DROPPED_AT_ONCE", 2)
    for number in range(11):
        put(store, lock(str(number)))
    assert list(store._cache.records) == [key_of(str(number)) for number in range(3, 11)]


def test_long_records_are_forgotten_by_their_text(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CACHE_TEXT_MAX", 10_000)
    for number in range(20):
        put(store, lock(str(number)), lock(f"long-{number}").replace(acl=("user:" + 2_000 * "a",)))
        assert len(store._cache.records) <= 20
    assert len(store.scan("lock/")) == 40
    store._forget()
    store.read([key_of(f"long-{number}") for number in range(6)])
    assert store._cache._text > 6_000, "those that are read count, too"


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda store: store.events(5, 9), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (lambda store: store.events(5, 9, newest=True), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (lambda store: store.due(10), "records_due"),
        (lambda store: store.due(0).next_ms, "records_due"),
        (lambda store: store.scan("lock/", after="lock/a"), "sqlite_autoindex_records_1 (key>? AND key<?)"),
        (lambda store: store.scan("lock/", after="lock/a", live=True), "records_live (key>? AND key<?)"),
        (lambda store: store.scan("lock/a", live=True), "records_live (key>? AND key<?)"),
    ],
)
def test_what_is_asked_often_goes_by_an_index(store: SqliteStore, ask: Callable[[Store], object], index: str) -> None:
    asked = statements(store)
    ask(store)
    with store._link as db:
        db.set_trace_callback(None)
        plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {asked[0]}"))
    assert index in plan
    assert "TEMP B-TREE" not in plan


def test_many_events_are_pruned_a_few_at_a_time(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PRUNE_ROWS", 10)
    store.commit({}, {}, [event("x", at_ms=number) for number in range(95)])
    asked = statements(store)
    assert store.prune(keep=20, before_ms=33) == 75
    assert [each.at_ms for each in store.events(0, 100)] == list(range(75, 95))
    assert sum("DELETE" in each for each in asked) >= 8


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.fault("F-077")
def test_an_event_that_comes_while_old_ones_are_pruned_stays(connect: Callable[[], SqliteStore]) -> None:
    store, other = connect(), connect()
    store.commit({}, {}, [event("old", at_ms=1) for _ in range(20)])

    def meanwhile(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and len(committed) < 2:
            committed.append(other.commit({}, {}, [event("young", at_ms=100)]))

    committed: list[int] = []

    with store._link as db:
        db.set_trace_callback(meanwhile)
    assert store.prune(keep=1_000, before_ms=50) == 20
    assert [each.seq for each in store.events(0, 100)] == committed == [21]
    assert store.prune(keep=0, before_ms=50) == 1
    assert [each.seq for each in store.events(0, 100)] == [22]


@pytest.mark.fault("F-078")
def test_pruning_a_full_history_looks_at_what_goes_and_not_at_all_of_it(store: SqliteStore) -> None:
    store.commit({}, {}, [event("job", at_ms=1_000) for _ in range(20_010)])
    db, steps = store._link._db, [0]
    assert db is not None

    def count() -> int:
        steps[0] += 100
        return 0

    db.set_progress_handler(count, 100)
    assert store.prune(keep=20_000, before_ms=1) == 10
    db.set_progress_handler(None, 0)
    assert steps[0] < 5_000
    assert len(store.events(0, 100_000)) == 20_000


def test_an_interrupt_right_after_the_commit_does_not_spoil_what_is_remembered(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, lock("x", token=1))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store._cache, "remember", interrupted)
        with pytest.raises(KeyboardInterrupt):
            put(store, lock("x", token=2), events=(event("x"),))
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x", token=2)
    assert put(store, lock("x", token=3), events=(event("x"),)) == 2


class FailingAtCommit:
    """A cursor whose next COMMIT reports an I/O error, having happened or not."""

    def __init__(self, db: sqlite3.Cursor, *, happened: bool, code: int) -> None:
        self._db, self._happened, self._code = db, happened, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql == "COMMIT" and self._code:
            if self._happened:
                self._db.execute("COMMIT")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode, self._code = self._code, 0
            raise error
        return self._db.execute(sql, *values)


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_that_fails_on_the_disk_is_unknown_and_asking_again_finds_out(
    store: SqliteStore, happened: bool
) -> None:
    def fail_once() -> None:
        failing = FailingAtCommit(store._cursor, happened=happened, code=sqlite3.SQLITE_IOERR_FSYNC)
        store._cursor = failing  # type: ignore[assignment]

    fail_once()
    with pytest.raises(StoreUnavailable) as caught:
        put(store, lock("x"), events=(event("x"),))
    assert caught.value.unknown
    assert bool(store.events(0, 10)) == happened

    fail_once()
    command = Acquire(ns="default", name="y", principal="p", owner="o", ttl_ms=1000, fresh_lease_id=new_id())
    outcome = Coordinator(store).one(command)
    assert isinstance(outcome, Granted)
    assert outcome.lease.lease_id == command.fresh_lease_id
    assert [each.kind for each in store.events(0, 10, ("default", "y"))] == ["acquired"]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
def test_a_commit_that_was_refused_is_known_not_to_have_happened(store: SqliteStore, code: int) -> None:
    store._cursor = FailingAtCommit(store._cursor, happened=False, code=code)  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable) as caught:
        put(store, lock("x"))
    assert not caught.value.unknown
    assert store.scan("") == []
    put(store, lock("x"))


def test_a_store_with_everything_deleted_is_empty_and_goes_on_counting(store: SqliteStore) -> None:
    def last_version(each: Store) -> int:
        return each.read([key_of("x")]).records[key_of("x")].version

    put(store, lock("x"))
    first = last_version(store)
    drop(store, key_of("x"))
    put(store, lock("x"))
    assert last_version(store) > first


def test_numbering_that_goes_on_further_ahead_is_known_to_the_next_commit(store: SqliteStore) -> None:
    put(store, lock("x"), events=(event("x"),))
    store.number_from(100)
    put(store, lock("y"), events=(event("y"),))
    assert [each.seq for each in store.events(0, 10)] == [1, 101]


def test_who_asks_for_nothing_that_is_due_gets_nothing_but_the_time(store: SqliteStore) -> None:
    put(store, lock("x").replace(line=(1,), delay_until_ms=1))
    assert store.due(1).keys == [key_of("x")]
    assert (store.due(0).keys, store.due(0).next_ms) == ([], 1)


@pytest.mark.parametrize(
    ("trouble", "bytes_now", "since_ms", "full", "over"),
    [
        (StoreFull("full"), 500, 0, True, True),
        (StoreFull("full"), 499, 0, True, False),
        (StoreFull("full"), 499, TROUBLE_MS + 1_000, True, True),
        (StoreFull("full"), 499, 0, False, True),
        (StoreUnavailable("an error of the disk"), 499, 0, False, False),
        (StoreCorrupt("damaged"), 500, TROUBLE_MS + 1_000, False, False),
    ],
)
def test_trouble_is_over_when_a_commit_shows_it(
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    trouble: DibsError,
    bytes_now: int,
    since_ms: int,
    full: bool,
    over: bool,
) -> None:
    link = store._link
    monkeypatch.setattr("dibs.stores.sqlite.errors.is_full", lambda path: full)
    link.trouble, link.writing, link._failed_bytes = trouble, (("x" * bytes_now,), ()), 1_000
    link._failed_ms = steady_ms() - since_ms
    assert link._is_over() == over


def test_an_error_of_the_caller_is_no_trouble_and_damage_stays(store: SqliteStore) -> None:
    with pytest.raises(KeyError), store._link.turn, store._link:
        raise KeyError("a fault of ours")
    assert store.trouble() is None
    damage = sqlite3.DatabaseError("malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with pytest.raises(StoreCorrupt), store._link.turn, store._link:
        raise damage
    assert isinstance(store.trouble(), StoreCorrupt)
    with pytest.raises(StoreCorrupt):
        store.read([key_of("x")])
