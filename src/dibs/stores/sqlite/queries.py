"""Looking at many records: a part of the keys in their order, and what is due."""

from __future__ import annotations

from dibs.base.cheap import sqlite3
from dibs.base.errors import StoreBroken, StoreCorrupt
from dibs.stores.codec import decode, end_of
from dibs.stores.port import ABSENT, Due, Versioned
from dibs.stores.sqlite import counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.sqlite.cache import RecordCache
    from dibs.stores.sqlite.connection import SqliteConnection

    Row = tuple[str, int, str]

_REACHED = "SELECT due_ms, key, version, body FROM records WHERE due_ms <= ? ORDER BY due_ms LIMIT ?"
_FIRST = "SELECT min(due_ms) FROM records WHERE due_ms IS NOT NULL"
_AHEAD = "SELECT min(due_ms) FROM records WHERE due_ms > ?"
_CORRECT = "UPDATE records SET due_ms = ? WHERE key = ? AND version = ?"
CORRECTED_MIN = 128  # so many entries are looked at, whatever the limit; commands wait meanwhile
_ALL = -1
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


def due(link: SqliteConnection, cache: RecordCache, limit: int, now_ms: Callable[[], int]) -> Due:
    """See the port. The file may have a record as due too early (`rows.py`): such entries are corrected here."""
    with link.turn, link as db:
        now, count = now_ms(), max(CORRECTED_MIN, limit)
        reached, early = _reached(db, cache, now, count)
        is_written = not early or _correct(db, early)
        if not is_written:
            reached, early = _reached(db, cache, now, _ALL)
        # Those that were early are out of the way now, and what is due may be behind them.
        has_more = is_written and bool(early) and len(early) + len(reached) == count
        if reached:
            next_ms: int | None = reached[0][0]
        elif not is_written:
            next_ms = _first_ahead(db, now, early)
        elif has_more:
            next_ms = now
        else:
            (next_ms,) = db.execute(_FIRST).fetchone()
    return Due(keys=[key for _, key in reached[: max(0, limit)]], next_ms=next_ms, has_more=has_more)


def _reached(
    db: sqlite3.Connection, cache: RecordCache, now: int, count: int
) -> tuple[list[tuple[int, str]], list[tuple[int | None, str, int]]]:
    """Of the first entries whose time has come: when records are due and their keys, the longest due first; and those
    that are early, with the time that they should have and the record's version."""
    reached: list[tuple[int, str]] = []
    early: list[tuple[int | None, str, int]] = []
    for due_ms, key, version, body in db.execute(_REACHED, (now, count)):
        remembered = cache.records.get(key, ABSENT)
        try:
            record = remembered.record if remembered.version == version else decode(key, body)
        except StoreBroken:
            record = None  # told to whoever reads it
        due_ms = record.due_ms() if record is not None else due_ms
        if due_ms is None or due_ms > now:
            early.append((due_ms, key, version))
        else:
            reached.append((due_ms, key))
    reached.sort()
    return reached, early


def _correct(db: sqlite3.Connection, early: list[tuple[int | None, str, int]]) -> bool:
    """Another process may have written a record since: its version tells. False: the file cannot be written."""
    try:
        db.execute("BEGIN IMMEDIATE")
        counters.read(db)  # fails if a newer version has brought the file to another format
        db.executemany(_CORRECT, early)
        db.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise
        if db.in_transaction:
            db.execute("ROLLBACK")
        return False
    return True


def _first_ahead(db: sqlite3.Connection, now: int, early: list[tuple[int | None, str, int]]) -> int | None:
    """When the first record is due, if early entries cannot be corrected."""
    times = [due_ms for due_ms, _, _ in early] + [due_ms for (due_ms,) in db.execute(_AHEAD, (now,))]
    return min((due_ms for due_ms in times if due_ms is not None), default=None)
