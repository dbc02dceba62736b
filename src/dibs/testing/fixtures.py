"""Fixtures for pytest. In your conftest.py: `pytest_plugins = ["dibs.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dibs.testing.clients import MemoryDibs


@pytest.fixture
def memory_dibs() -> Iterator[MemoryDibs]:
    """Jobs in memory that `dibs.claim` and the others use during the test. Each test has its own."""
    with MemoryDibs().as_default() as jobs:
        yield jobs
