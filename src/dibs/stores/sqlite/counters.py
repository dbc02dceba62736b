"""How far the file has come: its revision, the number of its last event, and the time of its last commit.

A commit with events writes its revision into them, and leaves the row of the table `counters` alone: a page less for
each claim. So the counters are those of the last event, or those of the row if it is further. The view `latest` has
both. Before events are deleted, the row is brought up to them.
"""

from __future__ import annotations

from dibs.errors import StoreCorrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

READ = "SELECT revision, last_seq, time_ms FROM latest"
WRITE = "UPDATE counters SET revision = ?, last_seq = ?, time_ms = ?"
SETTLE = f"UPDATE counters SET (revision, last_seq, time_ms) = ({READ})"
EVENT_AGE_MS_MAX = 1_000  # an event that was decided longer ago than this does not tell the commit's time


def read(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Revision, number of the last event, and the time of the last commit."""
    row: tuple[int, int, int] | None = db.execute(READ).fetchone()
    if row is None or not all(isinstance(each, int) for each in row):
        raise StoreCorrupt("The store's own counters cannot be read. Restore it from a backup.")
    return row
