"""Exclusion, which claims cannot be held together: the promises `excl` and `tree`.

A job has one exclusive owner, or any number of shared ones, or owners of N slots, each of which takes one or more: its
units. In a pool an operator says what N is, and everybody's units count. Names that begin with `path:` or
`repo:` form a tree: a path conflicts with the paths above and below it, and a `repo:` claim with every path and every
other `repo:` claim of its namespace. Siblings do not conflict. Claims of one session do not exclude each other, and
neither do those of a session and of its parent: an agent and its subagent are one worker for everybody else. Two
children of one parent exclude each other.
"""

from __future__ import annotations

from dibs.core.expiry import is_at_ceiling, may_go_on, need_sessions, shown
from dibs.core.names import covers, in_tree, overlaps
from dibs.core.outcomes import Blocker, Differs
from dibs.core.records import DELAYED, DONE, EXCLUSIVE, FREE, HELD, PARKED, SHARED, lock_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.draft import Draft
    from dibs.core.records import Closure, Holder, LockRecord, Terms, Want


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


def fits(lock: LockRecord, live: tuple[Holder, ...], mode: str, slots: int, units: int = 1) -> bool:
    """Return whether one more owner is allowed beside the live owners of the same job. An owner from before the pool
    has the job alone, or shares it without slots, until it leaves."""
    if lock.pooled:
        return units_of(live) + units <= lock.slots and all(holder.slot_numbers for holder in live)
    if not live:
        return True
    if mode == SHARED:
        return all(holder.mode == SHARED for holder in live)
    if slots <= 1 or lock.slots != slots or units_of(live) + units > slots:
        return False
    return all(holder.mode == EXCLUSIVE for holder in live)


def units_of(holders: tuple[Holder, ...]) -> int:
    """Return how many slots these take. One without a number is of an older version."""
    return sum([len(holder.slot_numbers) or 1 for holder in holders])


def slots_of(lock: LockRecord, asked: int) -> int:
    """Return of how many slots a claim is that names `asked` of them; 0: it names none."""
    return lock.slots if lock.pooled else asked or 1


def free_numbers(lock: LockRecord, units: int) -> tuple[int, ...]:
    """The lowest numbers that no owner has. They are below the number of slots whenever the claim fits."""
    taken = {number for holder in lock.holders for number in holder.slot_numbers}
    found: list[int] = []
    number = 0
    while len(found) < units:
        if number not in taken:
            found.append(number)
        number += 1
    return tuple(found)


def is_paused(lock: LockRecord) -> bool:
    return lock.pooled and not lock.slots


def misfit(lock: LockRecord, ask: Terms | Want, now_ms: int) -> Differs | None:
    """Return why the claim cannot be granted however long it waits, as the slots are now. A pause is no reason."""
    slots, name = slots_of(lock, ask.slots), lock.name
    if lock.pooled and ask.mode == SHARED:
        return Differs(now_ms=now_ms, name=name, what="mode", has=EXCLUSIVE, asked=SHARED, slots=slots)
    if lock.pooled and slots and ask.slots not in (0, slots):
        return Differs(now_ms=now_ms, name=name, what="slots", has=str(slots), asked=str(ask.slots), slots=slots)
    if ask.units > slots and not is_paused(lock):
        return Differs(now_ms=now_ms, name=name, what="units", has=str(slots), asked=str(ask.units), slots=slots)
    return None


def blockers(
    draft: Draft, lock: LockRecord, mode: str, slots: int, session: str | None, units: int = 1
) -> tuple[Blocker, ...]:
    """The live holds that block a claim on `lock`."""
    if not lock.holders and not in_tree(lock.name):
        return ()
    if lock.pooled:
        session = None  # the slots are counted, whoever has them
    found: list[Blocker] = []
    live = live_holders(draft, lock)
    if not fits(lock, live, mode, slots, units):
        live = without_kin(draft, live, session)
        if not fits(lock, live, mode, slots, units):
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
    if session is None or lock.pooled:
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
