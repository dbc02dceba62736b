from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.connection import LEGACY, MODERN, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(params=[LEGACY, MODERN])
def mode(request: pytest.FixtureRequest) -> str:
    """What holds must hold in both kinds of protocol revision."""
    found: str = request.param
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
