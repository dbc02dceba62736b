"""The limits of etcd's transactions, hostile names, prefixes, batches of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.base.ids import new_id, new_token
from dibs.core.commands import Acquire, Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.limits import CHECKPOINT_BYTES_MAX, ETCD_READ_KEYS_MAX
from dibs.core.outcomes import Granted
from dibs.core.records import lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.etcd.messages import fields, inner, operations, range_op
from dibs.stores.etcd.store import OTHER_OPS, EtcdStore
from dibs.stores.etcd.transaction import COMPARES_MAX, OPS_MAX, packed
from dibs.stores.port import CommitTooLarge
from dibs.testing.contract_base import event, key_of, lock, put

if TYPE_CHECKING:
    from tests.etcd import Cluster


@pytest.mark.fault("F-036")
@pytest.mark.parametrize("count", [31, 32, COMPARES_MAX, COMPARES_MAX + 1])
def test_commits_around_the_limits_of_a_transaction_go_through_with_all_their_events(
    store: EtcdStore, count: int
) -> None:
    locks = [lock(f"job-{number}", expires_ms=10**15 + number) for number in range(count)]
    put(store, *locks, events=tuple(event(each.name) for each in locks))
    again = [each.replace(token=2, holders=()) for each in locks]
    put(store, *again, events=tuple(event(f"job-{number % 100}") for number in range(1_000)))
    assert len(store.events(0, 2_000)) == 1_000 + count
    assert store.scan("lock/", live=True) == []


@pytest.mark.fault("F-036")
def test_every_number_of_operations_fits_into_the_levels_of_a_transaction() -> None:
    def check(ops: list[bytes], room: int, compares: int = 0) -> int:
        """What etcd checks; returns how many operations there are in all."""
        count = max(len(ops), compares)
        assert count <= room
        inside = [operations(txn) for each in ops for txn in fields(each).get(4, ())]
        return len(ops) - len(inside) + sum([check(each, room - count) for each in inside])

    others = [inner([range_op(b"x")])] * OTHER_OPS
    for compares in (1, 2, 50, COMPARES_MAX + 2):
        for count in (0, 1, 31, 32, 124, 125, 126, 127, 128, 129, 500, 1_000, 4_999, 5_000):
            ops = [*packed([range_op(b"k")] * count, compares, OTHER_OPS), *others]
            assert check(ops, OPS_MAX, compares) == count + OTHER_OPS


def test_what_is_too_large_is_refused_in_words_and_changes_nothing(store: EtcdStore) -> None:
    large = lock("large").replace(endings=(), acl=("x" * 1_600_000,))
    with pytest.raises(CommitTooLarge, match="too large for etcd"):
        store.commit({key_of("large"): 0}, {key_of("large"): large}, [event("x")])
    assert store.scan("") == []
    assert store.events(0, 10) == []
    put(store, lock("small"))


def test_a_record_close_to_the_limit_is_written_and_read(store: EtcdStore) -> None:
    large = lock("large").replace(acl=("x" * 1_400_000,))
    put(store, large)
    assert store.read([key_of("large")]).records[key_of("large")].record == large


def test_more_records_than_one_answer_holds_are_read_as_of_one_moment(store: EtcdStore) -> None:
    names = [f"job-{number:05}" for number in range(ETCD_READ_KEYS_MAX + 10)]
    put(store, *[lock(name) for name in names])
    found = store.read(map(key_of, names)).records
    assert list(found) == [key_of(name) for name in names]
    assert all(each.record for each in found.values())


@pytest.mark.parametrize("name", ["\x00", "a\nb", "//r/lock", "\x7f", "e/000000000000/", "😀" * 100, "%00", "\\"])
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
    with pytest.raises(InvalidInput, match="UTF-8"):
        store.read(["lock/default/\ud800"])


def test_two_prefixes_never_see_each_other(etcd_cluster: Cluster) -> None:
    top = new_token()
    stores = [EtcdStore(etcd_cluster.location(prefix)) for prefix in (top, f"{top}/r", f"{top}/r/lock", f"{top}x")]
    for number, each in enumerate(stores):
        put(each, lock(f"of-{number}"), events=(event(f"of-{number}"),))
    for number, each in enumerate(stores):
        assert [key for key, _ in each.scan("")] == [key_of(f"of-{number}")]
        assert [found.job for found in each.events(0, 10)] == [f"of-{number}"]
        each.close()


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
