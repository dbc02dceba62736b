"""The file's format moves on in numbered steps, each file in one transaction."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import DibsError, StoreUnavailable
from dibs.stores import formats
from dibs.stores.codec import FORMAT
from dibs.stores.sqlite import SqliteStore, connection, opener
from dibs.stores.sqlite import store as store_module
from dibs.stores.sqlite.rows import PROGRESS
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event, in_threads, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD_STEP = ("CREATE TABLE notes (text TEXT)", "ALTER TABLE records ADD COLUMN note TEXT")
TABLES = {"records", "events", "event_blocks", "counters", "anchors"}
BAD_STEP = ("CREATE TABLE half_done (text TEXT)", "INSERT INTO no_such_table VALUES (1)")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with something in it."""
    path = str(tmp_path / "dibs.db")
    store = SqliteStore(path)
    put(store, lock("x"), events=(event("x"),))
    store.close()
    return path


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that these steps were added in a release."""

    def release(*steps: tuple[str, ...]) -> None:
        last = FORMAT + len(steps)
        more = dict(zip(range(FORMAT + 1, last + 1), steps, strict=True))
        monkeypatch.setattr(opener, "MIGRATIONS", {**opener.MIGRATIONS, **more})
        for number in more:
            row = formats.Format(formats.SQLITE, number, "9.9.9")
            monkeypatch.setitem(formats._BY_NUMBER, (formats.SQLITE, number), row)
        for module in (opener, connection, store_module):
            monkeypatch.setattr(module, "FORMAT", last)

    return release


def inside(path: str) -> tuple[int, set[str]]:
    db = sqlite3.connect(path)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    return version, tables


def test_an_older_file_is_brought_up_to_date_and_keeps_what_it_has(path: str, released: Callable[..., None]) -> None:
    released(GOOD_STEP, ("CREATE TABLE more (text TEXT)",))
    store = SqliteStore(path)
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x")
    assert put(store, lock("y"), events=(event("y"),)) == 2
    store.close()
    assert inside(path) == (FORMAT + 2, {*TABLES, "notes", "more"})


@pytest.mark.promise("durable")
def test_a_step_that_fails_changes_nothing_and_the_old_version_still_opens_it(
    path: str, released: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = inside(path)
    with monkeypatch.context() as patched:
        released(GOOD_STEP, BAD_STEP)
        with pytest.raises(DibsError, match="no_such_table"):
            SqliteStore(path)
        patched.undo()
    monkeypatch.undo()
    assert inside(path) == before == (FORMAT, TABLES)
    store = SqliteStore(path)
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x")
    store.close()


def test_of_several_that_find_an_old_file_one_does_the_work(path: str, released: Callable[..., None]) -> None:
    released(GOOD_STEP)
    in_threads([lambda: SqliteStore(path).close() for _ in range(6)])
    assert inside(path) == (FORMAT + 1, {*TABLES, "notes"})


def test_a_copy_without_the_write_ahead_log_gets_it_back(path: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    db = sqlite3.connect(path)
    db.execute("VACUUM INTO ?", (copy,))
    db.close()
    store = SqliteStore(copy)
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x")
    with store._link as opened:
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert opened.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


@pytest.mark.promise("excl")
def test_when_a_newer_version_changes_the_format_nothing_is_written_by_any_call(path: str) -> None:
    clock = ManualClock()
    store = SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)
    now_ms = store.read(()).now_ms
    put(store, lock("early", expires_ms=now_ms + 10))
    put(store, lock("early", expires_ms=now_ms + 60_000))
    clock.advance(10)
    newer = sqlite3.connect(path)
    newer.execute(f"DROP VIEW {PROGRESS}")
    before = list(newer.iterdump())
    calls: tuple[Callable[[], object], ...] = (
        lambda: put(store, lock("early", expires_ms=now_ms + 90_000)),
        lambda: store.due(10),
        lambda: store.prune(keep=0, before_ms=10**15),
    )
    for call in calls:
        with pytest.raises(StoreUnavailable, match="a newer dibs has brought it up to date"):
            call()
    assert list(newer.iterdump()) == before
    newer.close()
    store.close()


_STOPS_IN_THE_MIDDLE = """
import sys, time
from dibs.stores.sqlite import SqliteStore, connection, opener

def stop():
    print("here", flush=True)
    time.sleep(60)

def prepare(db, *more):
    db.create_function("stop", 0, stop)
    return known(db, *more)

known, opener.prepare = opener.prepare, prepare
connection.FORMAT = opener.FORMAT = opener.FORMAT + 1
opener.MIGRATIONS[opener.FORMAT] = ("CREATE TABLE notes (text TEXT)", "SELECT stop()")
SqliteStore(sys.argv[1])
"""


@pytest.mark.promise("durable")
def test_a_process_killed_in_the_middle_changes_nothing(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", _STOPS_IN_THE_MIDDLE, path], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"here\n"
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
    assert inside(path) == (FORMAT, TABLES)
    store = SqliteStore(path)
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x")
    store.close()
