"""Looking at many records: a part of the keys in their order, and what is due."""

from __future__ import annotations

from dibs.errors import StoreCorrupt
from dibs.stores.codec import decode
from dibs.stores.keys import end_of
from dibs.stores.port import Due, Versioned

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from dibs.stores.sqlite.connection import SqliteConnection

    Row = tuple[str, int, str]

_ANY = "records WHERE"
_LIVE = "records INDEXED BY records_live WHERE live AND"


def scan(
    link: SqliteConnection, prefix: str, after: str, limit: int, *, live: bool
) -> list[tuple[str, Versioned]]:
    with link.turn, link as db:
        rows = page(db, prefix, after, limit, live=live)
    try:
        return decoded(rows)
    except StoreCorrupt as error:
        link.trouble = error
        raise


def page(db: sqlite3.Connection, prefix: str, after: str, limit: int, *, live: bool) -> list[Row]:
    """Key, version and text of the next records."""
    # One lower bound: SQLite begins at one, and would walk from a second to the first again for every page.
    begin = ("key > ?", after) if after >= prefix else ("key >= ?", prefix)
    sql, values = f"SELECT key, version, body FROM {_LIVE if live else _ANY} {begin[0]}", [begin[1]]
    end = end_of(prefix)
    if end is not None:
        sql += " AND key < ?"
        values.append(end)
    return db.execute(f"{sql} ORDER BY key LIMIT ?", (*values, max(0, limit))).fetchall()


def decoded(rows: list[Row]) -> list[tuple[str, Versioned]]:
    return [(key, Versioned(version=version, record=decode(key, body))) for key, version, body in rows]


def due(link: SqliteConnection, limit: int, now_ms: Callable[[], int]) -> Due:
    with link.turn, link as db:
        first = db.execute(
            "SELECT due_ms, key FROM records WHERE due_ms IS NOT NULL ORDER BY due_ms LIMIT ?",
            (max(1, limit),),
        ).fetchall()
        now = now_ms()
    keys = [key for due_ms, key in first if due_ms <= now]
    return Due(keys=keys[: max(0, limit)], next_ms=first[0][0] if first else None)
