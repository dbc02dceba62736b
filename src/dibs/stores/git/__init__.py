"""The git store: one owner per job for clones that share only a git remote. No server.

store.py         the port's methods
capabilities.py  what it can and cannot do
tips.py          what this process last saw of each ref
plan.py          from a commit of the port to commits and refs of git
entries.py       a record as a commit
refs.py          what the store needs from refs: read, compare and swap
local_refs.py    those of a clone, in one transaction
remote_refs.py   those of a remote, in one atomic push with leases
times.py         whose clock counts, and records moved into the reader's time
remoteclock.py   the remote's clock, as far as it can be read
highwater.py     the highest fencing numbers that this clone has seen
fieldtypes.py    checks the field types of a record that came from outside
history.py       events from the refs' logs, and pruning
tidy.py          deletes what ended long ago
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
