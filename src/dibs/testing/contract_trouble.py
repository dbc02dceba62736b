"""The store contract: a store without room says so until it has room again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreFull, StoreUnavailable
from dibs.testing.contract_base import ContractBase, event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.port import Store


class TroubleContract(ContractBase):
    def fill(self, place: Any) -> Callable[[], None] | None:
        """Leave no room for writes at `place`. Returns what makes room again. None: this place cannot be filled."""
        return None

    @pytest.mark.fault("F-040")
    @pytest.mark.promise("damage:told")
    def test_a_full_store_says_so_until_it_has_room_again(self, place: Any, store: Store) -> None:
        put(store, lock("before"))
        assert store.trouble() is None
        make_room = self.fill(place)
        if make_room is None:
            pytest.skip("nobody said how it is filled")
        try:
            with pytest.raises(StoreFull):
                _write_on(store)
            for _ in range(3):
                assert isinstance(store.trouble(), StoreFull)
                with suppress(StoreUnavailable):
                    store.commit({}, {}, ())  # there may be room for nothing
            assert store.read([key_of("before")]).records[key_of("before")].record == lock("before")
        finally:
            make_room()
        store.commit({}, {}, ())
        assert store.trouble() is None
        put(store, lock("after"), events=(event("after"),))
        assert store.trouble() is None


def _write_on(store: Store) -> None:
    for number in range(10_000):
        put(store, lock(f"job-{number}"), events=(event(f"job-{number}"),))
