"""The connection's own state: how long a statement waits, what a failure leaves, forks, and the thread beside it."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base import platforms
from dibs.base.errors import DibsError, StoreCorrupt, StoreFull, StoreReplaced, StoreUnavailable
from dibs.stores.port import Busy, Conflict, RecordCorrupt
from dibs.stores.sqlite import SqliteStore, checkpoint, connection, opener, rows
from dibs.stores.waiters import StoreWaiter, StoreWaiters, wait_until
from dibs.testing.contract_base import event, key_of, lock, put
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY_MS = 321
A, B = key_of("a"), key_of("b")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(str(tmp_path / "dibs.db"), busy_ms=BUSY_MS)
    yield made
    made.close()


def waits_ms(store: SqliteStore) -> int:
    db = store._link._db
    assert db is not None
    found: tuple[int] = db.execute("PRAGMA busy_timeout").fetchone()
    return found[0]


def disk_error(code: int = sqlite3.SQLITE_IOERR) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


# How long a statement waits for other processes.


def test_a_statement_waits_as_long_as_its_caller_may_after_whatever_was_before(store: SqliteStore) -> None:
    link = store._link
    for is_impatient, is_new in [
        (True, False),
        (False, False),
        (True, False),
        (False, True),
        (True, False),
        (True, True),
    ]:
        if is_new:
            link._discard()
        if is_impatient and not is_new:
            with store.at_once():
                store.read([A])
        elif is_impatient:
            with store.at_once(), pytest.raises(Busy):  # opening may take long
                store.read([A])
            assert link._db is None
            continue
        else:
            store.read([A])
        assert waits_ms(store) == (connection.IMPATIENT_MS if is_impatient else BUSY_MS)


def test_only_the_thread_that_asked_for_it_is_impatient(store: SqliteStore) -> None:
    got: list[type] = []
    with store.at_once():
        assert isinstance(store._link.turn, connection.ShortTurn)
        thread = threading.Thread(target=lambda: got.append(type(store._link.turn)))
        thread.start()
        thread.join(WAIT_S_MAX)
    assert got == [type(store._link._lock)]
    assert not isinstance(store._link.turn, connection.ShortTurn)


# What a failure leaves.


@pytest.mark.parametrize(("bytes_", "is_over"), [(500, True), (499, False)])
def test_trouble_stays_until_a_commit_shows_that_it_is_over(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, bytes_: int, is_over: bool
) -> None:
    link = store._link
    monkeypatch.setattr(link, "_steady_ms", lambda: 5_000 + connection.TROUBLE_MS)
    link.trouble, link._failed_bytes, link._failed_ms = StoreUnavailable("disk"), 1_000, 5_000
    link.writing = (("x" * (bytes_ - 9),), ("x" * 9,))
    link.committed(1)
    assert (store.trouble() is None) == is_over


def fail(store: SqliteStore, error: BaseException, *, committing: bool = False, closes: bool = False) -> None:
    """A block that fails in the middle of its transaction."""
    with store._link.turn, store._link as db:
        db.execute("BEGIN IMMEDIATE")
        store._link.committing = committing
        if closes:
            db.close()
        raise error


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (disk_error(), StoreUnavailable),
        (disk_error(sqlite3.SQLITE_FULL), StoreFull),
        (disk_error(sqlite3.SQLITE_CORRUPT), StoreCorrupt),
        (disk_error(sqlite3.SQLITE_BUSY), None),
        (StoreCorrupt("a record"), StoreCorrupt),
        (Conflict(), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_block_that_fails_leaves_no_transaction_and_nothing_remembered(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: BaseException, kept: type | None
) -> None:
    put(store, lock("a"))
    store._link.writing = (("x" * 77,), ())
    is_told = isinstance(error, sqlite3.Error)
    with pytest.raises(DibsError if is_told else type(error)) as told:
        fail(store, error)
    assert not getattr(told.value, "unknown", False)
    assert store._link._db is not None
    assert not store._link._db.in_transaction
    assert (store._cache.records, store._cache.begun_at, store._counted_at) == ({}, None, None)
    trouble = store.trouble()
    assert trouble is None if kept is None else isinstance(trouble, kept)
    if kept in (StoreUnavailable, StoreFull):
        assert store._link._failed_bytes == 77
    if is_told and kept is StoreCorrupt:
        with pytest.raises(StoreCorrupt, match="damaged"):  # parts of it would make a held job look free
            store.read([A])
    else:
        assert store.read([A]).records[A].record == lock("a")


@pytest.mark.parametrize(
    ("code", "is_busy"), [(sqlite3.SQLITE_BUSY, True), (sqlite3.SQLITE_FULL, False), (sqlite3.SQLITE_IOERR, False)]
)
def test_only_a_file_that_others_use_is_busy_for_who_must_not_wait(
    store: SqliteStore, code: int, is_busy: bool
) -> None:
    with pytest.raises(StoreUnavailable) as told, store.at_once():
        fail(store, disk_error(code))
    assert isinstance(told.value, Busy) is is_busy


def test_an_error_before_the_first_commit_is_known_to_have_written_nothing(store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable) as told, store._link.turn, store._link:
        raise disk_error()
    assert not told.value.unknown


def test_an_error_after_a_commit_that_was_answered_is_not_in_doubt(store: SqliteStore) -> None:
    put(store, lock("a"))
    with pytest.raises(StoreUnavailable) as told, store._link.turn, store._link:
        raise disk_error()
    assert not told.value.unknown


def test_an_error_in_the_commit_itself_is_unknown_and_only_there(store: SqliteStore) -> None:
    for committing in (True, False):
        with pytest.raises(StoreUnavailable) as told:
            fail(store, disk_error(), committing=committing)
        assert told.value.unknown == committing
        assert not store._link.committing


@pytest.mark.parametrize(("code", "closes"), [(sqlite3.SQLITE_READONLY, False), (sqlite3.SQLITE_IOERR, True)])
def test_a_connection_that_was_read_only_or_does_not_work_any_more_is_not_used_again(
    store: SqliteStore, code: int, closes: bool
) -> None:
    before = store._link._db
    with pytest.raises(StoreUnavailable):
        fail(store, disk_error(code), closes=closes)
    put(store, lock("a"))
    assert store._link._db is not before


def test_a_connection_that_answers_nothing_any_more_is_not_used_again(store: SqliteStore) -> None:
    put(store, lock("a"))
    assert store._link._db is not None
    store._link._db.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
    with pytest.raises(StoreUnavailable), store._link.turn, store._link:
        raise disk_error()
    assert store.read([A]).records[A].record == lock("a")


def test_a_record_that_cannot_be_read_is_noted_by_its_key_and_the_store_goes_on(store: SqliteStore) -> None:
    put(store, lock("a"))
    with pytest.raises(RecordCorrupt):
        fail(store, RecordCorrupt("torn", A))
    assert list(store._link.damaged) == [A]
    assert store.trouble() is None
    assert store.read([A]).records[A].record == lock("a")


def test_a_connection_whose_file_is_gone_is_kept_for_ever() -> None:
    db = sqlite3.connect(":memory:")
    before = sys.getrefcount(db)
    connection._abandon(db)
    assert sys.getrefcount(db) == before + 1


class OneRow:
    def __init__(self, row: tuple[object, ...] | None) -> None:
        self.row = row

    def execute(self, statement: str) -> OneRow:
        return self

    def fetchone(self) -> tuple[object, ...] | None:
        return self.row


def test_counters_that_are_not_all_numbers_are_damaged() -> None:
    assert rows.read_counters(OneRow((1, 2, 3))) == (1, 2, 3)  # type: ignore[arg-type]
    for row in (None, ("1", 2, 3), (1, None, 3), (1, 2, b"3"), (1, 2, 3.0)):
        with pytest.raises(StoreCorrupt, match="counters"):
            rows.read_counters(OneRow(row))  # type: ignore[arg-type]


def test_a_smaller_trouble_does_not_hide_damage(store: SqliteStore) -> None:
    store._link.trouble = StoreCorrupt("a record")
    with pytest.raises(StoreUnavailable):
        fail(store, disk_error(sqlite3.SQLITE_FULL))
    assert isinstance(store.trouble(), StoreCorrupt)


def test_a_file_that_went_away_is_reported_also_if_its_connection_was_lost(store: SqliteStore) -> None:
    put(store, lock("a"))
    store._link._discard()
    os.rename(store.path, f"{store.path}.away")
    with pytest.raises(StoreReplaced):
        store.read([A])
    os.rename(f"{store.path}.away", store.path)
    assert store.read([A]).records[A].record == lock("a")


def test_a_closed_store_says_so(store: SqliteStore) -> None:
    store.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.read([A])


def test_a_file_without_counters_is_damaged(store: SqliteStore) -> None:
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE counters SET revision = 'x'")
    db.close()
    with pytest.raises(StoreCorrupt, match="counters"):
        store.newest_seq()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_is_not_what_the_cache_says_is_a_conflict(store: SqliteStore, is_there: bool) -> None:
    put(store, lock("a"), lock("b"))
    version = store.read([A]).records[A].version
    db = store._link._db  # the same connection: its own changes do not make the cache untrue
    assert db is not None
    if is_there:
        del store._cache.records[A]
        with pytest.raises(Conflict):
            store.commit({A: 0}, {A: lock("a", token=2)}, ())
    else:
        db.execute("DELETE FROM records WHERE key = ?", (A,))
        with pytest.raises(Conflict):
            store.commit({A: version}, {A: lock("a", token=2)}, ())
    assert store.read([B]).records[B].record == lock("b")


def test_a_file_on_a_medium_that_cannot_be_written_is_opened_afresh_each_time(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, lock("a"))
    store.close()

    open_file = connection.SqliteConnection._try

    def cannot(self: connection.SqliteConnection, how: str) -> sqlite3.Connection | None:
        if how == "mode=rw":
            raise disk_error(sqlite3.SQLITE_READONLY)
        return open_file(self, how)

    monkeypatch.setattr(connection.SqliteConnection, "_try", cannot)
    with pytest.raises(StoreUnavailable):
        SqliteStore(store.path)
    monkeypatch.setattr(opener, "is_read_only_media", lambda path, error: True)
    frozen = SqliteStore(store.path)
    before = frozen._link._db
    assert frozen.read([A]).records[A].record == lock("a")
    assert frozen._link._db is not before, "it might be another file by now"
    frozen.close()


@pytest.mark.parametrize("failures", [connection.OPENINGS_MAX - 1, connection.OPENINGS_MAX])
def test_a_file_that_is_being_put_in_place_is_opened_again_so_often(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    tries: list[str] = []

    def replaced(how: str) -> sqlite3.Connection | None:
        tries.append(how)
        return None if len(tries) <= failures else sqlite3.connect(":memory:")

    monkeypatch.setattr(store._link, "_try", replaced)
    if failures < connection.OPENINGS_MAX:
        store._link._try_until_settled().close()
    else:
        with pytest.raises(sqlite3.OperationalError, match="replaced while it was opened"):
            store._link._try_until_settled()
    assert tries == ["mode=rw"] * connection.OPENINGS_MAX


@pytest.mark.parametrize("code", [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR])
def test_a_file_that_may_not_be_written_has_a_time_without_an_anchor_and_other_errors_are_reported(
    tmp_path: Path, code: int
) -> None:
    boot = ["one"]
    store = SqliteStore(str(tmp_path / "dibs.db"), boot_id=lambda: boot[0], wall_ms=lambda: 10**12, steady_ms=lambda: 7)
    boot[0] = "two"
    db = sqlite3.connect(f"file:{store.path}?mode=ro", uri=True, isolation_level=None)
    if code == sqlite3.SQLITE_READONLY:
        store._opened(db, "id", 2 * 10**12, (None, None))
        assert store._clock.now_ms() == 2 * 10**12 + rows.UNWRITTEN_MS
        assert not db.in_transaction
    else:
        db.execute("BEGIN")  # a second one is an error of its own
        with pytest.raises(sqlite3.OperationalError):
            store._opened(db, "id", 0, (None, None))
    db.close()
    store.close()


def test_an_error_of_the_disk_while_opening_is_not_taken_for_a_new_file(store: SqliteStore) -> None:
    class Failing(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            raise disk_error()

    with pytest.raises(sqlite3.OperationalError):
        store._link._look(Failing(":memory:"))


def test_what_is_checked_is_the_file_and_a_write(store: SqliteStore) -> None:
    file, write = store.probe()
    assert (file["check"], file["ok"], file["says"], write["ok"]) == ("file", True, "is whole", True)
    assert store.migrated()[1] == store.migrated()[0] or store.migrated()[0] == 0


def test_who_deletes_a_record_wakes_those_who_wait_for_it_in_this_store(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(checkpoint, "wake", lambda store_id, keys: told.append((store_id, list(keys))))
    put(store, lock("a"), lock("b"))
    assert told == []
    versions = {key: found.version for key, found in store.read([A, B]).records.items()}
    store.commit(versions | {key_of("c"): 0}, {A: None, B: lock("b", token=2), key_of("c"): None}, ())
    with sqlite3.connect(store.path) as db:
        (store_id,) = db.execute("SELECT store_id FROM counters").fetchone()
    db.close()
    assert told == [(store_id, [A])]


def test_another_system_has_no_names_to_wake_by_and_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "IS_LINUX", False)
    monkeypatch.setattr(socket, "socket", None)  # nobody may make one
    checkpoint.wake("store", [A])
    slept: list[float] = []
    monkeypatch.setattr(checkpoint, "sleep", slept.append)
    with checkpoint.Wakeup("store", A) as wakeup:
        assert not wakeup.can_hear
        wakeup.wait(250)
    assert slept == [0.25]


# Forks.


@pytest.mark.parametrize("in_child", [True, False])
@pytest.mark.parametrize("in_use", [True, False])
def test_after_a_fork_both_go_on_whatever_was_under_way(store: SqliteStore, in_child: bool, in_use: bool) -> None:
    put(store, lock("a"))
    link, before = store._link, store._link._lock
    link.before_fork()
    assert (link._db, store._cache.records) == (None, {})
    if in_use:  # as if another thread had had it for too long
        link._forking = False
        before.release()
        link._db = sqlite3.connect(store.path)
        link._unsettled = True
    left_behind = len(connection._left_behind)
    link.after_fork(in_child=in_child)
    assert not link._forking
    assert len(connection._left_behind) - left_behind == (in_child and in_use)
    assert (link._lock is before) == (not (in_child and in_use))
    assert link._unsettled == (in_use and not in_child)
    if in_use and not in_child:
        return  # the connection is the test's
    assert store.read([A]).records[A].record == lock("a")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(store.read([A])), daemon=True)
    thread.start()
    thread.join(WAIT_S_MAX)
    assert got, "the lock was not given back"


def test_an_interrupt_as_soon_as_a_fork_has_the_lock_does_not_keep_it(store: SqliteStore) -> None:
    link, real = store._link, store._link._lock

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            real.acquire()
            raise KeyboardInterrupt

    link._lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        link.before_fork()
    link._lock = real
    link.after_fork(in_child=False)
    assert not link._is_mine()


def test_a_fork_does_not_close_what_another_thread_uses_for_too_long(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FORK_WAIT_S", 0.01)
    before, inside, leave = store._link._db, threading.Event(), threading.Event()

    def use() -> None:
        with store._link.turn:
            inside.set()
            leave.wait(WAIT_S_MAX)

    thread = threading.Thread(target=use)
    thread.start()
    assert inside.wait(WAIT_S_MAX)
    store._link.before_fork()
    store._link.after_fork(in_child=False)
    leave.set()
    thread.join(WAIT_S_MAX)
    assert store._link._db is before


def test_a_fork_in_the_middle_of_a_block_leaves_it_alone(store: SqliteStore) -> None:
    with store._link.turn, store._link as db:
        store._link.before_fork()
        store._link.after_fork(in_child=False)
        assert db.execute("SELECT 1").fetchone() == (1,)
    put(store, lock("a"))


# The thread that moves the log.


class Moves(checkpoint.Checkpointer):
    """Notes when the thread would begin."""

    def __init__(self, pages: int) -> None:
        super().__init__("nowhere", pages)
        self.moved = 0

    def _move(self) -> None:
        self.moved += 1


@pytest.mark.parametrize(
    ("commits", "moved"),
    [
        ([(9, 0)], 0),
        ([(10, 0)], 1),
        ([(5, 1)], 0),  # a history has its pages, and each event one more
        ([(6, 1)], 1),
        ([(0, 6)], 0),
        ([(0, 7)], 1),
        ([(5, 0), (4, 0)], 0),
        ([(5, 0), (5, 0)], 1),
        ([(10, 0), (9, 0)], 1),
        ([(10, 0), (10, 0)], 2),
    ],
)
def test_the_log_is_moved_when_about_so_many_pages_were_written(commits: list[tuple[int, int]], moved: int) -> None:
    checkpointer = Moves(10)
    db = sqlite3.connect(":memory:")
    for records, events in commits:
        checkpointer.committed(db, records, events)
        checkpointer.close()
    assert checkpointer.moved == moved
    db.close()


def test_while_the_thread_works_no_other_begins_and_the_next_commit_moves_the_rest() -> None:
    checkpointer = Moves(10)
    asked: list[str] = []
    db = sqlite3.connect(":memory:")
    db.set_trace_callback(asked.append)
    with checkpointer._working:
        checkpointer.committed(db, 50, 0)
    checkpointer.close()
    assert (checkpointer.moved, asked) == (0, [])
    checkpointer._is_short = True
    checkpointer.committed(db, 50, 0)
    assert (checkpointer.moved, asked) == (0, ["PRAGMA wal_checkpoint(PASSIVE)"])
    checkpointer.committed(db, 9, 0)
    checkpointer.close()
    assert checkpointer.moved == 0, "it counts anew after that"
    checkpointer.committed(db, 1, 0)
    checkpointer.close()
    assert (checkpointer.moved, len(asked)) == (1, 1)
    db.close()


def test_a_thread_that_cannot_begin_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = Moves(10)
    db = sqlite3.connect(":memory:")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_more_threads)
        checkpointer.committed(db, 10, 0)
    checkpointer.close()
    checkpointer.committed(db, 10, 0)
    checkpointer.close()
    assert checkpointer.moved == 1
    db.close()


def _no_more_threads(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_commits_move_a_log_themselves_only_if_the_thread_cannot(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "dibs.db"), checkpoint_pages=40)
    db = store._link._db
    assert db is not None
    assert db.execute("PRAGMA wal_autocheckpoint").fetchone() == (40 * checkpoint.FALLBACK,)
    assert db.execute("PRAGMA journal_size_limit").fetchone() == (checkpoint.LOG_BYTES_KEPT,)
    put(store, lock("a"), events=(event("a"),))
    store.close()


@pytest.mark.parametrize("in_child", [True, False])
def test_a_fork_waits_for_the_thread_and_gives_its_turn_back(in_child: bool) -> None:
    checkpointer = Moves(10)
    checkpointer._worker = threading.Thread(target=print)
    lock_before = checkpointer._working
    checkpointer.before_fork()
    assert checkpointer._working.locked()
    checkpointer.after_fork(in_child=in_child)
    assert not checkpointer._working.locked()
    assert (checkpointer._working is lock_before) == (not in_child)
    assert (checkpointer._worker is None) == in_child
    checkpointer.after_fork(in_child=False)  # of a fork that did not wait for it: it has nothing to give back
    assert not checkpointer._working.locked()


# Threads that wait for the store.


def test_who_waited_waits_no_more_and_a_wake_is_for_those_it_names() -> None:
    waiters, looks = StoreWaiters(), []

    def is_so(waiter: StoreWaiter) -> bool:
        looks.append(waiter)
        assert waiters._waiting == [waiter]
        waiters.wake(("other",), 7)
        assert waiter._woken.locked()
        waiters.wake(("key",), 5)
        assert not waiter._woken.locked()
        waiters.wake(("key",), 3)
        return len(looks) == 2

    assert waiters.until("key", is_so, lambda last_ms: 60_000, 60_000)
    assert (waiters._waiting, looks[0].heard) == ([], 5)
    one = StoreWaiter(None)
    waiters._waiting.append(one)
    waiters.wake_all()
    assert (one._woken.locked(), one.heard) == (False, 0)


def test_a_wait_looks_once_even_without_time_and_never_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.stores import waiters

    now = [1_000]
    monkeypatch.setattr(waiters, "steady_ms", lambda: now[0])
    waited: list[int] = []

    def wait(ms: int) -> None:
        waited.append(ms)
        now[0] += ms

    assert not wait_until(lambda: False, wait, lambda last_ms: last_ms + 10, 35)
    assert waited == [10, 20, 5]
    assert not wait_until(lambda: False, wait, lambda last_ms: 10, 0)
    assert wait_until(lambda: True, wait, lambda last_ms: 10, 0)
    assert waited == [10, 20, 5]


def test_a_link_that_leads_nowhere_stays_and_nothing_is_made(tmp_path: Path) -> None:
    os.symlink(tmp_path / "gone.db", tmp_path / "dibs.db")
    with pytest.raises(DibsError):
        SqliteStore(str(tmp_path / "dibs.db"), busy_ms=BUSY_MS).read((A,))
    assert not (tmp_path / "gone.db").exists()


def test_closing_waits_for_the_thread_that_moves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, begun = opener.connect, threading.Event()

    def slow(path: str, busy_ms: int) -> sqlite3.Connection:
        begun.set()
        threading.Event().wait(0.1)
        return connect(path, busy_ms)

    monkeypatch.setattr(checkpoint, "connect", slow)
    others = {*threading.enumerate()}
    store = SqliteStore(str(tmp_path / "dibs.db"), checkpoint_pages=1)
    put(store, lock("a"))
    assert begun.wait(WAIT_S_MAX)
    store.close()
    assert not [each for each in threading.enumerate() if each.name == "dibs-checkpoint" and each not in others]
