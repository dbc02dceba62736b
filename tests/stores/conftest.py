"""An SQLite file on a clock that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dibs.db")


@pytest.fixture
def connect(path: str, clock: ManualClock) -> Iterator[Callable[[], SqliteStore]]:
    opened: list[SqliteStore] = []

    def connect() -> SqliteStore:
        opened.append(SqliteStore(path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()
