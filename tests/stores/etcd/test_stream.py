"""Compaction, the stream that wakes waiters, and how many calls a claim is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted
from dibs.core.records import META_KEY, Meta
from dibs.engine.coordinator import Coordinator
from dibs.stores.etcd import store as store_module
from dibs.stores.etcd.client import TXN
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.waiters import mark_of
from dibs.testing.contract_base import WAIT_S_MAX, event, key_of, lock, put, versions
from tests.programs import wait_until
from tests.stores.etcd.counter import increment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.etcd import Cluster


@pytest.fixture
def _never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits while there is a stream looks only if it is woken."""
    monkeypatch.setattr(store_module, "ETCD_HEARD_POLL_MS", 600_000)


def test_compaction_in_a_loop_disturbs_nobody(etcd_cluster: Cluster, connect: Callable[[], EtcdStore]) -> None:
    over = threading.Event()

    def compact() -> None:
        while not over.is_set():
            try:
                etcd_cluster.compact()
            except Exception:
                pass

    compacting = threading.Thread(target=compact, daemon=True)
    compacting.start()
    try:
        store, watching = connect(), connect()
        seen: list[int] = []
        for number in range(60):
            increment(store)
            assert watching.watch(seen[-1] if seen else 0, int(WAIT_S_MAX * 1000))
            seen.append(watching.events(seen[-1] if seen else 0, 10)[-1].seq)
            names = [key_of(f"j{each}") for each in range(70)]
            assert store.read(names).now_ms
            assert store.read([META_KEY]).records[META_KEY].record == Meta(token_floor=number + 1)
    finally:
        over.set()
        compacting.join(WAIT_S_MAX)
    assert len(seen) == 60


def test_a_stream_that_is_cut_is_replaced_and_nothing_is_missed(connect: Callable[[], EtcdStore]) -> None:
    writer, watching = connect(), connect()
    after = writer.commit({}, {}, [event("x")])
    for _ in range(5):
        woken: list[bool] = []
        thread = threading.Thread(
            target=lambda after=after, woken=woken: woken.append(watching.watch(after, int(WAIT_S_MAX * 1000))),
            daemon=True,
        )
        thread.start()
        wait_until(lambda: watching._stream.hears, "the stream is there")
        connection = watching._stream._connection
        if connection is not None:
            connection.cut()
        after = writer.commit({}, {}, [event("x")])
        thread.join(WAIT_S_MAX)
        assert woken == [True]


@pytest.mark.usefixtures("_never_looks")
def test_a_watch_that_is_told_of_an_event_does_not_ask_whether_it_is_there(
    connect: Callable[[], EtcdStore],
) -> None:
    writer, watching = connect(), connect()
    after = writer.commit({}, {}, [event("x")])
    watching.watch(after, 300)
    wait_until(lambda: watching._stream.hears, "the stream is there")
    looks, woken = [], []
    original = watching._client.range

    def counting(begin: bytes, *rest: Any, **options: Any) -> Any:
        looks.append(begin)
        return original(begin, *rest, **options)

    watching._client.range = counting  # type: ignore[assignment, method-assign]
    thread = threading.Thread(target=lambda: woken.append(watching.watch(after, int(WAIT_S_MAX * 1000))), daemon=True)
    thread.start()
    wait_until(lambda: looks, "it has looked before it waits")
    writer.commit({}, {}, [event("x")])
    thread.join(WAIT_S_MAX)
    assert woken == [True]
    assert len(looks) == 1


def test_whoever_asks_for_it_is_told_what_others_delete(connect: Callable[[], EtcdStore]) -> None:
    writer, watching = connect(), connect()
    told: list[str] = []
    watching.on_gone(told.extend)
    watching.watch(0, 1)
    wait_until(lambda: watching._stream.hears, "the stream is there")
    put(writer, lock("x"), lock("y"))
    writer.commit(versions(writer, key_of("x")), {key_of("x"): None}, [event("x")])
    wait_until(lambda: told, "it is told")
    assert told == [mark_of(key_of("x"))]


@pytest.mark.usefixtures("_never_looks")
def test_of_many_who_wait_only_the_one_concerned_is_woken(connect: Callable[[], EtcdStore]) -> None:
    writer, waiting = connect(), connect()
    keys = [key_of(f"job-{number}") for number in range(20)]
    put(writer, *[lock(f"job-{number}") for number in range(20)])
    looks: dict[str, int] = dict.fromkeys(keys, 0)
    gone: list[str] = []
    original = waiting._client.range

    def counting(begin: bytes, *rest: Any, **options: Any) -> Any:
        key = begin.removeprefix(waiting._layout.records).decode()
        if key in looks:
            looks[key] += 1
        return original(begin, *rest, **options)

    waiting._client.range = counting  # type: ignore[assignment, method-assign]

    def wait(key: str) -> None:
        if waiting.until_gone(key, int(WAIT_S_MAX * 1000)):
            gone.append(key)

    threads = [threading.Thread(target=wait, args=(key,), daemon=True) for key in keys]
    for thread in threads:
        thread.start()
    wait_until(lambda: waiting._stream.hears and min(looks.values()) >= 1, "all wait")
    before = dict(looks)
    writer.commit(versions(writer, keys[3]), {keys[3]: None}, ())
    wait_until(lambda: gone, "one is woken")
    assert gone == [keys[3]]
    others = [looks[key] - before[key] for key in keys if key != keys[3]]
    assert sum(others) <= len(others)  # at most the look at the begin of the stream
    for key in keys:
        writer.commit(versions(writer, key), {key: None}, ())
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert sorted(gone) == sorted(keys)


def test_closing_ends_who_waits_and_its_thread(connect: Callable[[], EtcdStore]) -> None:
    store = connect()
    assert not store.watch(0, 300)
    thread = store._stream._thread
    assert thread is not None
    store.close()
    thread.join(WAIT_S_MAX)
    assert not thread.is_alive()


def test_a_claim_of_a_server_that_runs_is_one_call(
    connect: Callable[[], EtcdStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = connect()
    coordinator = Coordinator(store)
    coordinator.run([claim("first")])
    calls: list[str] = []
    call = store._client._call

    def noted(path: str, *rest: Any, **how: Any) -> Any:
        calls.append(path)
        return call(path, *rest, **how)

    monkeypatch.setattr(store._client, "_call", noted)
    (granted,) = coordinator.run([claim("second")])
    assert isinstance(granted, Granted)
    assert calls == [TXN]


def claim(name: str) -> Acquire:
    return Acquire(ns="default", name=name, principal="p", owner="a", ttl_ms=60_000, fresh_lease_id=new_id())
