"""Which store a URL means. A store's module is imported when somebody asks for it, and not before.

    memory://               in this process, gone with it; every call makes a new one
    sqlite:///var/dibs.db   the file /var/dibs.db (three slashes: an absolute path)
    sqlite:dibs.db          the file dibs.db in the current folder
    sqlite:~/dibs.db        in the home folder; sqlite:///~/dibs.db is the same
    git:                    the refs of the clone that the current folder is in
    git:origin              the refs of a remote of that clone
    git+ssh://host/repo     the refs of a remote by its address; also git+https://, git+http://, git+file://

A path is taken as it stands: nothing in it is decoded.
"""

from __future__ import annotations

import os

from dibs.errors import InvalidInput
from dibs.paths import state_folder
from dibs.redact import without_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Capabilities, Store

FORMS = (
    "memory://",
    "sqlite:///absolute/path.db",
    "sqlite:relative/path.db",
    "sqlite:~/path.db",
    "git:",
    "git:origin",
    "git+ssh://host/repo.git",
    "git+https://host/repo.git",
    "git+file:///path/repo.git",
)


def default_url() -> str:
    """The user's own store: a file in the state folder."""
    return "sqlite://" + os.path.join(state_folder(), "dibs.db")


def sqlite_path(url: str) -> str:
    """The file that an `sqlite:` URL names."""
    rest = url.removeprefix("sqlite:")
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith("/"):
            raise _not_one(url)
        rest = "/" + rest.lstrip("/")
        if rest.startswith("/~"):
            rest = rest[1:]
    path = os.path.expanduser(rest)
    if not path or path.endswith("/") or "\0" in path or path == ":memory:" or path.startswith("~"):
        raise _not_one(url)
    return os.path.abspath(path)


def open_store(url: str, *, checkpoint_pages: int | None = None) -> Store:
    """The store that `url` names, opened. A file is made if it is not there; a folder only for the user's own store,
    because a folder that is missing is most often misspelt. `checkpoint_pages` is for SQLite; see there."""
    if url == "memory://":
        from dibs import clock
        from dibs.stores.memory import MemoryStore

        offset_ms = clock.wall_ms() - clock.steady_ms()
        return MemoryStore(lambda: offset_ms + clock.steady_ms())
    if url.startswith("sqlite:"):
        from dibs.stores.sqlite import SqliteStore

        path = sqlite_path(url)
        own = path == sqlite_path(default_url())
        return SqliteStore(path, checkpoint_pages=checkpoint_pages, make_folders=own)
    if url.startswith(("git:", "git+")):
        from dibs.stores.git import open_git

        return open_git(url)
    raise _not_one(url)


def capabilities() -> tuple[Capabilities, ...]:
    """What each store that dibs knows says about itself. Imports all of them: for documentation."""
    from dibs.stores import git
    from dibs.stores.memory import MemoryStore
    from dibs.stores.sqlite import SqliteStore

    return (MemoryStore.capabilities, SqliteStore.capabilities, git.LOCAL, git.REMOTE)


def _not_one(url: str) -> InvalidInput:
    hint = f" Did you mean sqlite://{os.path.abspath(url)}?" if url.startswith(("/", "./", "../")) else ""
    return InvalidInput(f"{without_secrets(url)!r} names no store. These forms do: {', '.join(FORMS)}.{hint}")
