"""Capacity, how many may own a job at once: slots, units and pools. The promises `pool`, `slot:number` and `units`.

A job has one exclusive owner, or any number of shared ones, or owners of N slots, each of which takes one or more: its
units. Whoever claims a job that is free says what N is, and the next ones must say the same. In a pool an operator says
it (`put_pool`), and everybody's units count, also those of a session's parent and children. A pool of 0 slots is
paused. Each owner of slots has their numbers, the lowest that are free.

Which other claims are in the way is in `exclusion.py`, which asks this file about one job.
"""

from __future__ import annotations

from dibs.base.cheap import Iterable
from dibs.core import events
from dibs.core.draft import Draft
from dibs.core.holds.expiry import live_now, need_sessions, shown
from dibs.core.outcomes import Differs
from dibs.core.records import EXCLUSIVE, SHARED, Holder, LockRecord, Terms, Want


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


def live_holders(draft: Draft, lock: LockRecord) -> tuple[Holder, ...]:
    """The live holds on `lock`, with their effective deadlines."""
    return tuple(owners_of(draft, lock).live) if lock.holders else ()


def own_hold(draft: Draft, lock: LockRecord, session: str | None, mode: str) -> Holder | None:
    if session is None or not lock.holders:
        return None
    return next((holder for holder in owners_of(draft, lock).of.get(session, ()) if holder.mode == mode), None)


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


def other_slots(lock: LockRecord, ask: Terms, now_ms: int) -> Differs | None:
    """All owners of a job without a pool say the same number of slots."""
    if not lock.holders or lock.pooled or lock.slots == (ask.slots or 1):
        return None
    if not ask.mode == EXCLUSIVE == lock.holders[0].mode:
        return None
    asked = str(ask.slots or 1)
    return Differs(now_ms=now_ms, name=lock.name, what="slots", has=str(lock.slots), asked=asked)


def put_pool(draft: Draft, lock: LockRecord, slots: int | None, by: str) -> bool:
    """Say how many slots a job has; None: it is no pool. All owners keep theirs. Without the pool the next owner is
    alone, once all others have left. Returns whether that is new."""
    if slots == pool_of(lock):
        return False
    draft.put(lock.replace(pooled=slots is not None, slots=1 if slots is None else slots))
    said = {None: "no pool", 0: "paused", 1: "1 slot"}.get(slots, f"{slots} slots")
    draft.emit(events.POOL_SET, lock.ns, lock.name, by=by, reason=said)
    return True


def pool_of(lock: LockRecord) -> int | None:
    """The slots of a pool; None: the job is none."""
    return lock.slots if lock.pooled else None
