"""A thread that must not wait for others gets Busy in their place, and everybody else waits as before."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.stores.port import Busy
from dibs.stores.sqlite import SqliteStore
from dibs.testing.contract_base import key_of, lock, put
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY_MS = 300
X = key_of("x")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(str(tmp_path / "dibs.db"), busy_ms=BUSY_MS)
    yield made
    made.close()


@pytest.fixture
def writer(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Another process that writes, as far as the file knows."""
    made = sqlite3.connect(store.path, isolation_level=None)
    yield made
    made.close()


def test_the_write_lock_of_another_process_is_not_waited_for(store: SqliteStore, writer: sqlite3.Connection) -> None:
    for round_ in range(3):  # how long a statement waits is changed to and fro
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(Busy), store.at_once():
            store.commit({X: store.read([X]).records[X].version}, {X: lock("x", token=round_)}, ())
        began_ms = steady_ms()
        with pytest.raises(StoreUnavailable, match=r"in use .*for more than 0\.3 seconds") as refused:
            put(store, lock("x", token=round_))
        assert steady_ms() - began_ms >= BUSY_MS
        assert not isinstance(refused.value, Busy)
        writer.execute("ROLLBACK")
        with store.at_once():
            put(store, lock("x", token=round_))
        assert store.read([X]).records[X].record == lock("x", token=round_)


def test_another_thread_of_this_process_is_not_waited_for_and_may_wait_itself(store: SqliteStore) -> None:
    inside, leave, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with store._link.turn, store._link:
            inside.set()
            assert leave.wait(WAIT_S_MAX)

    def wait() -> None:
        put(store, lock("x"))
        done.set()

    threads = [threading.Thread(target=each, daemon=True) for each in (hold, wait)]
    threads[0].start()
    assert inside.wait(WAIT_S_MAX)
    threads[1].start()
    with pytest.raises(Busy), store.at_once():
        store.read([X])
    leave.set()
    assert done.wait(WAIT_S_MAX)
    for thread in threads:
        thread.join(WAIT_S_MAX)
    with store.at_once():
        assert store.read([X]).records[X].record == lock("x")


def test_a_file_that_has_to_be_opened_again_is_left_to_others(store: SqliteStore) -> None:
    put(store, lock("x"))
    store._link._discard()
    with pytest.raises(Busy), store.at_once():
        store.read([X])
    assert store.read([X]).records[X].record == lock("x")
    with store.at_once():
        assert store.read([X]).records[X].record == lock("x")
