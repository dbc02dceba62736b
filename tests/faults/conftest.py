"""A server for all tests of a file, and a faulty way to it for each test."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from tests.faults.proxy import Proxy
from tests.programs import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(lambda: server.url) as proxy:
        yield proxy


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{zlib.crc32(request.node.nodeid.encode()):08x}"
