"""Reading many: records in order, what is due, and the event log, with its pruning; and waiting for changes. A claim
does not import it."""

from __future__ import annotations

from binascii import crc32

from dibs.base.cheap import Callable, Iterable, sqlite3
from dibs.base.errors import StoreBroken
from dibs.core.events import Event
from dibs.stores.codec import decode, end_of, events_of, is_event_readable, is_readable, page_of
from dibs.stores.port import ABSENT, EVENT_PREFIX, Due, Job, Page, beyond
from dibs.stores.sqlite.connection import SqliteConnection
from dibs.stores.sqlite.rows import BLOCK, SETTLE, RecordCache, read_counters, texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.waiters import StoreWaiters

Row = tuple[str, int, str]

_REACHED = "SELECT due_ms, key, version, body FROM records WHERE due_ms <= ? ORDER BY due_ms LIMIT ?"
_FIRST = "SELECT min(due_ms) FROM records WHERE due_ms IS NOT NULL"
_CORRECT = "UPDATE records SET due_ms = ? WHERE key = ? AND version = ?"
HEARD_POLL_MS_MAX = 500  # how often a waiter looks that is usually woken, in case the wake is lost
CORRECTED_MIN = 128  # at least this many entries are looked at, whatever the limit; commands wait meanwhile
_ANY = "records WHERE"
_LIVE = "records INDEXED BY records_live WHERE live AND"


def scan(link: SqliteConnection, prefix: str, after: str, limit: int, *, live: bool) -> Page:
    def rows(beyond: str, count: int) -> list[Row]:
        with link.turn, link as db:
            return page(db, prefix, beyond, count, live=live)

    return page_of(rows, after, limit, link.damaged)


def page(db: sqlite3.Connection, prefix: str, after: str, limit: int, *, live: bool) -> list[Row]:
    """Key, version and text of the next records."""
    # One lower bound: SQLite begins at one, and would walk from a second to the first again for every page.
    begin = ("key > ?", after) if after >= prefix else ("key >= ?", prefix)
    sql, values = f"SELECT key, version, body FROM {_LIVE if live else _ANY} {begin[0]}", [begin[1]]
    end = end_of(prefix)
    if end is not None:
        sql += " AND key < ?"
        values.append(end)
    return texts(db, f"{sql} ORDER BY key LIMIT ?", (*values, max(0, limit)))


def due(link: SqliteConnection, cache: RecordCache, limit: int, now_ms: Callable[[], int]) -> Due:
    """See the port. The file may have a record as due too early (`rows.py`): such entries are corrected here, so a file
    that has some must be one that can be written."""
    with link.turn, link as db:
        now, count = now_ms(), max(CORRECTED_MIN, limit)
        reached: list[tuple[int, str]] = []  # when records are due, and their keys
        early: list[tuple[int | None, str, int]] = []  # the time that entries should have, and the record's version
        for due_ms, key, version, body in db.execute(_REACHED, (now, count)):
            remembered = cache.records.get(key, ABSENT)
            try:
                record = remembered.record if remembered.version == version else decode(key, body)
            except StoreBroken:
                record = None  # whoever reads it gets the error
            due_ms = record.due_ms() if record is not None else due_ms
            if due_ms is None or due_ms > now:
                early.append((due_ms, key, version))
            else:
                reached.append((due_ms, key))
        reached.sort()
        if early:
            db.execute("BEGIN IMMEDIATE")
            read_counters(db)  # fails if a newer version has brought the file to another format
            db.executemany(_CORRECT, early)  # another process may have written a record since: its version tells
            db.execute("COMMIT")
        # Those that were early are out of the way now, and what is due may be behind them.
        has_more = bool(early) and len(early) + len(reached) == count
        if reached:
            next_ms: int | None = reached[0][0]
        elif has_more:
            next_ms = now
        else:
            (next_ms,) = db.execute(_FIRST).fetchone()
    return Due(keys=[key for _, key in reached[: max(0, limit)]], next_ms=next_ms, has_more=has_more)


# Events.

PRUNE_ROWS = 10_000  # rows per transaction, so that the write lock is held only for a short time

# Finding the events of one job without an index of all events.
#
# An index of events by job would cost a page at every event, because the next event is of another job. So events are
# in blocks, by their numbers. When a block is full, a mark for each of its jobs is written into one row of
# `event_blocks`. A search for a job reads the marks, and then the blocks that have its mark. The last block is not
# full and has no row; a block without a row is read.

_MARK_BYTES = 4
_LAST = (1 << 63) - 1  # the highest number that SQLite has

_JOBS = "SELECT ns, job FROM events WHERE seq > ? AND seq <= ?"
_NOTE = "INSERT OR REPLACE INTO event_blocks VALUES (?, ?)"
_OTHERS = "SELECT block FROM event_blocks WHERE block >= ? AND NOT instr(jobs, ?) ORDER BY block"
_FORGET_BLOCKS = (
    f"DELETE FROM event_blocks WHERE (block + 1) * {BLOCK} < (SELECT ifnull(min(seq), 1 << 62) FROM events)"
)


def marks_of(jobs: Iterable[tuple[str, str]]) -> bytes:
    """A mark for each job. Two jobs may share a mark: then a block is read that has no event of the job."""
    return b"".join([crc32(f"{ns}/{job}".encode()).to_bytes(_MARK_BYTES, "big") for ns, job in set(jobs)])


def note_full(db: sqlite3.Cursor, before: int, last_seq: int) -> None:
    """Write the rows of the blocks that became full when the last event's number rose from `before` to `last_seq`."""
    for block in range(before // BLOCK, last_seq // BLOCK):
        jobs = db.execute(_JOBS, (block * BLOCK, (block + 1) * BLOCK)).fetchall()
        if jobs:
            db.execute(_NOTE, (block, marks_of(jobs)))


def ranges_of(db: sqlite3.Connection, job: Job, after: int) -> list[tuple[int, int]]:
    """The numbers above `after` that events of the job may have, in order: all but those of blocks without its mark.
    After a copy a range may span numbers that no event has; that costs nothing."""
    found, low = [], after
    for (block,) in db.execute(_OTHERS, (after // BLOCK, marks_of([job]))):
        if low < block * BLOCK:
            found.append((low, block * BLOCK))
        low = max(low, (block + 1) * BLOCK)
    return [*found, (low, _LAST)]


def events(link: SqliteConnection, after: int, limit: int, job: Job | None, *, newest: bool) -> list[Event]:
    def rows(count: int) -> list[tuple[int, str]]:
        with link.turn, link as db:
            if job is not None:
                db.execute("BEGIN")  # several statements, one moment
            found = selected(db, after, count, job, newest=newest)
            if job is not None:
                db.execute("COMMIT")
        return found

    return events_of(rows, max(0, limit), link.damaged, newest=newest)


def selected(
    db: sqlite3.Connection, after: int, limit: int, job: Job | None = None, *, newest: bool = False
) -> list[tuple[int, str]]:
    """Number and text of events, in order. For one job only blocks that may have an event of it are read."""
    ranges = [(after, _LAST)]
    if job is not None:
        ranges = ranges_of(db, job, after)
    of_job, order = " AND ns = ? AND job = ?" if job is not None else "", " DESC" if newest else ""
    rows: list[tuple[int, str]] = []
    for low, high in reversed(ranges) if newest else ranges:
        if len(rows) >= limit:
            break
        rows += texts(
            db,
            f"SELECT seq, body FROM events WHERE seq > ? AND seq <= ?{of_job} ORDER BY seq{order} LIMIT ?",
            (low, high, *(job or ()), limit - len(rows)),
        )
    return rows[::-1] if newest else rows


def watch(waiters: StoreWaiters, newest_seq: Callable[[], int], after: int, timeout_ms: int) -> bool:
    from dibs.stores.waiters import POLL_MS_MAX, pauses

    return waiters.until(None, lambda _: newest_seq() > after, pauses(POLL_MS_MAX), timeout_ms)


def until_gone(link: SqliteConnection, store_id: str, key: str, timeout_ms: int) -> bool:
    from dibs.stores.sqlite.checkpoint import Wakeup  # a list imports neither
    from dibs.stores.waiters import POLL_MS_MAX, pauses, wait_until

    def is_gone() -> bool:
        with link.turn, link as db:
            return db.execute("SELECT 1 FROM records WHERE key = ?", (key,)).fetchone() is None

    with Wakeup(store_id, key) as wakeup:  # before the first look: a commit after it is not missed
        most_ms = HEARD_POLL_MS_MAX if wakeup.can_hear else POLL_MS_MAX
        return wait_until(is_gone, wakeup.wait, pauses(most_ms), timeout_ms)


def prune(link: SqliteConnection, *, keep: int, before_ms: int) -> int:
    """See the port. The range to delete is determined first, then deleted in parts, so two prunes at once do not
    delete more."""
    with link.turn, link as db:
        (last,) = db.execute("SELECT max(seq) FROM events").fetchone()  # first: what comes from here on stays
        if last is None:
            return 0
        # Time rises with the numbers, so this walks over what is to go and no further. No index is worth its writes.
        young = db.execute("SELECT seq FROM events WHERE at_ms >= ? ORDER BY seq LIMIT 1", (before_ms,)).fetchone()

        too_many = beyond(
            keep,
            last,
            lambda bound: db.execute("SELECT min(seq) FROM events WHERE seq > ?", (bound,)).fetchone()[0],
            lambda bound: db.execute("SELECT max(seq) FROM events WHERE seq <= ?", (bound,)).fetchone()[0],
        )
    upto = max(last if young is None else young[0] - 1, too_many)
    total, count = 0, PRUNE_ROWS
    while count == PRUNE_ROWS:
        with link.turn, link as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(SETTLE)  # the last event may be among them, and the counters with it
            count = db.execute(
                "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE seq <= ? ORDER BY seq LIMIT ?)",
                (upto, PRUNE_ROWS),
            ).rowcount
            if count:
                db.execute(_FORGET_BLOCKS)
            db.execute("COMMIT" if count else "ROLLBACK")
        total += count
    return total


def number_from(link: SqliteConnection, seq: int, forget: Callable[[], None]) -> None:
    """See the port. `forget` drops what the store remembers of the counters."""
    with link.turn, link as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(SETTLE)
        db.execute("UPDATE counters SET last_seq = max(last_seq, ?)", (seq,))
        db.execute("COMMIT")
        forget()


def set_aside(link: SqliteConnection, key: str, keep: Callable[[str], None], forget: Callable[[], None]) -> bool:
    """See the port. `forget` drops what the store remembers."""
    with link.turn, link as db:
        db.execute("BEGIN IMMEDIATE")
        if key.startswith(EVENT_PREFIX):
            is_done = _set_event_aside(db, int(key.removeprefix(EVENT_PREFIX)), keep)
            db.execute("COMMIT" if is_done else "ROLLBACK")
            link.damaged.pop(key, None)
            return is_done
        found = next(iter(texts(db, "SELECT version, body FROM records WHERE key = ?", (key,))), None)
        if found is None or is_readable(key, found[1]):
            db.execute("ROLLBACK")
            return False
        keep(found[1])
        db.execute(SETTLE)
        # A version never repeats: whoever deletes a record raises the revision above its version.
        db.execute("UPDATE counters SET revision = max(revision, ?) + 1", (found[0],))
        db.execute("DELETE FROM records WHERE key = ?", (key,))
        db.execute("COMMIT")
        forget()
    link.damaged.pop(key, None)
    return True


def _set_event_aside(db: sqlite3.Connection, seq: int, keep: Callable[[str], None]) -> bool:
    found = next(iter(texts(db, "SELECT seq, body FROM events WHERE seq = ?", (seq,))), None)
    if found is None or is_event_readable(*found):
        return False
    keep(found[1])
    db.execute(SETTLE)  # the counters may be in this event
    db.execute("DELETE FROM events WHERE seq = ?", (seq,))
    return True
