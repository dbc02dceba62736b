"""Fences: refuse writes with an old fencing token.

A lease can be lost while its owner is paused, and the owner does not know. Its next write must be refused by the
receiver. A fence stores, next to the data, the largest token it has seen for a name, and refuses smaller ones. In a
database this is the first statement of the transaction that reads and writes: the fence's row is locked until the
transaction ends, so an older owner can write neither after us nor between our read and our write.

    with fence.transaction(claim) as connection:   # raises StaleToken for a late owner
        row = connection.execute("SELECT …")
        connection.execute("UPDATE …")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dibs.base.errors import InvalidInput, StaleToken, Unavailable
from dibs.base.generators import run_generator, run_generator_async
from dibs.sdk.answers import Lease
from dibs.sdk.claim_state import ClaimState
from dibs.sdk.methods import explained

# How a fence uses each kind of database connection: parameters, transactions, and errors.
#
# A connection is recognised by the module of its class, so no unused driver is imported.

_AUTOCOMMIT = (
    "This connection is in autocommit mode, so a late write could come between check and write. "
    "Use `with fence.transaction(claim):`, or begin a transaction before admit()."
)
_BUSY = (
    "A transaction is open on this connection, and may have read before the fence. "
    "Commit or roll back first; or leave it open and call admit() as its first statement."
)
_IDLE = 0  # libpq's word for a connection without a transaction


class Driver:
    """Marks for parameters in the text, and the text itself."""

    def __init__(self, mark: str, text: Callable[[str], Any] = str) -> None:
        self._mark = mark
        self._text = text

    def statement(self, sql: str, table: str, **marks: str) -> Any:
        return self._text(sql.format(table=table, **marks))

    def bound(self, sql: str, table: str, values: dict[str, Any]) -> tuple[Any, Any]:
        used = [key for key in values if "{" + key + "}" in sql]
        statement = self.statement(sql, table, **{key: self._mark.format(key) for key in used})
        return statement, {key: values[key] for key in used}

    def check_transaction(self, handle: Any) -> None:
        """Raise InvalidInput unless the next write is part of a transaction."""
        if self.commits_alone(handle):
            raise InvalidInput(_AUTOCOMMIT)

    @staticmethod
    def commits_alone(handle: Any) -> bool:
        """Tell whether the next write is committed by itself. Here of PostgreSQL's drivers: in autocommit mode too, a
        program can have begun a transaction by a statement."""
        if getattr(handle, "autocommit", False) is not True:
            return False
        return bool(getattr(getattr(handle, "info", None), "transaction_status", _IDLE) == _IDLE)

    async def check_transaction_async(self, handle: Any) -> None:
        self.check_transaction(handle)

    def transaction(self, handle: Any) -> Any:
        """A transaction of its own, as a context manager; an asynchronous one for the connection of an event loop. It
        is committed at the end of the block, and rolled back when that fails. Raises InvalidInput if one is open."""
        raise NotImplementedError


class Sqlite(Driver):
    """The module sqlite3. Its `autocommit` is False, True or, as before Python 3.12, neither."""

    @staticmethod
    def commits_alone(handle: Any) -> bool:
        by_itself = handle.isolation_level is None or getattr(handle, "autocommit", None) is True
        return by_itself and not handle.in_transaction

    @contextmanager
    def transaction(self, handle: Any) -> Iterator[None]:
        if getattr(handle, "autocommit", None) is False:  # there is always a transaction, and `with` ends it
            with handle:
                yield
            return
        if handle.in_transaction:
            raise InvalidInput(_BUSY)
        handle.execute("BEGIN IMMEDIATE")
        try:
            yield
            handle.execute("COMMIT")
        finally:
            if handle.in_transaction:
                handle.execute("ROLLBACK")


class Psycopg(Driver):
    def transaction(self, handle: Any) -> Any:
        if handle.info.transaction_status != _IDLE:
            raise InvalidInput(_BUSY)
        return handle.transaction()


class Alchemy(Driver):
    """SQLAlchemy, on SQLite or PostgreSQL: a connection or a session, for threads or for event loops."""

    async def check_transaction_async(self, handle: Any) -> None:
        if hasattr(handle, "sync_session"):
            handle = await handle.connection()
        self.check_transaction(handle.sync_connection)

    @staticmethod
    def commits_alone(handle: Any) -> bool:
        connection = handle.connection() if callable(handle.connection) else handle
        pooled = connection.connection
        driver, adapted = pooled.driver_connection, pooled.dbapi_connection
        if hasattr(driver, "in_transaction") and hasattr(driver, "isolation_level"):
            return Sqlite.commits_alone(driver)
        return Driver.commits_alone(driver) or (driver is not adapted and Driver.commits_alone(adapted))

    def transaction(self, handle: Any) -> Any:
        if handle.in_transaction():
            raise InvalidInput(_BUSY)
        return handle.begin()


def driver_of(handle: Any) -> Driver | None:
    """None for a key-value store."""
    for kind in type(handle).__mro__:
        top = kind.__module__.split(".")[0]
        if top == "sqlite3":
            return Sqlite(":{}")
        if top == "psycopg":
            return Psycopg("%({})s")
        if top == "sqlalchemy":
            import sqlalchemy

            bound = handle if hasattr(handle, "dialect") else getattr(handle, "bind", None)
            dialect = getattr(getattr(bound, "dialect", None), "name", None)
            if dialect not in (None, "sqlite", "postgresql"):
                raise InvalidInput(f"A fence works on SQLite and PostgreSQL, not on {dialect}.")
            return Alchemy(":{}", text=sqlalchemy.text)
    if callable(getattr(handle, "get", None)) and callable(getattr(handle, "set", None)):
        return None
    raise InvalidInput(
        f"A fence does not support {type(handle).__name__}: give it an open connection of sqlite3, psycopg or "
        "SQLAlchemy, or something with get(key) and set(key, value)."
    )


@contextmanager
def table_needed(table: str) -> Iterator[None]:
    """A driver's error for a missing table, as one that says what to do."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        found = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
        state = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
        if state != "42P01" and "no such table" not in str(found):
            raise
        raise InvalidInput(
            f"The fence's table {table} does not exist. Create it once with `fence.create()`, and commit."
        ) from error


TABLE = "dibs_fence"
SWAPS_MAX = 100  # each that fails means that somebody else came through
_CREATE = "CREATE TABLE IF NOT EXISTS {table} (name VARCHAR(512) PRIMARY KEY, token BIGINT NOT NULL)"
_ADMIT = (
    "INSERT INTO {table} (name, token) VALUES ({name}, {token}) ON CONFLICT (name) DO UPDATE"
    " SET token = excluded.token WHERE {table}.token <= excluded.token"
)
_NEWEST = "SELECT token FROM {table} WHERE name = {name}"


class Fence:
    """Over an open connection of sqlite3, psycopg or SQLAlchemy (connection or session), or over a key-value store.

    A key-value store with only get and set cannot check and write in one step: two writers at the same moment may both
    succeed. If it has `compare_and_set(key, old, new) -> bool`, that is used."""

    @explained
    def __init__(self, handle: Any, *, table: str = TABLE) -> None:
        if not table.replace("_", "a").replace(".", "a").isalnum():
            raise InvalidInput(f"{table!r} is not a valid table name: use letters, digits, _ and .")
        self._handle = handle
        self._table = table
        self._driver = driver_of(handle)

    def create(self) -> None:
        """Create the table if it does not exist. Commit afterwards. Not needed for a key-value store."""
        if self._driver is not None:
            self._handle.execute(self._driver.statement(_CREATE, self._table))

    @contextmanager
    @explained
    def transaction(
        self, claim: ClaimState[Any] | None = None, *, name: str | None = None, token: int | None = None
    ) -> Iterator[Any]:
        """`with fence.transaction(claim) as connection:` begins a transaction, admits, and then runs the block.

        Read and write inside the block. Its end commits; an error rolls everything back. Takes what `admit` takes.
        Raises InvalidInput if the connection already has an open transaction."""
        if self._driver is None:
            raise InvalidInput("A key-value store has no transactions: call admit() right before you write.")
        tokens = _tokens(claim, name, token)
        with self._driver.transaction(self._handle):
            self._admit(tokens)
            yield self._handle

    @explained
    def admit(self, claim: ClaimState[Any] | None = None, *, name: str | None = None, token: int | None = None) -> None:
        """Allow a write, or raise StaleToken. In a database it must be the first statement of the transaction.

        Data read before `admit` may be out of date, because an older owner could write until then. `transaction` has
        the right order. A claim provides names and tokens; a claim that knows of its loss is refused at once. For a
        claim on several jobs, `name` selects one; without it all are admitted."""
        self._admit(_tokens(claim, name, token))

    def _admit(self, tokens: dict[str, int]) -> None:
        if self._driver is None:
            for name, token in tokens.items():
                _admit_by_value(self._handle, f"{self._table}:{name}", name, token)
            return
        self._driver.check_transaction(self._handle)
        run_generator(self._admitting(self._driver, tokens), lambda answer: answer)

    def _admitting(self, driver: Driver, tokens: dict[str, int]) -> Generator[Any, Any, None]:
        """Yields what the handle returns. Of an event loop's handle it is awaited first."""
        for name, token in tokens.items():
            values = {"name": name, "token": token}
            with table_needed(self._table):
                done = yield self._handle.execute(*driver.bound(_ADMIT, self._table, values))
            if done.rowcount == 0:
                found = yield self._handle.execute(*driver.bound(_NEWEST, self._table, values))
                row = yield found.fetchone()  # a tuple or a mapping
                raise StaleToken(name, token, int(next(iter(row.values())) if isinstance(row, dict) else row[0]))


class AsyncFence:
    """`Fence` over psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession."""

    def __init__(self, handle: Any, *, table: str = TABLE) -> None:
        self._fence = Fence(handle, table=table)
        if self._fence._driver is None:
            raise InvalidInput("AsyncFence is for database connections; over a key-value store use Fence.")
        self._handle = handle
        self._driver = self._fence._driver

    async def create(self) -> None:
        """Make the table, if it is not there. Commit afterwards."""
        await self._handle.execute(self._driver.statement(_CREATE, self._fence._table))

    @asynccontextmanager
    @explained
    async def transaction(
        self, claim: ClaimState[Any] | None = None, *, name: str | None = None, token: int | None = None
    ) -> AsyncIterator[Any]:
        """`async with fence.transaction(claim) as connection:`, as `Fence.transaction`."""
        tokens = _tokens(claim, name, token)
        async with self._driver.transaction(self._handle):
            await self._admit(tokens)
            yield self._handle

    @explained
    async def admit(
        self, claim: ClaimState[Any] | None = None, *, name: str | None = None, token: int | None = None
    ) -> None:
        """As `Fence.admit`: the first statement of the transaction."""
        await self._admit(_tokens(claim, name, token))

    async def _admit(self, tokens: dict[str, int]) -> None:
        await self._driver.check_transaction_async(self._handle)
        with table_needed(self._fence._table):
            await run_generator_async(self._fence._admitting(self._driver, tokens), _awaited)


async def _awaited(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer  # SQLAlchemy's result is not asynchronous


def _tokens(claim: object, name: Any, token: Any) -> dict[str, int]:
    """The tokens to admit, sorted by name, so that two transactions never deadlock."""
    if claim is None:
        if name is None or token is None:
            raise InvalidInput("A fence needs a claim, or a name and a token.")
        if not isinstance(name, str) or type(token) is not int:
            raise InvalidInput(f"A name is text and a token a whole number; these are {name!r:.80} and {token!r:.80}.")
        return {name: token}
    if not isinstance(claim, ClaimState):
        raise InvalidInput(
            f"A fence needs what a block gives, `with … as claim:`, and this is a {type(claim).__name__}. "
            "Of a lease, give name=lease.name and token=lease.fencing_token."
        )
    if token is not None:
        raise InvalidInput("A claim has its own token: give a claim, or a name and a token.")
    claim.check()
    leases = {lease.name: lease for lease in claim.leases}
    if name is not None and name not in leases:
        raise InvalidInput(f"This claim is on {', '.join(sorted(leases))}, not on {name}.")
    chosen = sorted(leases) if name is None else [name]
    for each in chosen:
        _check_one_owner(claim, leases[each])
    return {each: leases[each].fencing_token for each in chosen}


def _check_one_owner(claim: ClaimState[Any], lease: Lease) -> None:
    """Raise InvalidInput for a job that may have several owners at once: a newer token does not make the others late,
    so the largest one would refuse an owner that has lost nothing."""
    if lease.slot is not None:
        raise InvalidInput(
            f"{lease.name} has slots, so several owners may write, and the largest token cannot tell which is late. "
            'Use a key for each slot: name=f"{claim.name} {claim.slot}", token=claim.fencing_token.'
        )
    if lease.name in claim._hold.shared_names:
        raise InvalidInput(
            f"{lease.name} is shared, so several owners may write, and a token cannot tell which is late. "
            "Claim it alone to write."
        )


def _admit_by_value(handle: Any, key: str, name: str, token: int) -> None:
    swap = getattr(handle, "compare_and_set", None)
    for _ in range(SWAPS_MAX):
        seen = handle.get(key)
        newest = 0 if seen is None else int(seen)
        if newest > token:
            raise StaleToken(name, token, newest)
        if newest == token:
            return
        if swap is None:
            handle.set(key, str(token))
            return
        if swap(key, seen, str(token)):
            return
    raise Unavailable(f"compare_and_set of {type(handle).__name__} never succeeded for {key}.")
