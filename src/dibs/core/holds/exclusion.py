"""Exclusion, which claims cannot be held together: the promises `excl` and `tree`.

A job has one exclusive owner, or any number of shared ones, or owners of N slots, each of which takes one or more: its
units. In a pool an operator says what N is, and everybody's units count. Names that begin with `path:` or
`repo:` form a tree: a path conflicts with the paths above and below it, and a `repo:` claim with every path and every
other `repo:` claim of its namespace. Siblings do not conflict. Claims of one session do not exclude each other, and
neither do those of a session and of its parent: an agent and its subagent are one worker for everybody else. Two
children of one parent exclude each other.
"""

from __future__ import annotations

from dibs.base.cheap import Iterable
from dibs.core.draft import Draft
from dibs.core.holds.expiry import live_now, need_sessions, shown
from dibs.core.limits import OWNERS_NAMED_MAX
from dibs.core.names import covers, in_tree, overlaps
from dibs.core.outcomes import Blocker, Differs
from dibs.core.records import (
    DELAYED,
    DONE,
    EXCLUSIVE,
    FREE,
    HELD,
    PARKED,
    SHARED,
    Closure,
    Holder,
    LockRecord,
    Terms,
    Want,
    lock_key,
)

# The state of a job, in one word.


def state_of(lock: LockRecord, now_ms: int) -> str:
    """One of STATES. Only live holds may be in `lock`."""
    lock = lock.by_kind()
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


class Owners:
    """The live owners of a job, counted once in a decision, and new ones as they come: a pool may have thousands."""

    __slots__ = ("_first", "_numbers", "bare", "holders", "live", "of", "shared", "units")

    def __init__(self, holders: tuple[Holder, ...], live: Iterable[Holder]) -> None:
        self.holders = holders
        self.live: list[Holder] = []
        self.of: dict[str | None, list[Holder]] = {}  # by session
        self.units = self.bare = self.shared = 0  # slots taken; owners without one; shared ones
        self._numbers = {number for holder in holders for number in holder.slot_numbers}
        self._first = 0  # no number below it is free
        for holder in live:
            self._count(holder)

    def _count(self, holder: Holder) -> None:
        self.live.append(holder)
        self.of.setdefault(holder.session, []).append(holder)
        self.units += len(holder.slot_numbers) or 1  # one without a number is of an older version
        self.bare += not holder.slot_numbers
        self.shared += holder.mode == SHARED

    def add(self, holders: tuple[Holder, ...], newest: Holder) -> None:
        self.holders = holders
        self._numbers.update(newest.slot_numbers)
        self._count(newest)

    def fits(self, lock: LockRecord, mode: str, slots: int, units: int) -> bool:
        """Return whether one more is allowed beside these. An owner from before the pool has the job alone, or shares
        it without slots, until it leaves."""
        if lock.pooled:
            return self.units + units <= lock.slots and not self.bare
        if not self.live:
            return True
        if mode == SHARED:
            return self.shared == len(self.live)
        return 1 < slots == lock.slots and self.units + units <= slots and not self.shared

    def free_numbers(self, units: int) -> tuple[int, ...]:
        """The lowest numbers that no owner has. They are below the number of slots whenever the claim fits."""
        while self._first in self._numbers:
            self._first += 1
        found: list[int] = []
        number = self._first
        while len(found) < units:
            if number not in self._numbers:
                found.append(number)
            number += 1
        return tuple(found)


def owners_of(draft: Draft, lock: LockRecord) -> Owners:
    """The owners of a job in this decision. Found by the tuple, which a record keeps until its owners change."""
    known: Owners | None = draft.owners.get(id(lock.holders))
    if known is None:
        need_sessions(draft, lock)
        known = draft.owners[id(lock.holders)] = Owners(lock.holders, live_now(draft, lock))
    return known


def note_owner(draft: Draft, lock: LockRecord, before: tuple[Holder, ...], newest: Holder) -> None:
    known: Owners | None = draft.owners.pop(id(before), None)
    if known is not None:
        known.add(lock.holders, shown(draft, newest))
        draft.owners[id(lock.holders)] = known


def units_of(holders: tuple[Holder, ...]) -> int:
    """Return how many slots these take. One without a number is of an older version."""
    return sum([len(holder.slot_numbers) or 1 for holder in holders])


def slots_of(lock: LockRecord, asked: int) -> int:
    """Return of how many slots a claim is that names `asked` of them; 0: it names none."""
    return lock.slots if lock.pooled else asked or 1


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
            found += [Blocker(name=lock.name, holder=holder) for holder in others.live]
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


def are_related(draft: Draft, one: str | None, other: str | None) -> bool:
    """Return whether one of two sessions is the parent of the other."""
    if one is None or other is None or one == other:
        return False
    child, parent = draft.session(one), draft.session(other)
    return (child is not None and child.parent == other) or (parent is not None and parent.parent == one)


def without_related(draft: Draft, owners: Owners, session: str | None) -> Owners:
    """The owners that are not the session's parent or children."""
    if session is None:
        return owners
    return Owners((), [each for each in owners.live if not are_related(draft, session, each.session)])


def live_holders(draft: Draft, lock: LockRecord) -> tuple[Holder, ...]:
    """The live holds on `lock`, with their effective deadlines."""
    return tuple(owners_of(draft, lock).live) if lock.holders else ()


def own_hold(draft: Draft, lock: LockRecord, session: str | None, mode: str) -> Holder | None:
    if session is None or not lock.holders:
        return None
    return next((holder for holder in owners_of(draft, lock).of.get(session, ()) if holder.mode == mode), None)


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
    from dibs.core.holds.tree_claims import overlapping  # most jobs are in no tree

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
    from dibs.core.holds.tree_claims import overlapping

    found = overlapping(draft, ns, name)
    return dict.fromkeys([claim.name for claim in found if not (mode == SHARED and claim.mode == SHARED)])
