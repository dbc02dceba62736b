from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import dibs
from tests.plugins.agents.connection import LEGACY, MODERN, Store
from tests.programs import clean_env


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture(params=[LEGACY, MODERN])
def mode(request: pytest.FixtureRequest) -> str:
    """Runs each test in both kinds of protocol revision."""
    found: str = request.param
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a store of their own, and with a `dibs` on the path that is the one under test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "dibs"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dibs "$@"\n')
    command.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**clean_env(tmp_path), "PATH": path, "PYTHONPATH": str(Path(dibs.__file__).parents[1])}
