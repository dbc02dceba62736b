"""Who may claim a job: access lists. The promise `access`.

A list says who may claim its job; a job without one is anybody's. In a tree a list is for everything that overlaps its
name, in both directions, exactly as a claim there would be: what lies beneath a listed name is part of what the list
protects, and whoever claims above it would get it as well. So a claim must be allowed by every list that it overlaps.
The question is asked of a newcomer and, with what its ticket carries, of a waiter at the moment it is handed the job.
"""

from __future__ import annotations

from dibs.core.keys import lock_key
from dibs.core.names import in_tree, overlaps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import AcquireTerms
    from dibs.core.draft import Draft
    from dibs.core.records import LockRecord, Ticket


def allowed(draft: Draft, lock: LockRecord, ask: AcquireTerms | Ticket) -> bool:
    """Whether every list that concerns this job names the caller, who may be an admin."""
    if ask.admin:
        return True
    if lock.acl and not set(lock.acl).intersection(ask.badges):
        return False
    if not in_tree(lock.name):
        return True
    names = [name for name in draft.tree(lock.ns).listed if name != lock.name and overlaps(name, lock.name)]
    draft.need(*[lock_key(lock.ns, name) for name in names])
    lists = [draft.lock(lock.ns, name).acl for name in names]
    return all(set(entries).intersection(ask.badges) for entries in lists if entries)


def put_list(draft: Draft, lock: LockRecord, entries: tuple[str, ...]) -> None:
    """Give a job an access list, or with no entries take it away."""
    lock = lock.replace(acl=entries)
    draft.put(lock)
    note_list(draft, lock)


def note_list(draft: Draft, lock: LockRecord) -> None:
    """Write in the tree whether a name has a list. Also for one that an older version set, when it is next claimed."""
    if not in_tree(lock.name):
        return
    tree = draft.tree(lock.ns)
    if bool(lock.acl) == (lock.name in tree.listed):
        return
    listed = tuple([name for name in tree.listed if name != lock.name])
    draft.put(tree.replace(listed=(*listed, lock.name) if lock.acl else listed))
