"""What one commit writes, as rows.

The column `due_ms` says when the sweeper looks at a record: when the record is due, or earlier. So a renewal, which
puts off the time, does not write the index of that column: it would be two pages more, and most leases are renewed many
times. When the time in the column comes, `queries.due` corrects it.
"""

from __future__ import annotations

from dibs.stores.port import ABSENT, Conflict
from dibs.stores.sqlite.fileformat import BLOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence
    from typing import Any

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.port import Versioned
else:
    from dibs.stores.sqlite.driver import sqlite3

_ADD = "INSERT INTO records (key, version, due_ms, live, body) VALUES (?, ?, ?, ?, ?)"
# None of these writes an index that it need not write.
_CHANGE = "UPDATE records SET version = ?, body = ? WHERE key = ?"
_MOVE = "UPDATE records SET version = ?, body = ?, due_ms = ? WHERE key = ?"
_TURN = "UPDATE records SET version = ?, body = ?, live = ? WHERE key = ?"
_TURN_AND_MOVE = "UPDATE records SET version = ?, body = ?, live = ?, due_ms = ? WHERE key = ?"
_REMOVE = "DELETE FROM records WHERE key = ?"
_LOG = "INSERT INTO events (seq, at_ms, ns, job, kind, body, revision) VALUES (?, ?, ?, ?, ?, ?, ?)"


def write(
    db: sqlite3.Connection,
    revision: int,
    now_ms: int,
    puts: Mapping[str, Stored | None],
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
        # Whether its entry is still to come, and comes in time.
        is_entered = (
            was_due_ms is not None and was_due_ms > now_ms and (due_ms is None or due_ms >= was_due_ms)
        )
        if was.is_live() == live:
            if is_entered:
                rows.setdefault(_CHANGE, []).append((revision, bodies[key], key))
            else:
                rows.setdefault(_MOVE, []).append((revision, bodies[key], due_ms, key))
        elif is_entered:
            rows.setdefault(_TURN, []).append((revision, bodies[key], live, key))
        else:
            rows.setdefault(_TURN_AND_MOVE, []).append((revision, bodies[key], live, due_ms, key))
    try:
        for statement, values in rows.items():
            if db.executemany(statement, values).rowcount != len(values):
                raise Conflict  # the file is not what the cache says
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            raise
        raise Conflict from None  # it is not new


def log(
    db: sqlite3.Connection, before: int, revision: int | None, events: Sequence[Event], lines: list[str]
) -> None:
    """Append events after the number `before`. `revision`: they carry the counters."""
    db.executemany(
        _LOG,
        [
            (before + 1 + index, event.at_ms, event.ns, event.job, event.kind, lines[index], revision)
            for index, event in enumerate(events)
        ],
    )
    if (before + len(events)) // BLOCK != before // BLOCK:
        from dibs.stores.sqlite.blocks import note_full

        note_full(db, before, before + len(events))
