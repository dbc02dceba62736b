"""The PostgreSQL store keeps the contract: with a clock that can be set, with the database's own, and
behind pgbouncer in transaction mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.store import PostgresStore
from dibs.testing.contract import StoreContract
from tests.postgres import Schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.port import Store


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def place(self, postgres_schema: Callable[[], Schema]) -> Schema:
        schema = postgres_schema()
        schema.stop_clock()
        return schema

    def open_store(self, place: Schema) -> Store:
        return PostgresStore(PostgresLocation(place.url), steady_ms=place.clock.steady_ms)

    def advance(self, place: Schema, store: Store, ms: int) -> None:
        place.advance(ms)

    def fill(self, place: Schema) -> Callable[[], None]:
        return place.fill()


@pytest.mark.slow  # in every run the database's own clock is that behind pgbouncer
class TestPostgresStoreOnItsOwnClock(StoreContract):
    @pytest.fixture
    def place(self, postgres_schema: Callable[[], Schema]) -> Schema:
        return postgres_schema()

    def open_store(self, place: Schema) -> Store:
        return PostgresStore(PostgresLocation(place.url))


@pytest.mark.full  # the same a second time
class TestPostgresStoreBehindPgbouncer(StoreContract):
    @pytest.fixture
    def place(self, postgres_schema: Callable[[], Schema], pgbouncer_url: str) -> str:
        return f"{pgbouncer_url}?schema={postgres_schema().name}"

    def open_store(self, place: str) -> Store:
        return PostgresStore(PostgresLocation(place))
