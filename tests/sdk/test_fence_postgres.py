"""Fences on a real PostgreSQL: psycopg and SQLAlchemy, for threads and for event loops, and two that race."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dibs import AsyncFence, Fence, InvalidInput, StaleToken
from tests.programs import WAIT_S_MAX, wait_until

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
        with Fence(db, table=table).transaction(name="job", token=1):
            pass
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


def refused(fence: Fence) -> None:
    fence.create()
    with pytest.raises(InvalidInput, match=r"autocommit.*transaction"):
        fence.admit(name="job", token=1)


def test_a_connection_in_autocommit_is_refused_unless_a_transaction_was_begun(postgres_url: str, table: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        refused(Fence(db, table=table))
        with db.transaction():
            Fence(db, table=table).admit(name="job", token=1)
    engine = sqlalchemy.create_engine(alchemy(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        refused(Fence(connection, table=table))
    with engine.begin() as connection:
        refused(Fence(connection, table=table))
    with Session(engine) as session:
        refused(Fence(session, table=table))
    engine.dispose()

    async def go() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as db:
            with pytest.raises(InvalidInput, match="autocommit"):
                await AsyncFence(db, table=table).admit(name="job", token=1)
            async with AsyncFence(db, table=table).transaction(name="job", token=1):
                pass
        engine = create_async_engine(alchemy(postgres_url), isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            with pytest.raises(InvalidInput, match="autocommit"):
                await AsyncFence(connection, table=table).admit(name="job", token=1)
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidInput, match="autocommit"):
                await AsyncFence(session, table=table).admit(name="job", token=1)
        await engine.dispose()

    asyncio.run(go())


def test_a_missing_table_is_said_with_the_remedy(postgres_url: str, table: str) -> None:
    engine = sqlalchemy.create_engine(alchemy(postgres_url))
    with (
        psycopg.connect(postgres_url) as db,
        pytest.raises(InvalidInput, match=r"does not exist.*fence.create\(\)"),
    ):
        Fence(db, table=table).admit(name="job", token=1)
    with (
        pytest.raises(InvalidInput, match=r"does not exist.*fence.create\(\)"),
        engine.connect() as connection,
        Fence(connection, table=table).transaction(name="job", token=1),
    ):
        pass
    engine.dispose()

    async def go() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as db:
            with pytest.raises(InvalidInput, match="does not exist"):
                await AsyncFence(db, table=table).admit(name="job", token=1)

    asyncio.run(go())


def test_a_transaction_that_is_open_already_is_refused_because_it_may_have_read(postgres_url: str, table: str) -> None:
    engine = sqlalchemy.create_engine(alchemy(postgres_url))
    with psycopg.connect(postgres_url) as db, engine.connect() as connection, Session(engine) as session:
        places: list[Any] = [db, connection, session]
        for place in places:
            Fence(place, table=table).create()
            place.execute(b"SELECT 1" if place is db else sqlalchemy.text("SELECT 1"))
            with pytest.raises(InvalidInput, match="open on this connection"):
                Fence(place, table=table).transaction(name="job", token=1).__enter__()
            place.commit()
    engine.dispose()


@pytest.fixture
def balance(postgres_url: str, table: str) -> Iterator[str]:
    """A fence and, beside it, a table with one number in it."""
    name = f"{table}_balance"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        Fence(db, table=table).create()
        db.execute(f"CREATE TABLE {name} (amount INTEGER)".encode())
        db.execute(f"INSERT INTO {name} VALUES (0)".encode())
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"DROP TABLE {name}".encode())


def amount_in(db: Any, balance: str) -> int:
    row = db.execute(f"SELECT amount FROM {balance}".encode()).fetchone()
    found: int = row[0]
    return found


@pytest.mark.promise("token:rises")
def test_an_owner_that_has_read_and_not_written_is_known_to_the_fence(
    postgres_url: str, table: str, balance: str
) -> None:
    """The successor reads; the paused owner wakes and writes; the successor writes what it made of its read."""
    came: list[str] = []
    pid: list[int] = []

    def wake() -> None:
        with psycopg.connect(postgres_url) as late:
            pid.append(late.info.backend_pid)
            try:
                with Fence(late, table=table).transaction(name="job", token=1):
                    late.execute(f"UPDATE {balance} SET amount = 100".encode())
                came.append("written")
            except StaleToken:
                came.append("refused")

    paused = threading.Thread(target=wake)
    with psycopg.connect(postgres_url) as db, psycopg.connect(postgres_url, autocommit=True) as watcher:
        with Fence(db, table=table).transaction(name="job", token=2):
            read = amount_in(db, balance)
            paused.start()
            wait_until(lambda: pid, "the paused owner wakes")
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: (watcher.execute(waits, pid).fetchone() or [None])[0], "it waits for ours")
            db.execute(f"UPDATE {balance} SET amount = {read + 1}".encode())
        paused.join(WAIT_S_MAX)
        assert came == ["refused"]
        assert amount_in(db, balance) == 1


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_no_update_is_lost_however_owners_overlap(postgres_url: str, table: str, balance: str, level: str) -> None:
    """Each owner adds one to what it read. Late ones are refused, or come first and are counted."""
    written: list[int] = []

    def own(token: int) -> None:
        with psycopg.connect(postgres_url) as db:
            db.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]
            try:
                with Fence(db, table=table).transaction(name="job", token=token):
                    read = amount_in(db, balance)
                    db.execute(f"UPDATE {balance} SET amount = {read + 1}".encode())
                written.append(token)
            except (StaleToken, psycopg.errors.SerializationFailure):
                pass

    tokens = list(range(1, 61))
    random.Random(7).shuffle(tokens)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(own, tokens))
    with psycopg.connect(postgres_url) as db:
        assert amount_in(db, balance) == len(written)
    assert written
