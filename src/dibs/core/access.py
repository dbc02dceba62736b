"""Who may claim a job: access lists. The promise `access`.

A list says who may claim its job; anybody may claim a job without a list. In a tree a list protects everything that
overlaps its name: the names below it, and the names above it, because a claim above covers it, too. So a claim must be
allowed by every list that it overlaps. A newcomer is checked when it claims; a waiter is checked when it is handed the
job, with the entries in its ticket.
"""

from __future__ import annotations

from dibs.core.events import ACCESS_SET, Event
from dibs.core.keys import lock_key
from dibs.core.names import in_tree, overlaps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import AcquireTerms
    from dibs.core.draft import Draft
    from dibs.core.records import LockRecord, Ticket


def allowed(draft: Draft, lock: LockRecord, ask: AcquireTerms | Ticket) -> bool:
    """Whether all lists that concern this job allow the caller. An admin is always allowed."""
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


def put_list(draft: Draft, lock: LockRecord, entries: tuple[str, ...], by: str) -> None:
    """Set a job's access list, or remove it if there are no entries."""
    if entries != lock.acl:
        draft.tell(
            Event(
                at_ms=draft.now_ms,
                kind=ACCESS_SET,
                ns=lock.ns,
                job=lock.name,
                by=by,
                reason=f"a list of {len(entries)}" if entries else "no list",
            )
        )
    lock = lock.replace(acl=entries)
    draft.put(lock)
    note_list(draft, lock)


def note_list(draft: Draft, lock: LockRecord) -> None:
    """Note in the tree whether a name has a list. A list that an older version set is noted at the next claim."""
    if not in_tree(lock.name):
        return
    tree = draft.tree(lock.ns)
    if bool(lock.acl) == (lock.name in tree.listed):
        return
    listed = tuple([name for name in tree.listed if name != lock.name])
    draft.put(tree.replace(listed=(*listed, lock.name) if lock.acl else listed))
