"""Every scenario gets the same answers from PostgreSQL: waiting, sessions, deadlocks, trees and all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.port import StoreProxy
from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.store import PostgresStore
from tests.core.test_scenarios import SOME_QUICK, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dibs.stores.port import Due, Snapshot, Store
    from tests.postgres import Schema


class OnAScriptsClock(StoreProxy):
    """Sets the database's clock to the script's before time is asked for."""

    def __init__(self, schema: Schema, clock: Callable[[], int]) -> None:
        super().__init__(PostgresStore(PostgresLocation(schema.url), steady_ms=clock))
        self._schema = schema
        self._clock = clock
        self._set_ms = -1

    def _set(self) -> None:
        if self._clock() != self._set_ms:
            self._set_ms = self._clock()
            self._schema.run(f"UPDATE {{s}}.wall SET ms = {self._set_ms}")

    def read(self, keys: Iterable[str]) -> Snapshot:
        self._set()
        return super().read(keys)

    def due(self, limit: int) -> Due:
        self._set()
        return super().due(limit)


@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("script", SOME_QUICK, ids=lambda path: path.stem)
def test_a_scenario_goes_as_written_on_postgresql(script: Path, postgres_schema: Callable[[], Schema]) -> None:
    schema = postgres_schema()
    schema.stop_clock()
    opened: list[Store] = []

    def open_store(clock: Callable[[], int]) -> Store:
        opened.append(OnAScriptsClock(schema, clock))
        return opened[-1]

    try:
        check(script, open_store)
    finally:
        for each in opened:
            each.close()
