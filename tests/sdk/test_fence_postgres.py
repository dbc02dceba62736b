"""Fences on a real PostgreSQL: psycopg and SQLAlchemy, for threads and for event loops, and two that race."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dibs import AsyncFence, Fence, StaleToken
from dibs.testing.processes import WAIT_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture
def table(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"fence_{abs(hash(request.node.nodeid))}"
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"DROP TABLE IF EXISTS {name}".encode())


def alchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def check(place: Any, table: str) -> None:
    fence = Fence(place, table=table)
    fence.create()
    fence.admit(name="job", token=7)
    fence.admit(name="job", token=7)
    with pytest.raises(StaleToken) as told:
        fence.admit(name="job", token=6)
    assert told.value.newest == 7
    fence.admit(name="job", token=8)


def test_psycopg(postgres_url: str, table: str) -> None:
    with psycopg.connect(postgres_url) as db:
        check(db, table)
    with psycopg.connect(postgres_url, row_factory=dict_row) as db, pytest.raises(StaleToken):
        Fence(db, table=table).admit(name="job", token=7)


def test_sqlalchemy(postgres_url: str, table: str) -> None:
    engine = sqlalchemy.create_engine(alchemy(postgres_url))
    with engine.begin() as connection:
        check(connection, table)
    with Session(engine) as session:
        with pytest.raises(StaleToken):
            Fence(session, table=table).admit(name="job", token=7)
        Fence(session, table=table).admit(name="job", token=9)
        session.commit()
    engine.dispose()


def test_event_loops(postgres_url: str, table: str) -> None:
    async def check_async(place: Any, token: int) -> None:
        fence = AsyncFence(place, table=table)
        await fence.create()
        await fence.admit(name="job", token=token)
        with pytest.raises(StaleToken) as told:
            await fence.admit(name="job", token=token - 1)
        assert told.value.newest == token

    async def go() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as db:
            await check_async(db, 5)
        engine = create_async_engine(alchemy(postgres_url))
        async with engine.begin() as connection:
            await check_async(connection, 6)
        async with AsyncSession(engine) as session:
            await check_async(session, 7)
        await engine.dispose()

    asyncio.run(go())


@pytest.mark.promise("token:rises")
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)], ids=["old one first", "new one first"])
def test_of_two_transactions_that_race_the_second_waits_and_is_judged_by_the_first(
    postgres_url: str, table: str, first: int, second: int
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        Fence(db, table=table).create()
        Fence(db, table=table).admit(name="job", token=1)
    came: list[str] = []

    def race(pid: list[int]) -> None:
        with psycopg.connect(postgres_url) as db:
            pid.append(db.info.backend_pid)
            try:
                Fence(db, table=table).admit(name="job", token=second)
                came.append("admitted")
            except StaleToken:
                came.append("refused")

    with psycopg.connect(postgres_url) as db, psycopg.connect(postgres_url, autocommit=True) as watcher:
        Fence(db, table=table).admit(name="job", token=first)
        pid: list[int] = []
        other = threading.Thread(target=race, args=(pid,))
        other.start()
        try:
            wait_until(lambda: pid, "the other transaction begins")
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: (watcher.execute(waits, pid).fetchone() or [None])[0], "it waits for ours")
            assert came == []
            db.commit()
        finally:
            db.rollback()
            other.join(WAIT_S_MAX)
    assert came == ["admitted" if second > first else "refused"]
