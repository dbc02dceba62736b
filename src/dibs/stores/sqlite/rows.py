"""The rows of the file: records, kept decoded; what one commit compares and writes; and how far the file has come.

Why the cache is right. Records read or written are kept decoded, together with the value that `PRAGMA data_version` had
when the cache was begun. SQLite promises that this value differs if any other connection, of this process or another,
has committed since. So:

1. Whatever is in the cache was in the file at some moment at or after the cache was begun (the value is asked for
   first, in `is_true`, and records are read afterwards), or was committed by this connection (which the value does not
   show, and which is put into the cache at once).
2. A read that finds the value unchanged may answer from the cache: nobody else has committed, so what was true then is
   true now. A read that mixes cached and fresh records asks again after it fetched the fresh ones: unchanged means all
   of them are of one moment, changed means that all are fetched again in one statement.
3. A commit asks after BEGIN IMMEDIATE. From there to COMMIT nobody else can write, so an unchanged value proves that
   every cached version is the version in the file, and nothing has to be compared there. A changed value empties the
   cache and every version is compared in the file.
4. `recall` answers from the cache without asking for the value, and fetches what is missing without asking (1. still
   holds: it is fetched after the cache was begun). Its records may be old. A commit by them is compared as in 3.
5. `recall` may also presume that a record which is not in the cache is absent: every record was absent once. Most
   claims are for new jobs, and save a read by it: 44,000 of 600,000 instructions of a claim that is committed alone. A
   commit that writes such a record inserts it, and fails if it is there; all others are fetched and compared. After a
   wrong guess none is made for a while.
6. A block that fails in any way, an interrupt between COMMIT and the line after it included, empties the cache.
"""

from __future__ import annotations

from itertools import islice

from dibs.base.cheap import Any, Callable, Mapping, Sequence, sqlite3
from dibs.base.errors import StoreCorrupt
from dibs.stores.codec import FORMAT, decode, text_of
from dibs.stores.port import ABSENT, Conflict, Puts, Versioned

Written = tuple[int, int]  # revision and time, as the file has them

# How much is kept: the number of records, about 1.2 KB each for a lease, and the text of long ones beyond the first KiB
# of each. Whatever came first goes first, a few at a time: to drop everything at once would take as long as a hundred
# commits, and everything would have to be read again.
CACHE_ENTRIES_MAX = 100_000
CACHE_TEXT_MAX = 64 * 1024 * 1024
DROPPED_AT_ONCE = 1_000
_SHORT = 1024
_KEYS_A_SELECT = 512
_GUESS_PAUSE = 64  # recalls that read what they do not know, after a wrong guess


def texts(db: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    """The rows of a SELECT with the column `body`. A body that is not UTF-8 comes as text that no record has."""
    try:
        return db.execute(sql, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    found = db.execute(sql.replace(", body FROM", ", CAST(body AS BLOB) FROM"), values).fetchall()
    return [(*row, text_of(body)) for *row, body in found]


class RecordCache:
    def __init__(self) -> None:
        self.records: dict[str, Versioned] = {}
        self.begun_at: int | None = None  # data_version; None: the cache proves nothing
        self._text = 0  # characters of long records that were put in; those that were replaced count, too
        self._presumed: list[str] = []  # absent, by the last guess; no commit has confirmed it yet
        self._guess_pause = 0

    def forget(self) -> None:
        if self._presumed:  # a conflict, most likely
            self._was_wrong()
        self.records.clear()
        self.begun_at = None
        self._text = 0

    def is_true(self, db: sqlite3.Connection | sqlite3.Cursor) -> bool:
        """Return whether the cache held, up to this moment. If not it is empty now, and begun anew."""
        (data_version,) = db.execute("PRAGMA data_version").fetchone()
        if data_version == self.begun_at:
            return True
        self.records.clear()
        self.begun_at = data_version
        self._text = 0
        return False

    def _make_room(self, count: int) -> bool:
        """Make room for `count` more records. Returns whether others had to go."""
        records = self.records
        if self._text > CACHE_TEXT_MAX:
            records.clear()
            self._text = 0
            return True
        over = len(records) + count - CACHE_ENTRIES_MAX
        if over <= 0:
            return False
        for key in list(islice(records, over + DROPPED_AT_ONCE)):
            del records[key]
        return True

    def fetch(self, db: sqlite3.Connection, keys: Sequence[str]) -> bool:
        """Read keys from the file into the cache, _KEYS_A_SELECT as of one moment. Tells whether others had to go."""
        records = self.records
        has_dropped = self._make_room(len(keys))
        for start in range(0, len(keys), _KEYS_A_SELECT):
            some = keys[start : start + _KEYS_A_SELECT]
            records.update(dict.fromkeys(some, ABSENT))
            # Few statements are prepared, not one for every number of keys: a list is filled up with its last key.
            size = 1 << (len(some) - 1).bit_length()
            marks = ",".join("?" * size)
            found = texts(
                db,
                f"SELECT key, version, body FROM records WHERE key IN ({marks})",
                (*some, *[some[-1]] * (size - len(some))),
            )
            for key, version, body in found:
                records[key] = Versioned(version=version, record=decode(key, body))
                self._text += max(0, len(body) - _SHORT)
        return has_dropped

    def load(self, db: sqlite3.Connection, wanted: list[str]) -> None:
        """Bring `wanted` into the cache, all as of one moment."""
        self.is_true(db)
        missing = [key for key in wanted if key not in self.records]
        if len(missing) > _KEYS_A_SELECT:
            self._load_many(db, wanted)
        elif missing:
            has_dropped = self.fetch(db, missing)
            if has_dropped or (len(missing) < len(wanted) and not self.is_true(db)):
                self._load_many(db, wanted)
        if self._presumed and any(self.records[key].version for key in wanted if key in self._presumed):
            self._was_wrong()

    def supplement(self, db: sqlite3.Connection, wanted: list[str]) -> bool:
        """Bring `wanted` into the cache, without a look whether what is there still holds. False: nothing of it was
        there, and all of them are of this moment."""
        missing = [key for key in wanted if key not in self.records]
        if self.begun_at is None or len(self.records) + len(missing) > CACHE_ENTRIES_MAX:
            self.load(db, wanted)
            return False
        self.fetch(db, missing)
        return True

    def guess(self, wanted: list[str]) -> dict[str, Versioned] | None:
        """Return what is known of `wanted`, the rest as absent. None: better ask, as after a commit of others."""
        found: dict[str, Versioned] = {}
        unknown: list[str] = []
        for key in wanted:
            known = self.records.get(key)
            if known is None:
                unknown.append(key)
                known = ABSENT
            found[key] = known
        if not unknown:
            return found
        if self._guess_pause > 0:
            self._guess_pause -= 1
            return None
        if len(unknown) == len(wanted) or self.begun_at is None:
            return None
        self._presumed = unknown
        return found

    def _was_wrong(self) -> None:
        self._presumed = []
        self._guess_pause = _GUESS_PAUSE

    def _load_many(self, db: sqlite3.Connection, wanted: list[str]) -> None:
        db.execute("BEGIN")
        self.is_true(db)
        self.fetch(db, wanted)
        db.execute("COMMIT")

    def compare(self, db: sqlite3.Connection, expect: Mapping[str, int], puts: Puts) -> None:
        """Raise Conflict unless all are at the version that is expected. A record that is expected to be absent, and is
        written, is compared when it is inserted."""
        records = self.records
        unseen = [key for key in expect if key not in records and (expect[key] or puts.get(key) is None)]
        if unseen and self.fetch(db, unseen):  # most commits have seen all, and a call costs 2 % of one
            self.fetch(db, list(expect))  # others had to go, perhaps some of these
        for key, version in expect.items():
            found = records.get(key)
            if found is not None and found.version != version:
                raise Conflict

    def remember(self, revision: int, puts: Puts, bodies: Mapping[str, str]) -> None:
        self._presumed = []
        self._make_room(len(puts))
        for body in bodies.values():
            self._text += max(0, len(body) - _SHORT)
        for key, record in puts.items():
            self.records[key] = ABSENT if record is None else Versioned(version=revision, record=record)


# What one commit writes, as rows.
#
# The column `due_ms` says when the sweeper looks at a record: when the record is due, or earlier. So a renewal, which
# puts off the time, does not write the index of that column: it would be two pages more, and most leases are renewed
# many times. When the time in the column comes, `queries.due` corrects it.

_ADD = "INSERT INTO records (key, version, due_ms, live, body) VALUES (?, ?, ?, ?, ?)"
# By whether `live` and `due_ms` change: none of these writes an index that it need not write.
_CHANGE = {
    (False, False): "UPDATE records SET version = ?, body = ? WHERE key = ?",
    (False, True): "UPDATE records SET version = ?, body = ?, due_ms = ? WHERE key = ?",
    (True, False): "UPDATE records SET version = ?, body = ?, live = ? WHERE key = ?",
    (True, True): "UPDATE records SET version = ?, body = ?, live = ?, due_ms = ? WHERE key = ?",
}
_REMOVE = "DELETE FROM records WHERE key = ?"


def write(
    db: sqlite3.Cursor,
    revision: int,
    now_ms: int,
    puts: Puts,
    bodies: Mapping[str, str],
    found: Mapping[str, Versioned],
) -> None:
    """Write records. Every key was compared: `found` has what the file has. A key that is not in it is new."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for key, record in puts.items():
        was = found.get(key, ABSENT).record
        if record is None:
            if was is not None:
                rows.setdefault(_REMOVE, []).append((key,))
            continue
        live, due_ms = int(record.is_live()), record.due_ms()  # sqlite3 takes long to find out what a bool is
        if was is None:
            rows.setdefault(_ADD, []).append((key, revision, due_ms, live, bodies[key]))
            continue
        was_due_ms = was.due_ms()
        # Unless its entry is still to come, and comes in time.
        moves = was_due_ms is None or was_due_ms <= now_ms or (due_ms is not None and due_ms < was_due_ms)
        turns = was.is_live() != live
        body, values = bodies[key], rows.setdefault(_CHANGE[turns, moves], [])
        if turns:
            values.append((revision, body, live, due_ms, key) if moves else (revision, body, live, key))
        else:
            values.append((revision, body, due_ms, key) if moves else (revision, body, key))
    try:
        for statement, values in rows.items():
            if db.executemany(statement, values).rowcount != len(values):
                raise Conflict  # the file is not what the cache says
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            raise
        raise Conflict from None  # it is not new


# The counters: how far the file has come. They are its revision, the number of its last event, and the time of its last
# commit.
#
# A commit with events writes its revision into them, and leaves the row of the table `counters` alone: a page less for
# each claim. So the counters are those of the last event, or those of the row if it is further. The view PROGRESS has
# both. Before events are deleted, the row is brought up to them.
#
# The view's name has the number of the format. Every commit reads it. So a process of another version, which opened the
# file before its format was raised, writes nothing more.
#
# A commit that only changes records, such as a renewal, leaves the counters as they are: a page less again. The
# versions of its records are then above the revision, and the next commit that looks at one of them goes on from there.
# So a version never repeats: whoever deletes a record raises the revision above its version. The time in the file is at
# most UNWRITTEN_MS behind the last renewal. It is needed after a reboot only, if the clock came up in the past (below).

PROGRESS = f"progress_{FORMAT}"
READ_COUNTERS = f"SELECT revision, last_seq, time_ms FROM {PROGRESS}"
WRITE_COUNTERS = "UPDATE counters SET revision = ?, last_seq = ?, time_ms = ?"
# Brings the row up to the last event.
SETTLE = f"UPDATE counters SET (revision, last_seq, time_ms) = ({READ_COUNTERS})"
APPLICATION_ID = 0x64696273  # "dibs": whose file it is
BLOCK = 256  # how many events a row of event_blocks is about
EVENT_AGE_MS_MAX = 1_000  # an event that was decided longer ago than this has not the commit's time
UNWRITTEN_MS = 1_000


def read_counters(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Revision, number of the last event, and the time of the last commit."""
    row: tuple[int, int, int] | None = db.execute(READ_COUNTERS).fetchone()
    if row is None or not (type(row[0]) is type(row[1]) is type(row[2]) is int):
        raise StoreCorrupt("The store's own counters cannot be read. Restore it from a backup.")
    return row


def kept_by(expect: Mapping[str, int], puts: Puts, before: Written, now_ms: int) -> Written | None:
    """The counters as they were, for a commit without events that may leave them. None: it has to write them."""
    if not puts or not 0 <= now_ms - before[1] < UNWRITTEN_MS:
        return None
    for key, record in puts.items():
        if record is None or not expect[key]:
            return None
    return before


# The lease clock of one file: steady time, tied to wall time by an anchor in the file, one for each steady clock.
#
#     now = anchor_wall + (steady - anchor_steady)
#
# A steady clock is named by the boot it counts from (`base/clock.py`). Every process of the machine reads the same
# anchor and the same steady clock, so they agree to the millisecond. A wall clock that is stepped moves nothing, and
# time spent suspended counts. Steady time means nothing across two boots, nor on the machine a file was copied from. So
# for a clock that the file does not know, an anchor is made, not before the last time that the file knows of. The
# anchors of other clocks stay as they are. That last time may be UNWRITTEN_MS behind the last renewal, so a wall clock
# that came up in the past begins that much later. A wall clock within that very second is taken as it is: time may then
# be less than a second behind the last renewal. So a wall clock that came up in the past only makes leases last longer.


class LeaseClock:
    """Tells the store's time once it has been anchored."""

    def __init__(self, steady_ms: Callable[[], int], wall_ms: Callable[[], int], boot_id: Callable[[], str]) -> None:
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms
        self.name = boot_id  # names the steady clock; its anchor is stored under this name
        self._offset_ms = 0
        self._last_ms = 0

    def follow(self, anchor: tuple[int | None, int | None], last_ms: int) -> bool:
        """Take this clock's anchor, wall and steady time, if there is one; `last_ms`: the latest time in the file."""
        wall_ms, steady_ms = anchor
        self._last_ms = max(self._last_ms, last_ms)
        if wall_ms is None or steady_ms is None:
            return False
        self._offset_ms = wall_ms - steady_ms
        return True

    def new_anchor(self) -> tuple[int, int]:
        """Wall time and steady time of an anchor for this clock. Takes effect through `follow`."""
        wall_ms = self._wall_ms()
        if wall_ms < self._last_ms:
            wall_ms = self._last_ms + UNWRITTEN_MS
        return wall_ms, self._steady_ms()

    def now_ms(self) -> int:
        """The store's time. Never less than it was."""
        now_ms = self._offset_ms + self._steady_ms()
        if now_ms < self._last_ms:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms
