"""The scenarios for waiting, sessions, deadlocks, trees and everything else get the same answers on a real etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_token
from dibs.stores.etcd.clock import EtcdTime
from dibs.stores.etcd.messages import put_op
from dibs.stores.etcd.store import EtcdStore
from tests.core.test_scenarios import REWRITE, SOME_QUICK, check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.stores.etcd.messages import KeyValue
    from dibs.stores.port import Store
    from tests.etcd import Cluster


class ScriptedTime(EtcdTime):
    """The script says what time it is."""

    def __init__(self, clock: Callable[[], int], *of_the_store: Any) -> None:
        super().__init__(*of_the_store)
        self._script = clock

    def ready(self) -> None:
        pass

    def now_ms(self) -> int:
        return self._script()

    def saw(self, kvs: list[KeyValue]) -> None:
        pass

    def raising(self) -> bytes:
        return put_op(self._layout.time, b"%016d" % self._script())


@pytest.mark.promise("same-answer")
@pytest.mark.skipif(REWRITE, reason="the scripts are being rewritten")
@pytest.mark.parametrize("script", SOME_QUICK, ids=lambda path: path.stem)
def test_a_scenario_goes_the_same_on_etcd(script: Path, etcd_cluster: Cluster) -> None:
    opened: list[Store] = []

    def open_store(clock: Callable[[], int]) -> Store:
        location = etcd_cluster.location(f"scenario/{new_token()}")
        opened.append(EtcdStore(location, lambda *of_the_store: ScriptedTime(clock, *of_the_store)))
        return opened[-1]

    check(script, open_store)
    opened[0].close()
