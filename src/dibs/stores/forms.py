"""The forms of a store's URL, and the error for an invalid one."""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput

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
    "postgresql://user@host/database",
    "etcd://host:2379,host:2379/prefix",
    "etcds://user:password@host:2379/prefix",
)


class NamesNoStore(InvalidInput):
    """A URL that has none of the forms."""


def names_no_store(url: str) -> NamesNoStore:
    """The error for a URL that no store understands."""
    from dibs.base.redact import without_secrets  # only for the error

    hint = f" Did you mean sqlite://{os.path.abspath(url)}?" if url.startswith(("/", "./", "../")) else ""
    return NamesNoStore(f"{without_secrets(url)!r} names no store. These forms do: {', '.join(FORMS)}.{hint}")
