"""Exclusion, which claims cannot be held together: the promises `excl` and `tree`.

A job has one exclusive owner, or any number of shared ones, or up to N owners of N slots. Names that begin with
`path:` or `repo:` form a tree: a path conflicts with the paths above and below it, and a `repo:` claim with every path
and every other `repo:` claim of its namespace. Siblings do not conflict. Claims of one session do not exclude each
other, and neither do those of a session and of its parent: an agent and its subagent are one worker for everybody else.
Two children of one parent exclude each other.
"""

from __future__ import annotations

from dibs.core.expiry import is_at_ceiling, may_go_on, need_sessions, shown
from dibs.core.names import covers, in_tree, overlaps
from dibs.core.outcomes import Blocker
from dibs.core.records import DELAYED, DONE, EXCLUSIVE, FREE, HELD, PARKED, SHARED, lock_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.draft import Draft
    from dibs.core.records import Closure, Holder, LockRecord


# The state of a job, in one word.


def state_of(lock: LockRecord, now_ms: int) -> str:
    """One of STATES. Only live holds may be in `lock`."""
    if lock.holders:
        return HELD
    if lock.parked:
        return PARKED
    if lock.done is not None and now_ms < lock.done.until_ms:
        return DONE
    return DELAYED if now_ms < lock.delay_until_ms else FREE


def closure_of(draft: Draft, ns: str, name: str) -> Closure | None:
    """The closure that keeps a job closed for longest (`closures.py`)."""
    closures = draft.meta().closures
    return longest(closures, ns, name, draft.now_ms) if closures else None


def longest(closures: Iterable[Closure], ns: str, name: str, now_ms: int) -> Closure | None:
    """Of the closures of a job that are not over, the one that ends last."""
    found = [each for each in closures if each.ns == ns and now_ms < each.until_ms and _closes(each.name, name)]
    return max(found, key=lambda each: each.until_ms, default=None)


def _closes(closed: str, name: str) -> bool:
    if in_tree(closed):
        return in_tree(name) and overlaps(closed, name)
    return name == closed or (closed.endswith("/") and name.startswith(closed))


def fits(lock_slots: int, live: tuple[Holder, ...], mode: str, slots: int) -> bool:
    """Return whether one more owner is allowed beside the live owners of the same job."""
    if not live:
        return True
    if mode == SHARED:
        return all(holder.mode == SHARED for holder in live)
    return slots > 1 and lock_slots == slots and len(live) < slots and all(holder.mode == EXCLUSIVE for holder in live)


def blockers(draft: Draft, lock: LockRecord, mode: str, slots: int, session: str | None) -> tuple[Blocker, ...]:
    """The live holds that block a claim on `lock`."""
    if not lock.holders and not in_tree(lock.name):
        return ()
    found: list[Blocker] = []
    live = live_holders(draft, lock)
    if not fits(lock.slots, live, mode, slots):
        live = without_kin(draft, live, session)
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
    if found and session is not None:
        found = [each for each in found if not are_kin(draft, session, each.holder.session)]
    return tuple(found)


def are_kin(draft: Draft, one: str | None, other: str | None) -> bool:
    """Return whether one of two sessions is the parent of the other."""
    if one is None or other is None or one == other:
        return False
    child, parent = draft.session(one), draft.session(other)
    return (child is not None and child.parent == other) or (parent is not None and parent.parent == one)


def without_kin(draft: Draft, live: tuple[Holder, ...], session: str | None) -> tuple[Holder, ...]:
    """The holds that are not those of the session's parent or children."""
    if session is None:
        return live
    return tuple([holder for holder in live if not are_kin(draft, session, holder.session)])


def live_holders(draft: Draft, lock: LockRecord) -> tuple[Holder, ...]:
    """The live holds on `lock`, with their effective deadlines."""
    need_sessions(draft, lock)
    holders = [shown(draft, holder) for holder in lock.holders]
    live = [holder for holder in holders if draft.vouched_ms < holder.expires_ms and may_go_on(draft, holder)]
    return tuple([holder for holder in live if not holder.ends_ms or not is_at_ceiling(draft, holder)])


def own_hold(draft: Draft, lock: LockRecord, session: str | None, mode: str) -> Holder | None:
    """The session's hold on this job in the same mode, if it has one."""
    if session is None or all(holder.session != session for holder in lock.holders):
        return None
    live = live_holders(draft, lock)
    return next((holder for holder in live if (holder.session, holder.mode) == (session, mode)), None)


def covered(draft: Draft, lock: LockRecord, mode: str, session: str | None) -> bool:
    """Return whether a claim of the session above this name covers it, or one of its parent or child at or above it.
    Others that wait for this name wait for that claim in any case, so a claim below it takes nothing from anybody."""
    if session is None:
        return False
    kin = [holder for holder in live_holders(draft, lock) if are_kin(draft, session, holder.session)]
    if any(not (holder.mode == SHARED and mode == EXCLUSIVE) for holder in kin):
        return True
    if not in_tree(lock.name):
        return False
    from dibs.core.tree_claims import overlapping  # most jobs are in no tree

    above = [
        claim.name
        for claim in overlapping(draft, lock.ns, lock.name)
        if covers(claim.name, lock.name) and not (claim.mode == SHARED and mode == EXCLUSIVE)
    ]
    draft.need(*[lock_key(lock.ns, name) for name in above])
    holders = [holder for name in above for holder in live_holders(draft, draft.lock(lock.ns, name))]
    return any(holder.session == session or are_kin(draft, session, holder.session) for holder in holders)


def tree_neighbours(draft: Draft, ns: str, name: str, mode: str) -> Iterable[str]:
    """The names of other live claims that overlap `name` and cannot be shared with it, without repeats."""
    from dibs.core.tree_claims import overlapping

    found = overlapping(draft, ns, name)
    return dict.fromkeys([claim.name for claim in found if not (mode == SHARED and claim.mode == SHARED)])
