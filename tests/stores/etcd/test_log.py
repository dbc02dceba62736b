"""Events in chapters, pruning, and the index of what is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.etcd import log, upkeep
from dibs.stores.etcd import store as due_index
from dibs.stores.etcd.location import COMMIT_EVENTS_MAX, revision_of
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.etcd.transaction import end_of
from dibs.testing.contract_base import WAIT_S_MAX, event, in_threads, key_of, lock, put
from tests.stores.etcd.counter import increment

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def short_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CHAPTER_COMMITS", 4)


@pytest.mark.usefixtures("short_chapters")
def test_events_keep_their_order_across_chapters_and_writers(connect: Callable[[], EtcdStore]) -> None:
    stores = [connect() for _ in range(3)]

    def work(store: EtcdStore) -> None:
        for _ in range(20):
            increment(store)

    in_threads([lambda store=store: work(store) for store in stores])  # type: ignore[misc]
    reader = connect()
    assert [each.token for each in reader.events(0, 100)] == list(range(1, 61))
    assert [each.token for each in reader.events(0, 7, newest=True)] == list(range(54, 61))
    assert [each.token for each in reader.events(0, 7, ("default", "n"), newest=True)] == list(range(54, 61))
    seqs = [each.seq for each in reader.events(0, 100)]
    for at in range(0, 60, 7):
        for job in (None, ("default", "n")):
            assert [each.token for each in reader.events(seqs[at], 5, job)] == list(range(at + 2, min(at + 7, 61)))
    assert len(reader._log.starts) > 5


@pytest.mark.usefixtures("short_chapters")
def test_pruning_in_steps_leaves_exactly_what_is_kept_and_no_key_of_the_rest(
    connect: Callable[[], EtcdStore],
) -> None:
    store = connect()
    for number in range(40):
        store.commit({}, {}, [event(f"j{number % 3}", at_ms=number, token=number), event("all", at_ms=number)])
    assert store.prune(keep=1_000, before_ms=0) == 0
    assert store.prune(keep=41, before_ms=0) == 39
    assert store.prune(keep=1_000, before_ms=25) == 11
    for each in (store, connect()):
        found = each.events(0, 100)
        assert [event.at_ms for event in found if event.job == "all"] == list(range(25, 40))
        assert len(found) == 30
        assert [event.at_ms for event in each.events(0, 100, ("default", "all"))] == list(range(25, 40))
    assert store._pruner.wait(WAIT_S_MAX)
    assert store.prune(keep=0, before_ms=0) == 30
    assert store._pruner.wait(WAIT_S_MAX)
    left = {key for key in _keys(store) if key.startswith((b"e/", b"h/"))}
    assert left == set()
    assert connect().events(0, 10) == []


@pytest.mark.fault("F-043")
def test_pruning_keeps_the_end_of_a_commit_with_as_many_events_as_a_commit_may_have(store: EtcdStore) -> None:
    many = [event("x", token=number) for number in range(COMMIT_EVENTS_MAX)]
    while revision_of(store.commit({}, {}, many)) % 2 == 0:
        pass  # an odd revision, whose lowest bit the number of events must not meet
    for _ in range(2):
        store.prune(keep=10, before_ms=0)
        assert store._pruner.wait(WAIT_S_MAX)
        assert [each.token for each in store.events(0, 100)] == list(range(COMMIT_EVENTS_MAX - 10, COMMIT_EVENTS_MAX))


@pytest.mark.fault("F-044")
@pytest.mark.parametrize("deletes", range(1, 8))
def test_pruning_that_ends_in_the_middle_leaves_no_key_that_nobody_deletes(
    connect: Callable[[], EtcdStore], monkeypatch: pytest.MonkeyPatch, deletes: int
) -> None:
    monkeypatch.setattr(upkeep, "DELETES_AT_ONCE", 1)
    store, other = connect(), connect()
    for number in range(3):
        store.commit({}, {}, [event(f"a{number}"), event(f"b{number}"), event(f"c{number}")])
    delete, left = store._pruner._delete, list(range(deletes))

    def some(keys: list[bytes]) -> None:
        delete(keys)
        left.pop()
        if not left:
            store.close()

    monkeypatch.setattr(store._pruner, "_delete", some)
    store.prune(keep=0, before_ms=0)
    assert store._pruner.wait(WAIT_S_MAX)
    other.prune(keep=0, before_ms=0)
    assert other._pruner.wait(WAIT_S_MAX)
    assert {key for key in _keys(other) if key.startswith((b"e/", b"h/"))} == set()


@pytest.mark.fault("F-045")
@pytest.mark.usefixtures("short_chapters")
def test_chapters_that_were_pruned_are_forgotten_by_everybody(connect: Callable[[], EtcdStore]) -> None:
    store, reader = connect(), connect()
    for number in range(60):
        store.commit({}, {}, [event("x", token=number)])
    assert len(reader.events(0, 100)) == 60
    assert len(reader._log.starts) > 10
    store.prune(keep=5, before_ms=0)
    for each in (store, reader, connect()):
        assert [found.token for found in each.events(0, 100)] == [55, 56, 57, 58, 59]
        assert [found.token for found in each.events(0, 100, ("default", "x"))] == [55, 56, 57, 58, 59]
        assert len(each._log.starts) < 4
    store.commit({}, {}, [event("x", token=60)])
    assert [found.token for found in reader.events(0, 2, newest=True)] == [59, 60]


def _keys(store: EtcdStore) -> list[bytes]:
    root = store._layout.root
    return [kv.key[len(root) :] for kv in store._client.range(root, end_of(root), keys_only=True)]


def test_two_that_prune_at_once_drop_everything_once(connect: Callable[[], EtcdStore]) -> None:
    first = connect()
    for number in range(30):
        first.commit({}, {}, [event("x", token=number)])
    counts: list[int] = []
    stores = [connect() for _ in range(4)]
    in_threads([lambda store=store: counts.append(store.prune(keep=10, before_ms=0)) for store in stores])  # type: ignore[misc]
    assert sum(counts) == 20
    assert [each.token for each in first.events(0, 100)] == list(range(20, 30))


def test_what_is_due_first_is_found_in_a_large_store_as_in_a_small_one(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_index, "SMALL", 3)
    now_ms = store.read(()).now_ms
    deltas = [-5_000, -20, 60_000, 70_000, 300_000, 3_600_000, 86_400_000, 10**9]
    dues = {f"j{delta}": now_ms + delta for delta in deltas}
    put(store, *[lock(name, expires_ms=due_ms) for name, due_ms in dues.items()])
    assert store.due(10).keys == [key_of("j-5000"), key_of("j-20")]
    assert store.due(1).keys == [key_of("j-5000")]
    for name, due_ms in dues.items():  # in the order of their times: the first goes, the next is the first
        assert store.due(0).next_ms == due_ms
        put(store, lock(name, expires_ms=10**15))
    put(store, lock("early", expires_ms=now_ms - 1))
    assert store.due(5).keys == [key_of("early")]
    assert store.due(0).next_ms == now_ms - 1
