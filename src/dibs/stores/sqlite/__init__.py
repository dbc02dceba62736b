"""The default store: one SQLite file, shared by every process of a machine.

Read store.py first. What an ordinary claim does not need is imported when there is need.

    sqlite:///var/dibs.db   the file /var/dibs.db (three slashes: an absolute path)
    sqlite:dibs.db          the file dibs.db in the current folder
    sqlite:~/dibs.db        in the home folder; sqlite:///~/dibs.db is the same
"""

from __future__ import annotations

import os

from dibs.base.files import store_path
from dibs.core.limits import CHECKPOINT_PAGES
from dibs.stores.codec import names_no_store
from dibs.stores.port import Opening
from dibs.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_url", "sqlite_path"]


def sqlite_path(url: str) -> str:
    """Return the file that an `sqlite:` URL names. A path is taken as it stands: nothing in it is decoded."""
    rest = url.removeprefix("sqlite:")
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith("/"):
            raise names_no_store(url)
        rest = "/" + rest.lstrip("/")
        if rest.startswith("/~"):
            rest = rest[1:]
    path = os.path.expanduser(rest)
    if not path or path.endswith("/") or "\0" in path or path == ":memory:" or path.startswith("~"):
        raise names_no_store(url)
    return os.path.abspath(path)


def open_url(url: str, opening: Opening) -> SqliteStore:
    """Open the file that a URL names. It is made if it is not there; its folder only for the user's own store, because
    a folder that is missing is most often misspelt."""
    path = sqlite_path(url)
    pages = CHECKPOINT_PAGES if opening.serves else None
    return SqliteStore(path, checkpoint_pages=pages, make_folders=path == os.path.abspath(store_path()))
