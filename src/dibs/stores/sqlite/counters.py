"""What the file says of itself: whose it is, its format, and how far it has come. That is its revision, the
number of its last event, and the time of its last commit.

A commit with events writes its revision into them, and leaves the row of the table `counters` alone: a page less for
each claim. So the counters are those of the last event, or those of the row if it is further. The view `progress` has
both. Before events are deleted, the row is brought up to them.

A commit that only changes records, such as a renewal, leaves the counters as they are: a page less again. The versions
of its records are then above the revision, and the next commit that looks at one of them goes on from there. So a
version never repeats: whoever deletes a record raises the revision above its version. The time in the file is at most
UNTOLD_MS behind the last renewal. It is needed after a reboot only, if the clock came up in the past (`clock.py`).
"""

from __future__ import annotations

from dibs.base.errors import StoreCorrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from dibs.core.events import Event
    from dibs.core.records import Stored

    Told = tuple[int, int]
    """Revision and time, as the file has them."""

READ = "SELECT revision, last_seq, time_ms FROM progress"
WRITE = "UPDATE counters SET revision = ?, last_seq = ?, time_ms = ?"
SETTLE = f"UPDATE counters SET (revision, last_seq, time_ms) = ({READ})"
APPLICATION_ID = 0x64696273  # "dibs": whose file it is
VERSION = 1  # of the format: how many steps schema.py has
BLOCK = 256  # how many events a row of event_blocks is about
EVENT_AGE_MS_MAX = 1_000  # an event that was decided longer ago than this does not tell the commit's time
UNTOLD_MS = 1_000


def read(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Revision, number of the last event, and the time of the last commit."""
    row: tuple[int, int, int] | None = db.execute(READ).fetchone()
    if row is None or [type(each) for each in row] != [int, int, int]:
        raise StoreCorrupt("The store's own counters cannot be read. Restore it from a backup.")
    return row


def told_by(events: Sequence[Event], revision: int, now_ms: int) -> Told | None:
    """The counters that events of a commit carry. None: they are imported, and have times of another store."""
    at_ms = events[-1].at_ms
    return (revision, at_ms) if 0 <= now_ms - at_ms < EVENT_AGE_MS_MAX else None


def left_by(expect: Mapping[str, int], puts: Mapping[str, Stored | None], before: Told, now_ms: int) -> Told | None:
    """The counters as they were, for a commit without events that may leave them. None: it has to write them."""
    if not puts or not 0 <= now_ms - before[1] < UNTOLD_MS:
        return None
    for key, record in puts.items():
        if record is None or not expect[key]:
            return None
    return before
