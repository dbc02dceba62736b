"""Reading and pruning the event log. Imported only when needed: a claim only adds events."""

from __future__ import annotations

from binascii import crc32

from dibs.stores.codec import decode_event
from dibs.stores.sqlite.counters import BLOCK, SETTLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from dibs.core.events import Event
    from dibs.stores.sqlite.connection import SqliteConnection

PRUNE_ROWS = 10_000  # rows per transaction, so that the write lock is held only for a short time

# Finding the events of one job without an index of all events.
#
# An index of events by job would cost a page at every event, because the next event is of another job. So events are
# in blocks, by their numbers. When a block is full, a mark for each of its jobs is written into one row of
# `event_blocks`. A search for a job reads the marks, and then the blocks that have its mark. The last block is not
# full and has no row; a block without a row is read.

_MARK_BYTES = 4

_JOBS = "SELECT ns, job FROM events WHERE seq > ? AND seq <= ?"
_NOTE = "INSERT OR REPLACE INTO event_blocks VALUES (?, ?)"
_OTHERS = "SELECT block FROM event_blocks WHERE block BETWEEN ? AND ? AND NOT instr(jobs, ?)"
_FORGET = (
    f"DELETE FROM event_blocks WHERE (block + 1) * {BLOCK} < (SELECT ifnull(min(seq), 1 << 62) FROM events)"
)


def marks_of(jobs: Iterable[tuple[str, str]]) -> bytes:
    """A mark for each job. Two jobs may share a mark: then a block is read in vain."""
    return b"".join([crc32(f"{ns}/{job}".encode()).to_bytes(_MARK_BYTES, "big") for ns, job in set(jobs)])


def note_full(db: sqlite3.Connection, before: int, last_seq: int) -> None:
    """Write the rows of the blocks that became full when the last event's number rose from `before` to `last_seq`."""
    for block in range(before // BLOCK, last_seq // BLOCK):
        jobs = db.execute(_JOBS, (block * BLOCK, (block + 1) * BLOCK)).fetchall()
        if jobs:
            db.execute(_NOTE, (block, marks_of(jobs)))


def forget_pruned(db: sqlite3.Connection) -> None:
    """Delete the rows of blocks that have no event any more."""
    db.execute(_FORGET)


def blocks_of(db: sqlite3.Connection, job: tuple[str, str], after: int) -> list[int]:
    """The blocks that may have events of the job with a number above `after`, in order."""
    (first,) = db.execute("SELECT min(seq) FROM events WHERE seq > ?", (after,)).fetchone()
    if first is None:
        return []
    (last,) = db.execute("SELECT max(seq) FROM events").fetchone()
    bounds = ((first - 1) // BLOCK, (last - 1) // BLOCK)
    others = {block for (block,) in db.execute(_OTHERS, (*bounds, marks_of([job])))}
    return [block for block in range(bounds[0], bounds[1] + 1) if block not in others]


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
