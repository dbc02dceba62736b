"""The reference store keeps the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.testing.contract import StoreContract

if TYPE_CHECKING:
    from dibs.stores.port import Store


class Memory:
    """One store's data: connections to it are the store itself."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def place(self) -> Memory:
        return Memory()

    def open_store(self, place: Memory) -> Store:
        return place.store

    def advance(self, place: Memory, store: Store, ms: int) -> None:
        place.clock.advance(ms)
