"""A server's log is moved into the file by a thread, beside the commits."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from dibs.base import platforms
from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.stores.sqlite import SqliteStore, checkpoint, opener
from dibs.testing.contract_base import event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = 40
PAGE_BYTES = opener.PAGE_BYTES


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dibs.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteStore(path, checkpoint_pages=PAGES)
    yield store
    store.close()


def write(store: SqliteStore, count: int, *, begin: int = 0) -> None:
    """Commits, each after the thread of the one before has ended."""
    for number in range(begin, begin + count):
        put(store, lock(f"job-{number}"), events=(event(f"job-{number}"),))
        assert store._checkpointer is not None
        store._checkpointer.close()


def log_pages(path: str) -> int:
    return os.stat(f"{path}-wal").st_size // PAGE_BYTES


def test_the_log_stays_short_and_the_file_has_everything(store: SqliteStore, path: str) -> None:
    write(store, 300)
    assert log_pages(path) < 3 * PAGES
    assert len(store.scan("lock/")) == 300
    assert store.notices() == []


def test_the_log_stays_short_although_something_is_always_committed_while_it_is_moved(
    store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = checkpoint.Checkpointer._move_on

    def moved_beside_a_commit(self: checkpoint.Checkpointer, db: sqlite3.Connection) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE records SET live = live")
        move(self, db)
        other.execute("COMMIT")
        other.close()

    monkeypatch.setattr(checkpoint.Checkpointer, "_move_on", moved_beside_a_commit)
    write(store, 300)
    assert log_pages(path) < 3 * PAGES


@pytest.mark.promise("durable")
def test_what_was_committed_is_there_without_the_log_or_in_it(store: SqliteStore, path: str) -> None:
    write(store, 100)
    other = SqliteStore(path)
    assert len(other.scan("lock/")) == 100
    other.close()
    store.close()
    assert not os.path.exists(f"{path}-wal")
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM records").fetchone() == (100,)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_what_is_remembered_stays_so_when_the_log_is_moved(store: SqliteStore) -> None:
    put(store, lock("x"))
    remembered = store.read([key_of("x")]).records[key_of("x")]
    write(store, 100)
    assert store.read([key_of("x")]).records[key_of("x")] is remembered


def test_a_reader_that_does_not_end_is_noticed(
    store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "NOTICE", 4)
    write(store, 1)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
    write(store, 100, begin=1)
    assert ["reading the file" in each for each in store.notices()] == [True]
    assert ["reading the file" in each.message for each in caplog.records] == [True]  # once
    assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
    reader.close()
    write(store, 30, begin=101)
    assert store.notices() == []
    length = log_pages(path)
    write(store, 60, begin=131)
    assert log_pages(path) == length  # it is written from its beginning again


def test_a_thread_that_cannot_work_fails_no_commit(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("dibs.stores.sqlite.checkpoint.connect", refused)
    write(store, 30)
    monkeypatch.undo()
    assert len(store.scan("lock/")) == 30


def test_a_fork_waits_for_the_thread_and_the_child_goes_on(store: SqliteStore) -> None:
    write(store, 20)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write(store, 40, begin=100)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    write(store, 20, begin=200)
    assert len(store.scan("lock/")) == 80


def test_a_log_that_was_very_long_is_cut(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LOG_BYTES_KEPT", PAGES * PAGE_BYTES)
    store = SqliteStore(path, checkpoint_pages=PAGES)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchone()
    write(store, 100)
    assert log_pages(path) > 5 * PAGES  # the reader keeps it
    reader.close()
    write(store, 100, begin=100)
    assert log_pages(path) <= 3 * PAGES
    store.close()


@pytest.mark.parametrize(
    ("length", "left", "told"),
    [
        (checkpoint.NOTICE * PAGES, PAGES + 1, True),
        (checkpoint.NOTICE * PAGES, PAGES, False),
        (checkpoint.NOTICE * PAGES - 1, PAGES + 1, False),
    ],
)
def test_a_log_is_worth_a_notice_if_it_is_long_and_could_not_be_moved(length: int, left: int, told: bool) -> None:
    assert (checkpoint.Checkpointer("dibs.db", PAGES)._about(length, left) is not None) == told


@pytest.mark.skipif(not platforms.IS_LINUX, reason="elsewhere a waiter looks from time to time")
def test_who_waits_for_a_record_is_woken_and_nobody_else() -> None:
    store_id = new_id()
    with checkpoint.Wakeup(store_id, "mine") as mine, checkpoint.Wakeup(store_id, "another") as another:
        assert mine.can_hear
        with checkpoint.Wakeup(store_id, "mine") as second:
            assert not second.can_hear
            began_ms = steady_ms()
            second.wait(20)
            assert steady_ms() - began_ms >= 19
        checkpoint.wake(store_id, ["mine", "of nobody"])
        began_ms = steady_ms()
        mine.wait(60_000)
        another.wait(1)
        assert steady_ms() - began_ms < 30_000
