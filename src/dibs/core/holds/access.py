"""Access lists, who may claim a job: the promise `access`.

A list says who may claim its job; anybody may claim a job without a list. In a tree a list protects everything that
overlaps its name: the names below it, and the names above it, because a claim above covers it, too. So a claim must be
allowed by every list that it overlaps. A newcomer is checked when it claims; a waiter is checked when it is handed the
job, with the entries in its ticket.

A claim may bring a list, which its job has once it is granted (`put_list`); if the job has another one, it is refused.
The owner or an admin may replace a list (`claims/job_settings.py`).
"""

from __future__ import annotations

from dibs.core.commands import Acquire, AcquireTerms, SetAcl, TakeNumber
from dibs.core.draft import Draft
from dibs.core.events import ACCESS_SET
from dibs.core.names import in_tree
from dibs.core.outcomes import AclDiffers
from dibs.core.overlap import overlaps
from dibs.core.records import LockRecord, Ticket, lock_key


def allowed(draft: Draft, lock: LockRecord, ask: AcquireTerms | Ticket | TakeNumber) -> bool:
    """Return whether all lists that concern this job allow the caller. An admin is always allowed."""
    if ask.admin:
        return True
    if lock.acl and not set(lock.acl).intersection(ask.badges):
        return False
    if not in_tree(lock.name):
        return True
    names = [name for name in draft.tree(lock.ns).listed if overlaps(name, lock.name)]
    draft.need(*[lock_key(lock.ns, name) for name in names])
    lists = [draft.lock(lock.ns, name).acl for name in names]
    return all(set(entries).intersection(ask.badges) for entries in lists if entries)


def other_list(draft: Draft, command: Acquire, lock: LockRecord) -> AclDiffers | None:
    if lock.acl and command.acl is not None and set(command.acl) != set(lock.acl):
        return AclDiffers(now_ms=draft.now_ms, name=lock.name)
    return None


def may_set(lock: LockRecord, command: SetAcl) -> bool:
    return command.admin or any(holder.principal == command.principal for holder in lock.holders)


def put_list(draft: Draft, lock: LockRecord, entries: tuple[str, ...], by: str) -> None:
    if entries != lock.acl:
        said = f"a list of {len(entries)}" if entries else "no list"
        draft.emit(ACCESS_SET, lock.ns, lock.name, by=by, reason=said)
    lock = lock.replace(acl=entries)
    draft.put(lock)
    note_list(draft, lock)


def note_list(draft: Draft, lock: LockRecord) -> None:
    """Note in the tree whether a name has a list."""
    if not in_tree(lock.name):
        return
    tree = draft.tree(lock.ns)
    if bool(lock.acl) == (lock.name in tree.listed):
        return
    listed = tuple([name for name in tree.listed if name != lock.name])
    draft.put(tree.replace(listed=(*listed, lock.name) if lock.acl else listed))
