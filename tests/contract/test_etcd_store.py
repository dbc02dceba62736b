"""The etcd store keeps the contract, on a real etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.ids import new_token
from dibs.stores.etcd import EtcdStore
from dibs.testing.contract import StoreContract

if TYPE_CHECKING:
    from dibs.stores.etcd.location import EtcdLocation
    from dibs.stores.port import Store
    from tests.etcd import Cluster


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def place(self, etcd_cluster: Cluster) -> EtcdLocation:
        return etcd_cluster.location(f"contract/{new_token()}")

    def open_store(self, place: EtcdLocation) -> Store:
        return EtcdStore(place)
