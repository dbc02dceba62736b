"""Reading and pruning the event log. Imported only when needed: a claim only adds events."""

from __future__ import annotations

from dibs.stores.codec import decode_event
from dibs.stores.sqlite.counters import SETTLE
from dibs.stores.sqlite.driver import BLOCK
from dibs.stores.sqlite.schema import blocks_of, forget_pruned

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from dibs.core.events import Event
    from dibs.stores.sqlite.connection import SqliteConnection

PRUNE_ROWS = 10_000  # rows per transaction, so that the write lock is held only for a short time


def events(
    link: SqliteConnection, after: int, limit: int, job: tuple[str, str] | None, *, newest: bool
) -> list[Event]:
    """See the port."""
    with link.turn, link as db:
        if job is None:
            rows = selected(db, after, limit, newest=newest)
        else:
            db.execute("BEGIN")  # several statements, one moment
            rows = _selected_of(db, job, after, limit, newest=newest)
            db.execute("COMMIT")
    return [decode_event(seq, body) for seq, body in rows]


def selected(db: sqlite3.Connection, after: int, limit: int, *, newest: bool) -> list[tuple[int, str]]:
    """Number and text of events, in order."""
    order = " DESC" if newest else ""
    rows = db.execute(
        f"SELECT seq, body FROM events WHERE seq > ? ORDER BY seq{order} LIMIT ?", (after, max(0, limit))
    ).fetchall()
    if newest:
        rows.reverse()
    return rows


def _selected_of(
    db: sqlite3.Connection, job: tuple[str, str], after: int, limit: int, *, newest: bool
) -> list[tuple[int, str]]:
    """The same for one job: only blocks that may have an event of it are read."""
    blocks = blocks_of(db, job, after)
    if newest:
        blocks.reverse()
    order = " DESC" if newest else ""
    rows: list[tuple[int, str]] = []
    for block in blocks:
        if len(rows) >= limit:
            break
        rows += db.execute(
            "SELECT seq, body FROM events WHERE seq > ? AND seq <= ? AND ns = ? AND job = ?"
            f" ORDER BY seq{order} LIMIT ?",
            (max(after, block * BLOCK), (block + 1) * BLOCK, *job, limit - len(rows)),
        ).fetchall()
    if newest:
        rows.reverse()
    return rows


def prune(link: SqliteConnection, *, keep: int, before_ms: int) -> int:
    """See the port. The range to delete is determined first, then deleted in parts, so two prunes at once do not
    delete more. Numbers count events: after a restore some are missing, and then fewer are kept."""
    with link.turn, link as db:
        (last,) = db.execute("SELECT max(seq) FROM events").fetchone()  # first: what comes from here on stays
        if last is None:
            return 0
        # Time rises with the numbers, so this walks over what is to go and no further. No index is worth its writes.
        young = db.execute(
            "SELECT seq FROM events WHERE at_ms >= ? ORDER BY seq LIMIT 1", (before_ms,)
        ).fetchone()
    return _delete(link, max(last if young is None else young[0] - 1, last - keep))


def _delete(link: SqliteConnection, upto: int) -> int:
    total = 0
    while True:
        with link.turn, link as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(SETTLE)  # the last event may be among them, and the counters with it
            count = db.execute(
                "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE seq <= ? ORDER BY seq LIMIT ?)",
                (upto, PRUNE_ROWS),
            ).rowcount
            if count:
                forget_pruned(db)
            db.execute("COMMIT" if count else "ROLLBACK")
        total += count
        if count < PRUNE_ROWS:
            return total


def number_from(link: SqliteConnection, seq: int, forget: Callable[[], None]) -> None:
    """See the port. `forget` drops what the store remembers of the counters."""
    with link.turn, link as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(SETTLE)
        db.execute("UPDATE counters SET last_seq = max(last_seq, ?)", (seq,))
        db.execute("COMMIT")
        forget()
