"""Servers that tests share: one for each way through HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.harness import Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the fast lane that decides on its event loop, as `dibs serve` runs it."""
    with running(tmp_path_factory.mktemp("fast")) as server:
        yield server


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes the long way with every request, and decides on its thread."""
    with running(tmp_path_factory.mktemp("slow"), lane=False, at_once=False) as server:
        yield server


@pytest.fixture(scope="session", params=["fast", "slow"])
def server(request: pytest.FixtureRequest) -> Server:
    """Both, one after the other: what holds must hold on either way."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A job name of the test's own."""
    return f"job-{abs(hash(request.node.nodeid)):x}"
