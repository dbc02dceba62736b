"""Servers that tests share: one that decides on its event loop, and one that decides on a thread."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.registry import open_store
from dibs.stores.sqlite import SqliteStore
from tests.server.harness import Server, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.stores.port import Store
    from tests.etcd import Cluster


@pytest.fixture(scope="session")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that decides on its event loop, as `dibs serve` does with a quick store."""
    with running(tmp_path_factory.mktemp("fast")) as server:
        yield server


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that decides on its thread."""
    with running(tmp_path_factory.mktemp("slow"), at_once=False) as server:
        yield server


@pytest.fixture(params=["fast", "slow"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Both, one after the other: what holds must hold at either. Nobody of one test waits when the next begins."""
    found: Server = request.getfixturevalue(request.param)
    yield found
    wait_until(lambda: not found.waiting(), "somebody still waits")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A job name of the test's own."""
    return f"job-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture(params=["sqlite", "postgresql", "etcd"])
def open_it(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """One more connection to the store of the test."""
    if request.param == "sqlite":
        return lambda: SqliteStore(str(tmp_path / "dibs.db"))
    if request.param == "postgresql":
        schema = request.getfixturevalue("postgres_schema")()
        return lambda: open_store(schema.url)
    cluster: Cluster = request.getfixturevalue("etcd_cluster")
    location = cluster.location(f"servers/{new_token()}")
    return lambda: EtcdStore(location)


@pytest.fixture
def serve(tmp_path: Path, open_it: Callable[[], Store]) -> Callable[[ExitStack], Server]:
    """Starts servers on one store, each with a connection of its own, in real time."""
    count = 0

    def serve(stack: ExitStack) -> Server:
        """It runs until the stack ends."""
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        store = open_it()
        stack.callback(store.close)
        return stack.enter_context(running(folder, store=store, real_time=True))

    return serve
