"""Tests of what every store must do. The stores of dibs run them; run them on yours, too.

    from dibs.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        def open_store(self, place: Path) -> Store:
            return MyStore(place / "data")

Each test gets a `place` of its own (an empty folder; override the fixture if yours is a database). Opening the same
place twice must give two connections to the same data. If your store's clock can be set, override `advance`; otherwise
the suite waits for real, some tenths of a second in all. If your store can be full, override `fill`. The suite skips
only that, and what the store's capabilities declare as missing.
"""

from __future__ import annotations

import pytest

for _part in ("records", "events", "races"):
    pytest.register_assert_rewrite(f"dibs.testing.contract_{_part}")

from dibs.testing.contract_events import EventContract  # noqa: E402 - only after the line above it can be rewritten
from dibs.testing.contract_races import LeaseContract, RaceContract, TroubleContract  # noqa: E402
from dibs.testing.contract_records import RecordContract  # noqa: E402

__all__ = ["StoreContract"]


class StoreContract(RecordContract, EventContract, RaceContract, LeaseContract, TroubleContract):
    """Subclass it and define `open_store`. See the module's docstring."""
