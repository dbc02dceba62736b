"""Reading and pruning the event log. Imported only when needed: a claim only adds events."""

from __future__ import annotations

from dibs.stores.codec import decode_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from dibs.core.events import Event
    from dibs.stores.sqlite.connection import SqliteConnection

_NO_SEQ = 2**63 - 1
PRUNE_ROWS = 10_000  # rows per transaction, so that the write lock is held only for a short time


def events(
    link: SqliteConnection, after: int, limit: int, job: tuple[str, str] | None, *, newest: bool
) -> list[Event]:
    """See the port."""
    with link.turn, link as db:
        rows = selected(db, after, limit, job, newest=newest)
    return [decode_event(seq, body) for seq, body in rows]


def selected(
    db: sqlite3.Connection, after: int, limit: int, job: tuple[str, str] | None, *, newest: bool
) -> list[tuple[int, str]]:
    """Number and text of events, in order."""
    which = "" if job is None else " AND ns = ? AND job = ?"
    order = " DESC" if newest else ""
    rows = db.execute(
        f"SELECT seq, body FROM events WHERE seq > ?{which} ORDER BY seq{order} LIMIT ?",
        (after, *(job or ()), max(0, limit)),
    ).fetchall()
    if newest:
        rows.reverse()
    return rows


def prune(link: SqliteConnection, *, keep: int, before_ms: int) -> int:
    """See the port. The range to delete is determined first, then deleted in parts, so two prunes at once do not
    delete more."""
    with link.turn, link as db:
        # Time rises with the numbers, so this walks over what is to go and no further. No index is worth its writes.
        row = db.execute(
            "SELECT seq FROM events WHERE at_ms >= ? ORDER BY seq LIMIT 1", (before_ms,)
        ).fetchone()
        first_kept = row[0] if row is not None else _NO_SEQ
    gone = _delete(link, "seq < ? ORDER BY seq", first_kept)
    with link.turn, link as db:
        first, last = db.execute("SELECT min(seq), max(seq) FROM events").fetchone()
        # Counting walks an index; numbers alone can say that there is nothing to count.
        if first is None or last - first < keep:
            return gone
        (count,) = db.execute("SELECT count(*) FROM events").fetchone()
        if count <= keep:
            return gone
        (cut,) = db.execute(
            "SELECT seq FROM events ORDER BY seq LIMIT 1 OFFSET ?", (count - keep - 1,)
        ).fetchone()
    return gone + _delete(link, "seq <= ? ORDER BY seq", cut)


def _delete(link: SqliteConnection, which: str, bound: int) -> int:
    total = 0
    while True:
        with link.turn, link as db:
            count = db.execute(
                f"DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE {which} LIMIT {PRUNE_ROWS})",
                (bound,),
            ).rowcount
        total += count
        if count < PRUNE_ROWS:
            return total
