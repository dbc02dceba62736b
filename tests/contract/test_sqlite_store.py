"""The SQLite store keeps the contract: with clocks that can be set, and with the machine's own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from dibs.testing.contract import StoreContract
from dibs.testing.contract_races import TroubleContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.stores.port import Store


class Machine:
    """A file and the clocks of the machine it is on."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "dibs.db")
        self.clock = ManualClock()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Machine:
        return Machine(tmp_path)

    def open_store(self, place: Machine) -> Store:
        clock = place.clock
        return SqliteStore(place.path, steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id)

    def advance(self, place: Machine, store: Store, ms: int) -> None:
        place.clock.advance(ms)


class TestSqliteStoreOnTheMachinesClock(StoreContract):
    def open_store(self, place: Path) -> Store:
        return SqliteStore(str(place / "dibs.db"))


class TestSqliteStoreOnASmallDisk(TroubleContract):
    @pytest.fixture
    def place(self, small_disk: Path) -> Path:
        return small_disk

    def open_store(self, place: Path) -> Store:
        return SqliteStore(str(place / "dibs.db"))

    def fill(self, place: Path) -> Callable[[], None]:
        filler = place / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 1024)
        return filler.unlink
