"""The etcd store keeps the contract, on a real etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.stores.etcd.client import STATUS, EtcdClient
from dibs.stores.etcd.messages import StatusAnswer, message
from dibs.stores.etcd.store import EtcdStore
from dibs.testing.contract import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.etcd import EtcdLocation
    from dibs.stores.port import Store
    from tests.etcd import Cluster

ALARM = "/etcdserverpb.Maintenance/Alarm"


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def place(self, etcd_cluster: Cluster) -> EtcdLocation:
        return etcd_cluster.location(f"contract/{new_token()}")

    def open_store(self, place: EtcdLocation) -> Store:
        return EtcdStore(place)

    def fill(self, place: EtcdLocation) -> Callable[[], None]:
        """Raise etcd's own alarm."""
        client = EtcdClient(place)
        member = client.read(STATUS, b"", StatusAnswer).member
        activate, deactivate, no_space = 1, 2, 1
        client.read(ALARM, message(activate, member, no_space), bytes)

        def make_room() -> None:
            client.read(ALARM, message(deactivate, member, no_space), bytes)
            client.close()

        return make_room
