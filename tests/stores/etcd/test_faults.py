"""Lost replies, missing members, strangers, a full quota, forks."""

from __future__ import annotations

import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreFull, StoreUnavailable
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted
from dibs.core.records import LockRecord
from dibs.engine.coordinator import Coordinator
from dibs.server.monitor.health import known_trouble
from dibs.stores.etcd import EtcdLocation
from dibs.stores.etcd.errors import RESOURCE_EXHAUSTED, Refusal, translated
from dibs.stores.etcd.messages import TxnAnswer, operations
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.registry import open_store
from dibs.testing.contract_base import drop, event, key_of, lock, put
from tests import etcd
from tests.faults.proxy import Fault
from tests.stores.etcd.proxy import GrpcProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.etcd import Cluster


@pytest.fixture
def proxy(etcd_cluster: Cluster) -> Iterator[GrpcProxy]:
    host, port = etcd_cluster.members[0].endpoint
    with GrpcProxy(lambda: f"http://{host}:{port}") as proxy:
        yield proxy


@pytest.fixture
def through(proxy: GrpcProxy, location: EtcdLocation) -> Iterator[EtcdStore]:
    """A store whose every word passes a proxy."""
    host, port = proxy.url.removeprefix("http://").split(":")
    store = EtcdStore(location.replace(endpoints=((host, int(port)),)))
    store.read(())
    yield store
    store.close()


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST, Fault.REPLY_CUT, Fault.REPLY_GARBLED])
def test_a_commit_whose_reply_is_lost_is_of_unknown_outcome(
    through: EtcdStore, proxy: GrpcProxy, store: EtcdStore, fault: Fault
) -> None:
    proxy.faults(fault)
    with pytest.raises(StoreUnavailable) as caught:
        through.commit({key_of("x"): 0}, {key_of("x"): lock("x")}, ())
    assert caught.value.unknown
    is_there = store.read([key_of("x")]).records[key_of("x")].record is not None
    assert is_there == (fault is not Fault.REQUEST_LOST)
    assert through.read([key_of("x")]).records == store.read([key_of("x")]).records


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST, Fault.REPLY_CUT, Fault.REPLY_GARBLED])
def test_a_read_whose_reply_is_lost_is_read_again(through: EtcdStore, proxy: GrpcProxy, fault: Fault) -> None:
    put(through, lock("x"))
    proxy.faults(fault)
    assert through.read([key_of("x")]).records[key_of("x")].record == lock("x")


def test_a_member_that_is_not_there_is_passed_over(location: EtcdLocation) -> None:
    store = EtcdStore(location.replace(endpoints=(("127.0.0.1", 1), *location.endpoints)))
    put(store, lock("x"))
    assert store.read([key_of("x")]).records[key_of("x")].record
    store.close()


def test_a_cluster_that_is_not_there_is_said_without_secrets() -> None:
    store = open_store("etcd://eve:s3cret@127.0.0.1:1,127.0.0.1:2/x")
    with pytest.raises(StoreUnavailable, match=r"etcd at etcd://127\.0\.0\.1:1,127\.0\.0\.1:2/x does not") as caught:
        store.read(())
    assert "s3cret" not in f"{caught.value} {store.__dict__['location']!r}"
    assert not caught.value.unknown
    store.close()


class _Silent(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_something_that_is_no_etcd_is_said_so() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    store = EtcdStore(EtcdLocation(endpoints=(("127.0.0.1", server.server_address[1]),)))
    try:
        with pytest.raises(StoreUnavailable, match="etcd"):
            store.read(())
    finally:
        store.close()
        server.shutdown()
        server.server_close()


@pytest.mark.fault("F-040")
@pytest.mark.promise("damage:told")
def test_an_etcd_that_is_full_says_so_and_can_be_read(etcd_program: str) -> None:
    with etcd.running(etcd_program, options=("--quota-backend-bytes", "3000000")) as cluster:
        store = EtcdStore(cluster.location())
        large = lock("x").replace(acl=("x" * 500_000,))
        with pytest.raises(StoreFull, match="its quota is used up") as caught:
            _fill(store, large)
        assert caught.value.unknown, "etcd may have written it all the same"
        found = {each["check"]: each for each in store.probe()}
        assert not found["write"]["ok"]
        assert all("its quota is used up" in each["says"] for each in found.values() if not each["ok"])
        assert isinstance(store.trouble(), StoreFull)
        assert isinstance(known_trouble(store, None), StoreFull), "a look at its health makes it no better"
        assert store.read([key_of("x")]).records[key_of("x")].record
        store.close()


@pytest.mark.fault("F-041")
@pytest.mark.promise("idem:acquire")
def test_a_claim_that_a_full_etcd_wrote_and_refused_all_the_same_is_known(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd looks at its quota a second time when it executes a transaction, and then both writes and refuses."""
    write = store._client.write

    def refused(request: bytes, epoch: int | None = None) -> TxnAnswer:
        write(request, epoch)
        monkeypatch.setattr(store._client, "write", write)
        raise translated(Refusal(RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"), "here", writes=True)

    monkeypatch.setattr(store._client, "write", refused)
    claim = Acquire(ns="d", name="x", principal="p", owner="a", ttl_ms=60_000, fresh_lease_id="mine")
    granted = Coordinator(store).one(claim)
    assert isinstance(granted, Granted)
    assert granted.lease.lease_id == "mine"
    assert len(store.events(0, 10)) == 1, "it is not written twice"


@pytest.mark.parametrize("puts", [0, 1, 120])
@pytest.mark.fault("F-040")
def test_every_commit_has_a_put_that_the_quota_of_etcd_sees(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    sent: list[bytes] = []
    write = store._client.write

    def noted(request: bytes, epoch: int | None = None) -> TxnAnswer:
        sent.append(request)
        return write(request, epoch)

    monkeypatch.setattr(store._client, "write", noted)
    put(store, *[lock(f"job-{number}") for number in range(puts)])
    drop(store, *[key_of(f"job-{number}") for number in range(puts)])
    put_tag = 2 << 3 | 2  # the first byte of a put
    assert sent
    assert all(any(op[0] == put_tag for op in operations(each)) for each in sent)


def _fill(store: EtcdStore, record: LockRecord) -> None:
    for _ in range(30):
        put(store, record)


def test_a_forked_child_opens_connections_of_its_own(store: EtcdStore) -> None:
    put(store, lock("x"))
    child = os.fork()
    if child == 0:
        try:
            put(store, lock("of-the-child"))
            assert store.watch(0, 1) is False
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [key for key, _ in store.scan("")] == [key_of("of-the-child"), key_of("x")]


@pytest.mark.fault("F-042")
def test_a_child_that_is_forked_while_a_thread_looks_at_the_clock_does_not_hang(store: EtcdStore) -> None:
    put(store, lock("x"))
    locks = [store._time._lock, store._time._clock._lock, store._log._lock, store._client._lock]
    for each in locks:
        each.acquire()  # as by another thread, which the child does not have
    try:
        child = os.fork()
        if child == 0:
            try:
                put(store, lock("of-the-child"), events=(event("of-the-child"),))
                os._exit(0)
            except BaseException:
                os._exit(1)
    finally:
        for each in locks:
            each.release()
    assert exit_code(child) == 0
    assert [key for key, _ in store.scan("")] == [key_of("of-the-child"), key_of("x")]


@pytest.mark.fault("F-042")
@pytest.mark.promise("audit")
def test_parent_and_child_write_one_history_without_overwriting_each_other(store: EtcdStore) -> None:
    put(store, lock("x"), events=(event("x", token=1),))
    child = os.fork()
    if child == 0:
        try:
            put(store, lock("x", token=2), events=(event("x", token=2),))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert exit_code(child) == 0
    put(store, lock("x", token=3), events=(event("x", token=3),))
    for each in (store.events(0, 10), store.events(0, 10, ("default", "x"))):
        assert [found.token for found in each] == [1, 2, 3]


def exit_code(child: int) -> int:
    """How a child ended. One that hangs is killed."""
    for _ in range(600):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def test_what_looks_after_it_finds_out_about_members_rights_and_clock(store: EtcdStore, location: EtcdLocation) -> None:
    assert [each["ok"] for each in store.probe()] == [True, True, True]
    alone = EtcdStore(location.replace(endpoints=(*location.endpoints, ("127.0.0.1", 1))))
    assert [each["ok"] for each in alone.probe()] == [True, False, True, True]
    assert store.size_bytes() > 0
    alone.close()
