"""Events in chapters, pruning, and the index of what is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.etcd import EtcdStore, due_index, log
from dibs.stores.etcd.gateway import unb64
from dibs.stores.etcd.layout import end_of
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
            assert [each.token for each in reader.events(seqs[at], 5, job)] == list(
                range(at + 2, min(at + 7, 61))
            )
    assert len(reader._log.starts) > 5


@pytest.mark.usefixtures("short_chapters")
def test_pruning_in_steps_leaves_exactly_what_is_kept_and_no_key_of_the_rest(
    connect: Callable[[], EtcdStore],
) -> None:
    store = connect()
    for number in range(40):
        store.commit(
            {}, {}, [event(f"j{number % 3}", at_ms=number, token=number), event("all", at_ms=number)]
        )
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


def _keys(store: EtcdStore) -> list[bytes]:
    root = store._layout.root
    kvs = store._range(root, end_of(root), keys_only=True)
    return [unb64(kv["key"])[len(root) :] for kv in kvs]


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
    deltas = [-5_000, -20, 700, 3_000, 60_000, 3_600_000, 86_400_000, 10**9]
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
