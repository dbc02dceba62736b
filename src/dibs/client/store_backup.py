"""Backups of an SQLite store: `backup`, `restore`.

One of the few client modules that may import stores and the engine. Everything here raises what the store raises.
"""

from __future__ import annotations

import os
import tempfile

from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError, InvalidInput, Unavailable
from dibs.client.store_archive import new_file, sync_folder
from dibs.core.commands import RaiseFloor, Thaw
from dibs.core.keys import META_KEY
from dibs.core.records import Meta
from dibs.engine.archive.intake import floor_after
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore
from dibs.stores.sqlite.backup import (
    WAIT_MS,
    Counters,
    connect,
    copy,
    counters,
    is_empty,
    keep_aside,
    raise_counters,
    sole_use,
    sync,
    take_over_owner,
)
from dibs.stores.sqlite.errors import translated
from dibs.stores.sqlite.location import sqlite_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.stores.port import Store

    Document = dict[str, Any]

__all__ = ["backup", "restore", "sqlite_path"]


def backup(store: Store, path: str) -> Document:
    """Copy an SQLite store into the new file `path`, while others use it."""
    if not isinstance(store, SqliteStore):
        raise InvalidInput(
            f"dibs backup copies SQLite files, and this is a {store.capabilities.name} store. Use its own tools, or "
            "dibs export."
        )
    with new_file(path) as draft:
        copy(store.path, draft)
        size = os.stat(draft).st_size
    return {"path": path, "bytes": size}


def restore(source: str, path: str) -> Document:
    """Put the backup `source` in the place of the store at `path`. At any time the old file is there or the new one."""
    path = os.path.realpath(path)
    if not os.path.isfile(source):
        raise InvalidInput(f"{source} is not a file. Name one that dibs backup made.")
    if os.path.exists(path) and os.path.samefile(source, path):
        raise InvalidInput(f"{source} is the store itself. Name a backup of it.")
    folder, name = os.path.split(path)
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{name}.restore-", dir=folder)
    except OSError as error:
        raise Unavailable(f"Nothing can be put into {folder}: {error.strerror}.") from None
    os.close(handle)
    try:
        copy(source, draft)
        _refuse_unfit(source, draft)
        with sole_use(path) as old:
            floor = _prepare(draft, old or Counters())
            take_over_owner(draft, path)
            sync(draft)
            kept = keep_aside(path)
            os.rename(draft, path)
            sync_folder(folder)
    except BaseException:
        for suffix in ("", "-wal", "-shm", "-journal"):
            if os.path.exists(draft + suffix):
                os.unlink(draft + suffix)
        raise
    return {"path": path, "token_floor": floor, "kept": kept}


def _refuse_unfit(source: str, draft: str) -> None:
    """Open it once: a file of another program is refused, and one of an older version brought up to date. So is an
    empty file, which SQLite takes for a database: it would wipe out the store."""
    if is_empty(draft):
        raise InvalidInput(f"{source} is empty. Name a file that dibs backup made.")
    try:
        SqliteStore(draft).close()
    except DibsError as error:
        raise InvalidInput(error.details.replace(draft, source)) from None


def _prepare(draft: str, old: Counters) -> int:
    """Let the draft go on above all that was handed out. Returns the floor under its new fencing tokens."""
    with translated(draft, WAIT_MS):
        db = connect(draft)
        try:
            own = counters(db)
        finally:
            db.close()
    floor = floor_after(max(own.token, old.token), max(wall_ms(), own.time_ms, old.time_ms))
    raise_counters(draft, old)
    store = SqliteStore(draft)
    try:
        _resume(store, floor, own.time_ms)
    finally:
        store.close()
    return floor


def _resume(store: SqliteStore, floor: int, since_ms: int) -> None:
    """What happened since the backup is not known to it: that time is an outage. A frozen store stays so."""
    coordinator = Coordinator(store)
    meta = store.read((META_KEY,)).records[META_KEY].record
    mark = meta.frozen if isinstance(meta, Meta) else None
    if mark is not None and mark.incomplete:
        raise InvalidInput("The backup was made while an import was not complete. Take another one.")
    if mark is None:
        coordinator.one(Thaw(id=None, since_ms=since_ms, floor=floor))
    else:
        coordinator.one(RaiseFloor(floor=floor))
