"""The git store: one owner per job for clones that share only a git remote. No server.

Read store.py first, then plan.py and refs.py.
"""

from __future__ import annotations

from dibs.stores.git.location import LOCAL, REMOTE, GitLocation, location_of
from dibs.stores.git.store import GitStore
from dibs.stores.port import Opening

__all__ = ["LOCAL", "REMOTE", "GitLocation", "GitStore", "location_of", "open_url"]


def open_url(url: str, opening: Opening) -> GitStore:
    """The store that a `git:` or `git+…` URL names, seen from the current folder."""
    return GitStore(location_of(url))
