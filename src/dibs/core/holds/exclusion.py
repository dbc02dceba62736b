"""Exclusion, which claims cannot be held together: the promises `excl` and `tree`.

An owner is in the way if the job has no room for another (`capacity.py`), and so is every claim on a name that overlaps
it (`core/overlap.py`), unless both are shared. Claims of one session do not exclude each other, and neither do those of
a session and of its parent (`related.py`).
"""

from __future__ import annotations

from dibs.base.cheap import Iterable
from dibs.core.draft import Draft
from dibs.core.holds.capacity import live_holders, owners_of
from dibs.core.holds.expiry import live_now, need_sessions
from dibs.core.holds.related import are_related, without_related
from dibs.core.limits import OWNERS_NAMED_MAX
from dibs.core.names import in_tree
from dibs.core.outcomes import Blocker
from dibs.core.overlap import covers
from dibs.core.records import EXCLUSIVE, SHARED, LockRecord, lock_key


def is_blocked(draft: Draft, lock: LockRecord, mode: str, slots: int, session: str | None, units: int = 1) -> bool:
    return bool(blockers(draft, lock, mode, slots, session, units, most=1))


_ALL = 2**31
_LOOK = 64  # names of a tree that are loaded at once, if the first claims in the way are enough


def blockers(
    draft: Draft, lock: LockRecord, mode: str, slots: int, session: str | None, units: int = 1, *, most: int = _ALL
) -> tuple[Blocker, ...]:
    """The claims in the way of one. With `most`, the search ends once that many are found."""
    if not lock.holders and not in_tree(lock.name):
        return ()
    if lock.pooled:
        session = None  # the slots are counted, whoever has them
    found: list[Blocker] = []
    owners = owners_of(draft, lock)
    if not owners.fits(lock, mode, slots, units):
        others = without_related(draft, owners, session)
        if not others.fits(lock, mode, slots, units):
            # Beside an owner that has the job alone, a child of it may share the job: that one is in no sharer's way.
            found += [
                Blocker(name=lock.name, holder=holder)
                for holder in others.live
                if not (mode == SHARED and holder.mode == SHARED)
            ]
            if session is not None:
                found = [each for each in found if not are_related(draft, session, each.holder.session)]
    if in_tree(lock.name) and len(found) < most:
        names = list(tree_neighbours(draft, lock.ns, lock.name, mode))
        look = len(names) if most == _ALL else _LOOK
        for at in range(0, len(names), look or 1):
            found += _overlapping(draft, lock.ns, names[at : at + look], mode, session)
            if len(found) >= most:
                break
    return tuple(found)


def _overlapping(draft: Draft, ns: str, names: list[str], mode: str, session: str | None) -> list[Blocker]:
    """The claims on other names that exclude one. There may be thousands, with one owner each mostly."""
    draft.need(*[lock_key(ns, name) for name in names])
    locks = [draft.lock(ns, name) for name in names]
    need_sessions(draft, *locks)
    return [
        Blocker(name=lock.name, holder=holder)
        for lock in locks
        for holder in live_now(draft, lock)
        if not (mode == SHARED and holder.mode == SHARED)
        and not (session is not None and (session == holder.session or are_related(draft, session, holder.session)))
    ]


def named(in_way: tuple[Blocker, ...]) -> tuple[Blocker, ...]:
    """Those of the claims in the way that an answer names: the ones that end first, in their order."""
    if len(in_way) <= OWNERS_NAMED_MAX:
        return in_way
    last = sorted([each.holder.expires_ms for each in in_way])[OWNERS_NAMED_MAX - 1]
    return tuple([each for each in in_way if each.holder.expires_ms <= last][:OWNERS_NAMED_MAX])


def covered(draft: Draft, lock: LockRecord, mode: str, session: str | None) -> bool:
    """Return whether a claim of the session above this name covers it, or one of its parent or child at or above it.
    Others that wait for this name wait for that claim in any case, so a claim below it takes nothing from anybody."""
    if session is None or lock.pooled:
        return False
    related = [holder for holder in live_holders(draft, lock) if are_related(draft, session, holder.session)]
    if any(not (holder.mode == SHARED and mode == EXCLUSIVE) for holder in related):
        return True
    if not in_tree(lock.name):
        return False
    from dibs.core.holds.path_claims import overlapping  # most jobs are in no tree

    above = [
        claim.name
        for claim in overlapping(draft, lock.ns, lock.name)
        if covers(claim.name, lock.name) and not (claim.mode == SHARED and mode == EXCLUSIVE)
    ]
    draft.need(*[lock_key(lock.ns, name) for name in above])
    holders = [holder for name in above for holder in live_holders(draft, draft.lock(lock.ns, name))]
    return any(holder.session == session or are_related(draft, session, holder.session) for holder in holders)


def tree_neighbours(draft: Draft, ns: str, name: str, mode: str) -> Iterable[str]:
    """The names of other live claims that overlap `name` and cannot be shared with it, without repeats."""
    from dibs.core.holds.path_claims import overlapping

    found = overlapping(draft, ns, name)
    return dict.fromkeys([claim.name for claim in found if not (mode == SHARED and claim.mode == SHARED)])
