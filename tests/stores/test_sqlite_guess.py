"""A job that nobody has heard of is presumed to be new: its claim reads nothing. A wrong guess is only a detour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core.commands import Acquire, Renew
from dibs.core.outcomes import Granted, Held, NotCurrent
from dibs.engine.coordinator import Coordinator
from dibs.stores.port import ABSENT, Conflict
from dibs.stores.sqlite import SqliteStore
from dibs.testing.contract_base import key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KNOWN, NEW = key_of("known"), key_of("new")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], SqliteStore]]:
    stores: list[SqliteStore] = []

    def another() -> SqliteStore:
        stores.append(SqliteStore(str(tmp_path / "dibs.db")))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


def acquire(name: str, lease_id: str) -> Acquire:
    return Acquire(ns="d", name=name, principal="p", owner=lease_id, ttl_ms=60_000, fresh_lease_id=lease_id)


def test_a_record_that_is_not_remembered_is_presumed_absent_beside_one_that_is(
    connect: Callable[[], SqliteStore],
) -> None:
    store = connect()
    put(store, lock("known"))
    recalled = store.recall([KNOWN, NEW])
    assert recalled.is_recalled
    assert recalled.records[NEW] == ABSENT


@pytest.mark.promise("excl")
def test_what_was_presumed_absent_is_not_written_over(connect: Callable[[], SqliteStore]) -> None:
    store, other = connect(), connect()
    put(other, lock("new", token=7))
    put(store, lock("known"))
    seen = {key: found.version for key, found in store.recall([KNOWN, NEW]).records.items()}
    assert seen[NEW] == 0
    with pytest.raises(Conflict):
        store.commit(seen, {NEW: lock("new", token=8)}, ())
    assert other.read([NEW]).records[NEW].record == lock("new", token=7)


def test_after_a_wrong_guess_the_file_is_asked(connect: Callable[[], SqliteStore]) -> None:
    store, other = connect(), connect()
    put(other, lock("new"), lock("another"))
    put(store, lock("known"))
    store.recall([KNOWN, NEW])
    assert store.read([NEW]).records[NEW].record == lock("new")  # as who decided by the guess would look
    another = store.recall([KNOWN, key_of("another")]).records[key_of("another")]
    assert another.record == lock("another")


def test_a_record_that_is_only_compared_is_read(connect: Callable[[], SqliteStore]) -> None:
    store, other = connect(), connect()
    put(other, lock("new"))
    put(store, lock("known"))
    seen = {key: found.version for key, found in store.recall([KNOWN, NEW]).records.items()}
    with pytest.raises(Conflict):
        store.commit(seen, {KNOWN: lock("known", token=2)}, ())


@pytest.mark.promise("excl")
def test_rules_that_decide_by_a_wrong_guess_decide_again(connect: Callable[[], SqliteStore]) -> None:
    first, second = Coordinator(connect()), Coordinator(connect())
    assert isinstance(second.one(acquire("mine", "0")), Granted)
    assert isinstance(first.one(acquire("job", "1")), Granted)
    assert isinstance(second.one(acquire("job", "2")), Held)
    assert isinstance(first.one(acquire("other", "3")), Granted)
    renewed = second.one(Renew(ns="d", name="other", principal="p", lease_id="3"))
    assert not isinstance(renewed, NotCurrent)
