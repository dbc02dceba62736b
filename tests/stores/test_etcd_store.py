"""The etcd store beyond the contract: limits, faults, streams, chapters, secrets."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.commands import Acquire, Renew
from dibs.core.keys import META_KEY, lock_key
from dibs.core.limits import CHECKPOINT_BYTES_MAX, ETCD_KEYS_MAX, ETCD_READ_KEYS_MAX
from dibs.core.outcomes import Granted, Renewed
from dibs.core.records import LockRecord, Meta
from dibs.errors import InvalidInput, StoreFull, StoreUnavailable
from dibs.ids import new_id, new_token
from dibs.service.coordinator import Coordinator
from dibs.stores.etcd import EtcdStore, due_index, log, open_url
from dibs.stores.etcd.gateway import unb64
from dibs.stores.etcd.layout import end_of
from dibs.stores.etcd.location import EtcdLocation, etcd_location
from dibs.stores.port import Conflict, Opening
from dibs.stores.registry import open_store
from dibs.testing.contract_base import WAIT_S_MAX, event, in_threads, key_of, lock, put, versions
from tests import etcd
from tests.faults.proxy import Fault, Proxy
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.etcd import Cluster


@pytest.fixture
def location(etcd_cluster: Cluster) -> EtcdLocation:
    return etcd_cluster.location(f"store/{new_token()}")


@pytest.fixture
def connect(location: EtcdLocation) -> Iterator[Callable[[], EtcdStore]]:
    opened: list[EtcdStore] = []

    def connect() -> EtcdStore:
        opened.append(EtcdStore(location))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()


@pytest.fixture
def store(connect: Callable[[], EtcdStore]) -> EtcdStore:
    return connect()


def increment(store: EtcdStore) -> None:
    """Count one up, however often others are faster."""
    while True:
        found = store.read([META_KEY]).records[META_KEY]
        number = found.record.token_floor + 1 if isinstance(found.record, Meta) else 1
        try:
            store.commit(
                {META_KEY: found.version}, {META_KEY: Meta(token_floor=number)}, [event("n", token=number)]
            )
            return
        except Conflict:
            continue


# Limits


def test_the_largest_commit_that_is_declared_goes_through_with_all_its_events(store: EtcdStore) -> None:
    locks = [lock(f"job-{number}", expires_ms=10**15 + number) for number in range(ETCD_KEYS_MAX)]
    put(store, *locks)
    again = [each.replace(token=2, holders=()) for each in locks]
    put(store, *again, events=tuple(event(f"job-{number % 100}") for number in range(1_000)))
    assert len(store.events(0, 2_000)) == 1_000
    assert store.scan("lock/", live=True) == []


def test_what_is_too_large_is_refused_in_words_and_changes_nothing(store: EtcdStore) -> None:
    many = {key_of(f"job-{number}"): 0 for number in range(ETCD_KEYS_MAX + 1)}
    large = lock("large").replace(endings=(), acl=("x" * 1_600_000,))
    for expect, puts, events in (
        (many, {}, [event("x")]),
        ({key_of("large"): 0}, {key_of("large"): large}, []),
        ({}, {}, [event("x")] * 1_025),
    ):
        with pytest.raises(InvalidInput, match="too large for one transaction of etcd"):
            store.commit(expect, puts, events)
    assert store.scan("") == []
    assert store.events(0, 10) == []


def test_a_record_close_to_the_limit_is_written_and_read(store: EtcdStore) -> None:
    large = lock("large").replace(acl=("x" * 1_400_000,))
    put(store, large)
    assert store.read([key_of("large")]).records[key_of("large")].record == large


def test_more_records_than_one_answer_holds_are_read_as_of_one_moment(store: EtcdStore) -> None:
    names = [f"job-{number:05}" for number in range(ETCD_READ_KEYS_MAX + 10)]
    for at in range(0, len(names), ETCD_KEYS_MAX):
        store.commit(
            {key_of(name): 0 for name in names[at : at + ETCD_KEYS_MAX]},
            {key_of(name): lock(name) for name in names[at : at + ETCD_KEYS_MAX]},
            (),
        )
    found = store.read(map(key_of, names)).records
    assert list(found) == [key_of(name) for name in names]
    assert all(each.record for each in found.values())


@pytest.mark.parametrize(
    "name", ["\x00", "a\nb", "//r/lock", "\x7f", "e/000000000000/", "😀" * 100, "%00", "\\"]
)
def test_hostile_names_are_names(store: EtcdStore, name: str) -> None:
    key = lock_key("ns", name)
    record = lock(name, ns="ns")
    store.commit({key: 0}, {key: record}, [event(name, ns="ns")])
    assert store.read([key]).records[key].record == record
    assert [each for each, _ in store.scan("lock/", live=True)] == [key]
    if "\0" not in name:
        assert len(store.events(0, 5, ("ns", name))) == 1
    assert store.due(0).next_ms == 10**15


def test_half_a_surrogate_pair_is_refused(store: EtcdStore) -> None:
    with pytest.raises(InvalidInput, match="valid Unicode"):
        store.read(["lock/default/\ud800"])


def test_two_prefixes_never_see_each_other(etcd_cluster: Cluster) -> None:
    top = new_token()
    stores = [
        EtcdStore(etcd_cluster.location(prefix)) for prefix in (top, f"{top}/r", f"{top}/r/lock", f"{top}x")
    ]
    for number, each in enumerate(stores):
        put(each, lock(f"of-{number}"), events=(event(f"of-{number}"),))
    for number, each in enumerate(stores):
        assert [key for key, _ in each.scan("")] == [key_of(f"of-{number}")]
        assert [found.job for found in each.events(0, 10)] == [f"of-{number}"]
        each.close()


# Events in chapters


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


# Compaction and streams


def test_compaction_in_a_loop_disturbs_nobody(
    etcd_cluster: Cluster, connect: Callable[[], EtcdStore]
) -> None:
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
            target=lambda after=after, woken=woken: woken.append(
                watching.watch(after, int(WAIT_S_MAX * 1000))
            ),
            daemon=True,
        )
        thread.start()
        wait_until(lambda: watching._stream.hears, "the stream is there")
        watching._stream.cut()
        after = writer.commit({}, {}, [event("x")])
        thread.join(WAIT_S_MAX)
        assert woken == [True]


def test_of_many_who_wait_only_the_one_concerned_is_woken(connect: Callable[[], EtcdStore]) -> None:
    writer, waiting = connect(), connect()
    keys = [key_of(f"job-{number}") for number in range(20)]
    put(writer, *[lock(f"job-{number}") for number in range(20)])
    looks: dict[str, int] = dict.fromkeys(keys, 0)
    gone: list[str] = []
    original = waiting._range

    def counting(begin: bytes, *rest: Any, **options: Any) -> Any:
        key = begin.removeprefix(waiting._layout.records).decode()
        if key in looks:
            looks[key] += 1
        return original(begin, *rest, **options)

    waiting._range = counting  # type: ignore[method-assign]

    def wait(key: str) -> None:
        if waiting.until_gone(key, int(WAIT_S_MAX * 1000)):
            gone.append(key)

    threads = [threading.Thread(target=wait, args=(key,), daemon=True) for key in keys]
    for thread in threads:
        thread.start()
    wait_until(lambda: waiting._stream.hears and min(looks.values()) >= 2, "all wait")
    before = dict(looks)
    writer.commit(versions(writer, keys[3]), {keys[3]: None}, ())
    wait_until(lambda: gone, "one is woken", 1.5)  # before anybody looks by himself
    assert gone == [keys[3]]
    others = [looks[key] - before[key] for key in keys if key != keys[3]]
    assert sum(others) <= len(others)  # at most the look that comes by itself
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


# Faults


@pytest.fixture
def proxy(etcd_cluster: Cluster) -> Iterator[Proxy]:
    host, port = etcd_cluster.members[0].endpoint
    with Proxy(lambda: f"http://{host}:{port}") as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy, location: EtcdLocation) -> Iterator[EtcdStore]:
    """A store whose every word passes a proxy."""
    host, port = proxy.url.removeprefix("http://").split(":")
    store = EtcdStore(location.replace(endpoints=((host, int(port)),)))
    store.read(())
    yield store
    store.close()


@pytest.mark.parametrize(
    "fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST, Fault.REPLY_CUT, Fault.REPLY_GARBLED]
)
def test_a_commit_whose_reply_is_lost_is_of_unknown_outcome(
    through: EtcdStore, proxy: Proxy, store: EtcdStore, fault: Fault
) -> None:
    proxy.faults(fault)
    with pytest.raises(StoreUnavailable) as caught:
        through.commit({key_of("x"): 0}, {key_of("x"): lock("x")}, ())
    assert caught.value.unknown
    is_there = store.read([key_of("x")]).records[key_of("x")].record is not None
    assert is_there == (fault is not Fault.REQUEST_LOST)
    assert through.read([key_of("x")]).records == store.read([key_of("x")]).records


@pytest.mark.parametrize(
    "fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST, Fault.REPLY_CUT, Fault.REPLY_GARBLED]
)
def test_a_read_whose_reply_is_lost_is_read_again(through: EtcdStore, proxy: Proxy, fault: Fault) -> None:
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
    with pytest.raises(
        StoreUnavailable, match=r"etcd at etcd://127\.0\.0\.1:1,127\.0\.0\.1:2/x does not"
    ) as caught:
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


def test_an_etcd_that_is_full_says_so_and_can_be_read(etcd_program: str) -> None:
    with etcd.running(etcd_program, options=("--quota-backend-bytes", "3000000")) as cluster:
        store = EtcdStore(cluster.location())
        large = lock("x").replace(acl=("x" * 500_000,))
        with pytest.raises(StoreFull, match="its quota is used up") as caught:
            _fill(store, large)
        assert not caught.value.unknown
        assert isinstance(store.trouble(), StoreFull)
        assert store.read([key_of("x")]).records[key_of("x")].record == large
        store.close()


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


def test_what_looks_after_it_finds_out_about_members_rights_and_clock(
    store: EtcdStore, location: EtcdLocation
) -> None:
    assert [each["ok"] for each in store.probe()] == [True, True, True]
    alone = EtcdStore(location.replace(endpoints=(*location.endpoints, ("127.0.0.1", 1))))
    assert [each["ok"] for each in alone.probe()] == [True, False, True, True]
    assert store.size_bytes() > 0
    alone.close()


# URLs


def test_what_a_url_means() -> None:
    found = etcd_location("etcd://a:1,[::1]:2,b/team/x?ca=/ca.pem&cert=/c&key=/k%20")
    assert found.endpoints == (("a", 1), ("::1", 2), ("b", 2379))
    assert (found.prefix, found.tls, found.ca, found.key) == ("team/x", True, "/ca.pem", "/k ")
    assert found.shown() == "etcds://a:1,[::1]:2,b:2379/team/x"
    assert etcd_location("etcd://h").prefix == "dibs"
    assert etcd_location("etcds://h//a//b/").prefix == "a/b"
    named = etcd_location("etcd://us%40er:p%3a@h/x")
    assert (named.user, named.password, named.tls) == ("us@er", "p:", False)
    assert open_url("etcd://h", Opening()).location.endpoints == (("h", 2379),)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "etcd:",
            "etcd:h",
            "etcd://",
            "etcd:///x",
            "etcd://h:0",
            "etcd://h:99999",
            "etcd://h:x",
            "etcd://h:",
        ),
        *("etcd://a,,b", "etcd://user@h", "etcd://h?colour=red", "etcd://h?ca=", "etcd://h?cert=/x"),
        *(
            "etcd://h?tls=maybe",
            "etcds://h?tls=no",
            "etcd://h/%zz",
            "etcd://h/%ff",
            "etcd://h/a%00b",
            "etcd://[::1",
        ),
        "etcd://u:p/w@h/x",
    ],
)
def test_what_is_no_url_of_etcd_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert "p/w" not in caught.value.details


def test_a_certificate_that_is_not_there_is_refused_when_the_store_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="for TLS cannot be read"):
        open_store(f"etcds://h?ca={tmp_path}/no-such.pem")


# With the rules over it


def claim(name: str) -> Acquire:
    return Acquire(ns="default", name=name, principal="p", owner="a", ttl_ms=60_000, fresh_lease_id=new_id())


def renewal(grant: Granted) -> Renew:
    checkpoint = "x" * CHECKPOINT_BYTES_MAX
    lease_id = grant.lease.lease_id
    return Renew(ns="default", name=grant.name, principal="p", lease_id=lease_id, checkpoint=checkpoint)


def test_a_batch_of_more_records_and_more_text_than_one_transaction_takes_is_written_in_parts(
    store: EtcdStore,
) -> None:
    coordinator = Coordinator(store)
    grants = coordinator.run([claim(f"job-{number}") for number in range(250)])
    assert {type(each) for each in grants} == {Granted}
    renewed = coordinator.run([renewal(each) for each in grants if isinstance(each, Granted)])
    assert {type(each) for each in renewed} == {Renewed}
    assert len(store.events(0, 1_000)) == 500
    assert len(store.scan("lock/", live=True)) == 250
