"""The same tests over every way to reach dibs: in memory, a file, a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.client import Client
from tests.programs import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS = ("memory", "sqlite", "server")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests: each has a namespace of its own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None]:
    """URL and token of a place for one test."""
    way = request.param
    if way == "server":
        server: ServerProcess = request.getfixturevalue("server")
        return server.url, server.token
    return ("memory://" if way == "memory" else f"sqlite://{tmp_path}/dibs.db"), None


def over(*ways: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("anywhere", ways or WAYS, indirect=True)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    import hashlib

    return "t-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]


@pytest.fixture
def connect(anywhere: tuple[str, str | None], namespace: str) -> Iterator[Callable[..., Client]]:
    """Clients of the place, closed at the end. In memory there is only one: each store is its own world."""
    clients: list[Client] = []

    def make(owner: str = "alice") -> Client:
        url, token = anywhere
        clients.append(Client(url, token, owner, namespace))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    return connect()


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and the next heartbeat of a claim of a minute is due, with the deadline far away."""
    return lambda: monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 20_000)


@pytest.fixture
def connect_async(anywhere: tuple[str, str | None], namespace: str) -> Callable[..., AsyncClient]:
    def make(owner: str = "alice") -> AsyncClient:
        url, token = anywhere
        return AsyncClient(url, token, owner, namespace)

    return make
