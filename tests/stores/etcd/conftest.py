"""A store of the test's own in the etcd of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.stores.etcd import EtcdLocation
from dibs.stores.etcd.store import EtcdStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
