"""How a fence uses each kind of database connection: parameters, transactions, and errors.

A connection is recognised by the module of its class, so no unused driver is imported.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from dibs.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

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
        raise NotImplementedError

    async def check_transaction_async(self, handle: Any) -> None:
        self.check_transaction(handle)

    def transaction(self, handle: Any) -> AbstractContextManager[None]:
        """A transaction of its own: committed at the end of the block, rolled back when that fails."""
        raise NotImplementedError

    def transaction_async(self, handle: Any) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError


class Sqlite(Driver):
    """The module sqlite3. Its `autocommit` is False, True or, as before Python 3.12, neither."""

    def check_transaction(self, handle: Any) -> None:
        if _sqlite_commits_alone(handle):
            raise InvalidInput(_AUTOCOMMIT)

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
    def check_transaction(self, handle: Any) -> None:
        if _commits_alone(handle):
            raise InvalidInput(_AUTOCOMMIT)

    @contextmanager
    def transaction(self, handle: Any) -> Iterator[None]:
        self._check_idle(handle)
        with handle.transaction():
            yield

    @asynccontextmanager
    async def transaction_async(self, handle: Any) -> AsyncIterator[None]:
        self._check_idle(handle)
        async with handle.transaction():
            yield

    def _check_idle(self, handle: Any) -> None:
        if handle.info.transaction_status != _IDLE:
            raise InvalidInput(_BUSY)


class Alchemy(Driver):
    """SQLAlchemy, on SQLite or PostgreSQL: a connection or a session, for threads or for event loops."""

    def check_transaction(self, handle: Any) -> None:
        connection = handle.connection() if callable(handle.connection) else handle
        self._check(connection)

    async def check_transaction_async(self, handle: Any) -> None:
        if hasattr(handle, "sync_session"):
            handle = await handle.connection()
        self._check(handle.sync_connection)

    def _check(self, connection: Any) -> None:
        pooled = connection.connection
        driver, adapted = pooled.driver_connection, pooled.dbapi_connection
        if hasattr(driver, "in_transaction") and hasattr(driver, "isolation_level"):
            alone = _sqlite_commits_alone(driver)
        else:
            alone = _commits_alone(driver) or (driver is not adapted and _commits_alone(adapted))
        if alone:
            raise InvalidInput(_AUTOCOMMIT)

    @contextmanager
    def transaction(self, handle: Any) -> Iterator[None]:
        if handle.in_transaction():
            raise InvalidInput(_BUSY)
        with handle.begin():
            yield

    @asynccontextmanager
    async def transaction_async(self, handle: Any) -> AsyncIterator[None]:
        if handle.in_transaction():
            raise InvalidInput(_BUSY)
        async with handle.begin():
            yield


def _sqlite_commits_alone(connection: Any) -> bool:
    by_itself = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    return by_itself and not connection.in_transaction


def _commits_alone(connection: Any) -> bool:
    """Of PostgreSQL's drivers. One that is in autocommit can still have been told to begin a transaction."""
    if getattr(connection, "autocommit", False) is not True:
        return False
    status = getattr(getattr(connection, "info", None), "transaction_status", _IDLE)
    return bool(status == _IDLE)


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

            _check_database(handle)
            return Alchemy(":{}", text=sqlalchemy.text)
    if callable(getattr(handle, "get", None)) and callable(getattr(handle, "set", None)):
        return None
    raise InvalidInput(
        f"A fence does not support {type(handle).__name__}: give it an open connection of sqlite3, psycopg or "
        "SQLAlchemy, or something with get(key) and set(key, value)."
    )


def _check_database(handle: Any) -> None:
    """SQLAlchemy supports many databases, the fence's statements only two."""
    bound = handle if hasattr(handle, "dialect") else getattr(handle, "bind", None)
    dialect = getattr(getattr(bound, "dialect", None), "name", None)
    if dialect not in (None, "sqlite", "postgresql"):
        raise InvalidInput(f"A fence works on SQLite and PostgreSQL, not on {dialect}.")


@contextmanager
def table_needed(table: str) -> Iterator[None]:
    """A driver's error for a missing table, as one that says what to do."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        if not _is_missing_table(error):
            raise
        raise InvalidInput(
            f"The fence's table {table} does not exist. Create it once with `fence.create()`, and commit."
        ) from error


def _is_missing_table(error: BaseException) -> bool:
    found = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
    state = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
    return state == "42P01" or "no such table" in str(found)
