"""Which jobs a block of history is about: what finds the events of one job without an index of all of them.

An index of events by job would cost a page at every event, because the next event is of another job. So events are in
blocks, by their numbers. When a block is full, a mark for each of its jobs is written into one row of `event_blocks`.
Who looks for a job reads the marks, and then the blocks that have its mark. The last block is not full and has no row;
a block without a row is read.
"""

from __future__ import annotations

from dibs.stores.sqlite.fileformat import BLOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

_MARK_BYTES = 4

_JOBS = "SELECT ns, job FROM events WHERE seq > ? AND seq <= ?"
_NOTE = "INSERT OR REPLACE INTO event_blocks VALUES (?, ?)"
_OTHERS = "SELECT block FROM event_blocks WHERE block BETWEEN ? AND ? AND NOT instr(jobs, ?)"
_FORGET = (
    f"DELETE FROM event_blocks WHERE (block + 1) * {BLOCK} < (SELECT ifnull(min(seq), 1 << 62) FROM events)"
)


def marks_of(jobs: Iterable[tuple[str, str]]) -> bytes:
    """A mark for each job. Two jobs may share a mark: then a block is read in vain."""
    from binascii import crc32  # not for who only makes a file

    return b"".join([crc32(f"{ns}/{job}".encode()).to_bytes(_MARK_BYTES, "big") for ns, job in set(jobs)])


class _MarksOf:
    """The marks of a block's jobs, for SQL. Migrations use it, where blocks are many and nobody waits for a commit."""

    def __init__(self) -> None:
        self._jobs: set[tuple[str, str]] = set()

    def step(self, ns: str, job: str) -> None:
        self._jobs.add((ns, job))

    def finalize(self) -> bytes:
        return marks_of(self._jobs)


def register(db: sqlite3.Connection) -> None:
    """Let SQL on this connection use `marks_of`."""
    db.create_aggregate("marks_of", 2, _MarksOf)  # type: ignore[arg-type]  # typeshed knows one argument


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
