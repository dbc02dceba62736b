"""The default store: one SQLite file, shared by every process of a machine.

    location.py    which file a URL names
    store.py       the port's methods, and the argument why its cache is right
    rows.py        what one commit writes
    connection.py  the connection: opener, threads, forks; the door at which driver errors are translated
    identity.py    whether the files are still those that were opened
    clock.py       the lease clock, one anchor for each boot
    moment.py      the file as it is at one moment, beside those who write
    backup.py      copies: made while others use the file, and put in place when nobody does
    live.py        which records of an older file are held, waited for or open, as SQL
    checkpoint.py  moving the log into the file, in a thread of a server
    wakeup.py      one wake for the one waiter whom a commit concerns
    counters.py    how far the file has come
    history.py     reading and pruning events
    blocks.py      which jobs a block of events is about
    schema.py      numbered migrations, making a file
    errors.py      what an SQLite error means, in words

Most of the last ones are imported when there is need: an ordinary claim has none.
"""

from __future__ import annotations

from dibs.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
