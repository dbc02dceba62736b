"""Who stands in whose way: the promises `excl` and `tree`, as functions of what is held.

A job has one exclusive owner, or any number of shared ones, or up to N owners of N slots. Names that begin with `path:`
or `repo:` stand in a tree: a path conflicts with what lies above and beneath it, a `repo:` claim with every path and
every other `repo:` claim of its namespace, siblings never. Claims of one session never stand in its own way.
"""

from __future__ import annotations

from dibs.core.expiry import need_sessions, shown
from dibs.core.keys import lock_key
from dibs.core.names import covers, in_tree
from dibs.core.outcomes import Blocker
from dibs.core.records import EXCLUSIVE, SHARED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.draft import Draft
    from dibs.core.records import Holder, LockRecord


def fits(lock_slots: int, live: tuple[Holder, ...], mode: str, slots: int) -> bool:
    """Whether one more owner fits beside the live ones of the same job."""
    if not live:
        return True
    if mode == SHARED:
        return all(holder.mode == SHARED for holder in live)
    return (
        slots > 1
        and lock_slots == slots
        and len(live) < slots
        and all(holder.mode == EXCLUSIVE for holder in live)
    )


def blockers(
    draft: Draft, lock: LockRecord, mode: str, slots: int, session: str | None
) -> tuple[Blocker, ...]:
    """The holds that keep a claim on `lock` from being granted now. Holds that are over do not count."""
    if not lock.holders and not in_tree(lock.name):
        return ()
    found: list[Blocker] = []
    live = live_holders(draft, lock)
    if not fits(lock.slots, live, mode, slots):
        found += [Blocker(name=lock.name, holder=holder) for holder in live]
    if in_tree(lock.name):
        names = list(tree_neighbours(draft, lock.ns, lock.name, mode))
        draft.need(*[lock_key(lock.ns, name) for name in names])
        for name in names:
            found += [
                Blocker(name=name, holder=holder)
                for holder in live_holders(draft, draft.lock(lock.ns, name))
                if not (mode == SHARED and holder.mode == SHARED)
                and not (session is not None and session == holder.session)
            ]
    return tuple(found)


def live_holders(draft: Draft, lock: LockRecord) -> tuple[Holder, ...]:
    """The holds on `lock` that are not over, with the deadlines that really hold."""
    need_sessions(draft, lock)
    holders = [shown(draft, holder) for holder in lock.holders]
    return tuple([holder for holder in holders if draft.now_ms < holder.expires_ms])


def own_hold(draft: Draft, lock: LockRecord, session: str | None, mode: str) -> Holder | None:
    """The hold on this very job that the session has already, in the mode it asks for."""
    if session is None or all(holder.session != session for holder in lock.holders):
        return None
    live = live_holders(draft, lock)
    return next((holder for holder in live if (holder.session, holder.mode) == (session, mode)), None)


def covered(draft: Draft, lock: LockRecord, mode: str, session: str | None) -> bool:
    """Whether the session holds all of this place already, by a claim above it: whoever waits for some of it waits for
    that claim in any case, so that a claim within it takes nothing from anybody."""
    if session is None or not in_tree(lock.name):
        return False
    above = [
        claim.name
        for claim in draft.tree(lock.ns).claims
        if claim.name != lock.name
        and covers(claim.name, lock.name)
        and not (claim.mode == SHARED and mode == EXCLUSIVE)
    ]
    draft.need(*[lock_key(lock.ns, name) for name in above])
    holders = [holder for name in above for holder in live_holders(draft, draft.lock(lock.ns, name))]
    return any(holder.session == session for holder in holders)


def tree_neighbours(draft: Draft, ns: str, name: str, mode: str) -> Iterable[str]:
    """Names of other live claims that overlap `name` and cannot be shared with it, each once."""
    found = draft.overlap(ns).of(name)
    return dict.fromkeys([claim.name for claim in found if not (mode == SHARED and claim.mode == SHARED)])
