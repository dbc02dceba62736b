"""The git store: one owner per job for clones that share only a git remote. No server.

store.py         the port's methods; deleting what ended long ago
tips.py          what this process last saw of each ref, and the highest fencing numbers
plan.py          from a commit of the port to commits and refs of git
entries.py       a record as a commit
refs.py          refs compared and swapped: in a clone with one transaction, at a remote with one atomic push from
                 a private repository
times.py         whose clock counts, and records moved into the reader's time
probe.py         tests what a remote allows, for `dibs doctor`
repository.py    running git in a repository; files beside it
location.py      what a URL means, and what the store can do
errors.py        what a failed git command means, in words
branch_push.py   a branch in the same push as a claim's renewal
"""

from __future__ import annotations

from dibs.stores.git.location import LOCAL, REMOTE, GitLocation, location_of
from dibs.stores.git.store import GitStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Opening

__all__ = ["LOCAL", "REMOTE", "GitLocation", "GitStore", "location_of", "open_url"]


def open_url(url: str, opening: Opening) -> GitStore:
    """The store that a `git:` or `git+…` URL names, seen from the current folder."""
    return GitStore(location_of(url))
