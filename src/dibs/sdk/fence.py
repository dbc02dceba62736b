"""Fences: what makes a fencing token more than a number.

A lease can be lost while its owner is paused, and a paused owner does not know. What it writes when it wakes must be
refused by whatever it writes to. A fence remembers, next to the data, the largest token it has seen for a name, and
refuses smaller ones. In a database the check is part of the caller's own transaction, so that check and write happen
together or not at all, and the row is locked until the transaction ends.

    with connection:                           # one transaction
        fence.admit(claim)                     # raises StaleToken for a late writer; nothing is written
        connection.execute("UPDATE …")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.errors import InvalidInput, StaleToken, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.held import Held

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

    A key-value store that only has get and set cannot check and write in one step: two writers at the very same moment
    may both get through. One with `compare_and_set(key, old, new) -> bool` can, and is asked to."""

    def __init__(self, place: Any, *, table: str = TABLE) -> None:
        if not table.replace("_", "a").replace(".", "a").isalnum():
            raise InvalidInput(f"{table!r} is no table name: letters, digits, _ and . only.")
        self._place = place
        self._table = table
        self._sql = _dialect_of(place)

    def create(self) -> None:
        """Make the table, if it is not there. Not needed over a key-value store."""
        if self._sql is not None:
            self._place.execute(self._sql.statement(_CREATE, self._table))

    def admit(self, claim: Held | None = None, *, name: str | None = None, token: int | None = None) -> None:
        """Let a write through, or raise StaleToken. In a database: call it in the transaction that writes.

        A claim gives name and token; and one that knows it was lost is refused before anything is asked."""
        name, token = _name_and_token(claim, name, token)
        if self._sql is None:
            _admit_by_value(self._place, f"{self._table}:{name}", name, token)
            return
        values = {"name": name, "token": token}
        done = self._place.execute(*self._sql.bound(_ADMIT, self._table, values))
        if done.rowcount == 0:
            row = self._place.execute(*self._sql.bound(_NEWEST, self._table, values)).fetchone()
            raise StaleToken(name, token, _first(row))


class AsyncFence:
    """`Fence` over psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession."""

    def __init__(self, place: Any, *, table: str = TABLE) -> None:
        fence = Fence(place, table=table)
        if fence._sql is None:
            raise InvalidInput("AsyncFence is for database connections; over a key-value store use Fence.")
        self._place = place
        self._table = table
        self._sql = fence._sql

    async def create(self) -> None:
        """Make the table, if it is not there."""
        await self._place.execute(self._sql.statement(_CREATE, self._table))

    async def admit(
        self, claim: Held | None = None, *, name: str | None = None, token: int | None = None
    ) -> None:
        """As `Fence.admit`."""
        name, token = _name_and_token(claim, name, token)
        values = {"name": name, "token": token}
        done = await self._place.execute(*self._sql.bound(_ADMIT, self._table, values))
        if done.rowcount == 0:
            found = await self._place.execute(*self._sql.bound(_NEWEST, self._table, values))
            row = found.fetchone()
            if hasattr(row, "__await__"):  # psycopg's cursor is asynchronous too, SQLAlchemy's result is not
                row = await row
            raise StaleToken(name, token, _first(row))


def _name_and_token(claim: Held | None, name: str | None, token: int | None) -> tuple[str, int]:
    if claim is not None:
        claim.check()
        name, token = name or claim.name, claim.fencing_token if token is None else token
    if name is None or token is None:
        raise InvalidInput("A fence needs a claim, or a name and a token.")
    return name, token


def _first(row: Any) -> int:
    """Programs choose what a row is: a tuple, or a mapping."""
    return int(next(iter(row.values())) if isinstance(row, dict) else row[0])


class _Dialect:
    """How a driver wants its parameters: marks in the text, and the text itself."""

    def __init__(self, mark: str, text: Callable[[str], Any] = str) -> None:
        self._mark = mark
        self._text = text

    def statement(self, sql: str, table: str, **marks: str) -> Any:
        return self._text(sql.format(table=table, **marks))

    def bound(self, sql: str, table: str, values: dict[str, Any]) -> tuple[Any, Any]:
        used = [key for key in values if "{" + key + "}" in sql]
        statement = self.statement(sql, table, **{key: self._mark.format(key) for key in used})
        return statement, {key: values[key] for key in used}


def _dialect_of(place: Any) -> _Dialect | None:
    """By where the connection's class comes from; None for a key-value store. Imports no driver that is not in use."""
    for kind in type(place).__mro__:
        top = kind.__module__.split(".")[0]
        if top == "sqlite3":
            return _Dialect(":{}")
        if top == "psycopg":
            return _Dialect("%({})s")
        if top == "sqlalchemy":
            import sqlalchemy

            _check_database(place)
            return _Dialect(":{}", text=sqlalchemy.text)
    if callable(getattr(place, "get", None)) and callable(getattr(place, "set", None)):
        return None
    raise InvalidInput(
        f"A fence cannot stand on {type(place).__name__}: give it an open connection of sqlite3, psycopg or "
        "SQLAlchemy, or something with get(key) and set(key, value)."
    )


def _check_database(place: Any) -> None:
    """SQLAlchemy speaks to many; the statement above is understood by two."""
    bound = place if hasattr(place, "dialect") else getattr(place, "bind", None)
    dialect = getattr(getattr(bound, "dialect", None), "name", None)
    if dialect not in (None, "sqlite", "postgresql"):
        raise InvalidInput(f"A fence can stand on SQLite and PostgreSQL, not on {dialect}.")


def _admit_by_value(place: Any, key: str, name: str, token: int) -> None:
    swap = getattr(place, "compare_and_set", None)
    for _ in range(SWAPS_MAX):
        seen = place.get(key)
        newest = 0 if seen is None else int(seen)
        if newest > token:
            raise StaleToken(name, token, newest)
        if newest == token:
            return
        if swap is None:
            place.set(key, str(token))
            return
        if swap(key, seen, str(token)):
            return
    raise Unavailable(f"compare_and_set of {type(place).__name__} never succeeded for {key}.")
