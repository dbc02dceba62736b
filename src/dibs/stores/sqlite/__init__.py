"""The default store: one SQLite file, shared by every process of a machine.

    store.py     the port's methods, and the argument why its cache is right
    link.py      the connection: opening, threads, forks; the door at which driver errors are translated
    clock.py     the lease clock, anchored once per boot
    history.py   reading and pruning events
    schema.py    numbered migrations, making a file
    trouble.py   what an SQLite error means, in words

The last three are imported when there is need: an ordinary claim has none.
"""

from __future__ import annotations

from dibs.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
