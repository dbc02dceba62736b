"""The etcd store keeps the contract, on a real etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.stores.etcd.gateway import EtcdGateway
from dibs.stores.etcd.store import EtcdStore
from dibs.testing.contract import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.etcd import EtcdLocation
    from dibs.stores.port import Store
    from tests.etcd import Cluster


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def place(self, etcd_cluster: Cluster) -> EtcdLocation:
        return etcd_cluster.location(f"contract/{new_token()}")

    def open_store(self, place: EtcdLocation) -> Store:
        return EtcdStore(place)

    def fill(self, place: EtcdLocation) -> Callable[[], None]:
        """Raise etcd's own alarm."""
        gateway = EtcdGateway(place)
        alarm = {
            "memberID": gateway.read("/v3/maintenance/status", {})["header"]["member_id"],
            "alarm": "NOSPACE",
        }
        gateway.read("/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})

        def make_room() -> None:
            gateway.read("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
            gateway.close()

        return make_room
