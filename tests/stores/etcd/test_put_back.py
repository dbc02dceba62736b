"""An older copy of etcd's data is put back under a running server: it notices, and takes nothing for what it knew."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Granted, NotCurrent
from dibs.engine.coordinator import Coordinator
from dibs.stores.etcd.store import EtcdStore
from tests import etcd
from tests.core.make import KEY, acquire, renew
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.etcd import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.promise("token:rises"), pytest.mark.fault("F-409")]


@pytest.fixture
def cluster(etcd_program: str) -> Iterator[Cluster]:
    """An etcd of the test's own: it is stopped, and its data replaced."""
    with etcd.running(etcd_program) as made:
        yield made


class Disk:
    """The folder in which the one member keeps its data."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        (self._member,) = cluster.members
        self._data = f"{self._member._folder}/data"

    def save(self) -> None:
        self._member.kill()
        shutil.copytree(self._data, f"{self._data}.saved")
        _own(f"{self._data}.saved", self._data)
        self._start()

    def put_back(self) -> None:
        self._member.kill()
        shutil.rmtree(self._data)
        os.rename(f"{self._data}.saved", self._data)
        self._start()

    def _start(self) -> None:
        self._member.start()
        wait_until(self._cluster.answers, "etcd answers")


def _own(path: str, like: str) -> None:
    """Give a copy to whom the original belongs: etcd does not run as root."""
    owner = os.stat(like)
    for folder, folders, files in os.walk(path):
        for name in ("", *folders, *files):
            os.chown(os.path.join(folder, name), owner.st_uid, owner.st_gid)


def claimed(store: EtcdStore, owner: str) -> int:
    """The fencing token of a new claim on the job."""
    got = Coordinator(store).one(acquire(owner=owner, fresh_lease_id=owner))
    assert isinstance(got, Granted), got
    return got.lease.token


def revision_of(store: EtcdStore) -> int:
    """How far etcd has come."""
    return store._client.txn([]).revision


@pytest.mark.promise("excl")
def test_who_had_the_job_before_does_not_renew_over_who_has_it_now(cluster: Cluster) -> None:
    """Versions repeat: as many commits were made since as were lost."""
    one, two = EtcdStore(cluster.location()), EtcdStore(cluster.location())
    disk = Disk(cluster)
    one.commit({}, {}, ())
    disk.save()
    for _ in range(4):
        one.commit({}, {}, ())
    claimed(one, "worker-1")
    lost = one.read((KEY,)).records[KEY]
    disk.put_back()
    two.commit({}, {}, ())
    while revision_of(two) < lost.version - 1:
        two.commit({}, {}, ())
    claimed(two, "worker-2")
    assert two.read((KEY,)).records[KEY].version == lost.version
    assert isinstance(Coordinator(one).one(renew(lease_id="worker-1", principal="solo")), NotCurrent)
    assert isinstance(Coordinator(two).one(renew(lease_id="worker-2", principal="solo")), Renewed)
    one.close()
    two.close()


@pytest.mark.fault("F-424")
def test_a_server_that_notices_raises_the_floor_of_the_tokens_and_of_the_numbers_of_events(cluster: Cluster) -> None:
    store, disk = EtcdStore(cluster.location()), Disk(cluster)
    store.commit({}, {}, ())
    disk.save()
    lost = claimed(store, "worker-1")
    disk.put_back()
    assert claimed(store, "worker-2") > store.read(()).now_ms - 600_000 > lost
    assert store.events(0, 1, newest=True)[0].seq > (store.read(()).now_ms - 600_000) * 1_000
    assert store._client.epoch == 1
    store.close()


def test_a_restart_of_etcd_is_no_other_history(cluster: Cluster) -> None:
    store = EtcdStore(cluster.location())
    (member,) = cluster.members
    first = claimed(store, "worker-1")
    for _ in range(2):
        member.kill()
        member.start()
        wait_until(cluster.answers, "etcd answers")
        assert isinstance(Coordinator(store).one(renew(lease_id="worker-1", principal="solo")), Renewed)
    assert store._client.epoch == 0
    assert first == 1
    store.close()


def test_after_a_compaction_what_is_remembered_is_read_again_and_no_floor_is_raised(cluster: Cluster) -> None:
    store = EtcdStore(cluster.location())
    (member,) = cluster.members
    claimed(store, "worker-1")
    other = EtcdStore(cluster.location())
    for _ in range(3):
        other.commit({}, {}, ())
    cluster.compact()
    member.kill()
    member.start()
    wait_until(cluster.answers, "etcd answers")
    assert isinstance(Coordinator(store).one(renew(lease_id="worker-1", principal="solo")), Renewed)
    assert store._client.epoch == 1
    got = Coordinator(store).one(acquire(name="another", owner="w", fresh_lease_id="w"))
    assert isinstance(got, Granted)
    assert got.lease.token == 1
    other.close()
    store.close()
