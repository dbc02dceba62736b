"""The git store: one owner per job for clones that share only a git remote. No server.

store.py         the port's methods; the refs of a clone; deleting what ended long ago
tips.py          what this process last saw of each ref, and the highest fencing numbers
plan.py          from a commit of the port to commits and refs of git
entries.py       a record as a commit
refs.py          refs compared and swapped; those of a remote, in one atomic push with leases
times.py         whose clock counts, and records moved into the reader's time
probe.py         tests what a remote allows, for `dibs doctor`
location.py      what a URL means
private.py       the private repository that a remote's records pass through
process.py       running the git program
errors.py        what a failed git command means, in words
branch_push.py   a branch in the same push as a claim's renewal
"""

from __future__ import annotations

from dibs.stores.git.location import location_of
from dibs.stores.git.store import LOCAL, REMOTE, GitStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Opening

__all__ = ["LOCAL", "REMOTE", "GitStore", "open_url"]


def open_url(url: str, opening: Opening) -> GitStore:
    """The store that a `git:` or `git+…` URL names, seen from the current folder."""
    return GitStore(location_of(url, None))
