"""A series: numbers that nobody else gets, one after the other. The promise `number`.

A series is a job that counts. Its record has the last number, and of the newest ones whose they are. Who may claim the
job may take a number of it (access lists), and a closed job gives none. Nothing else of a job concerns a series: it may
be held, have a pool, be done or parked meanwhile. A number is no hold: it outlives its owner's session, counts in no
quota, and ends only when it is given back. So the record is never forgotten, and moves with the store.

An ask is named by its request key. A repeat of it after a lost reply, as long as the series remembers whose the number
is, gets the same number: none is skipped, and none is given twice. Numbers at and below the last one that are not on
record count as taken, since nobody knows whether they are.

A give-back is named by its request key, too. A number that was given back may be another's a moment later, also of the
same principal: a late copy would take it from that one. So a give-back leaves the mark of an ask that is over
(`withdraw.py`), whether it freed anything or not, and its copies find that.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.claims.withdraw import refuse_copies
from dibs.core.commands import ReturnNumber, TakeNumber
from dibs.core.draft import Draft
from dibs.core.holds.access import allowed
from dibs.core.holds.closures import closure_of
from dibs.core.holds.endings import was_withdrawn
from dibs.core.lease_outcomes import Numbered, NumberReturned, NumberTaken
from dibs.core.limits import NUMBERS_KEPT
from dibs.core.outcomes import Closed, Forbidden, Outcome
from dibs.core.records import LockRecord, Number
from dibs.core.waiting.queue import present_lock


def take_number(draft: Draft, command: TakeNumber) -> Outcome:
    lock = present_lock(draft, command.ns, command.name)
    if not allowed(draft, lock, command):
        return Forbidden(now_ms=draft.now_ms, name=lock.name)
    mine = _given(lock, command)
    if mine is not None:
        return Numbered(now_ms=draft.now_ms, name=lock.name, number=mine.number, owner=mine.owner, again=True)
    closure = closure_of(draft, command.ns, command.name)
    if closure is not None:
        return Closed(now_ms=draft.now_ms, name=lock.name, closure=closure)
    free = [each.number for each in lock.numbers if not each.owner]
    wanted = command.number
    if wanted and wanted <= lock.last_number and wanted not in free:
        return NumberTaken(
            now_ms=draft.now_ms, name=lock.name, number=wanted, following=_next(lock, 0), taken=_entry(lock, wanted)
        )
    number = wanted or _next(lock, command.at_least)
    entry = Number(
        number=number,
        at_ms=draft.now_ms,
        after=lock.last_number,
        owner=command.owner,
        principal=command.principal,
        request_key=command.request_key,
    )
    _put(draft, lock, max(lock.last_number, number), entry)
    draft.emit(
        events.NUMBERED, lock.ns, lock.name, owner=command.owner, principal=command.principal, reason=str(number)
    )
    return Numbered(now_ms=draft.now_ms, name=lock.name, number=number, owner=command.owner)


def return_number(draft: Draft, command: ReturnNumber) -> Outcome:
    """Free a number. The last one is given to the next who asks; so is an earlier one, before others."""
    lock = present_lock(draft, command.ns, command.name)
    ask = "" if command.request_key is None else f"give-back {command.number} {command.request_key}"
    if ask and was_withdrawn(draft, lock, command.principal, ask):
        return _returned(draft, lock, command.number, was_taken=True)
    entry = _entry(lock, command.number)
    if entry is not None and entry.principal != command.principal and not command.admin:
        return Forbidden(now_ms=draft.now_ms, name=lock.name)
    was_taken = entry is not None or (command.admin and 0 < command.number <= lock.last_number)
    if entry is None and command.number in [each.number for each in lock.numbers]:
        was_taken = False  # it was given back before
    if was_taken:
        free = Number(number=command.number, at_ms=draft.now_ms)
        last = lock.last_number
        if command.number == last and entry is not None and entry.after < last:
            _put(draft, lock, _last(lock, entry), None, gone=command.number)
        else:
            _put(draft, lock, last, free)
        draft.emit(events.NUMBER_RETURNED, lock.ns, lock.name, by=command.principal, reason=str(command.number))
        lock = draft.lock(command.ns, command.name)
    if ask:
        refuse_copies(draft, lock, command.principal, ask)
    return _returned(draft, lock, command.number, was_taken=was_taken)


def _returned(draft: Draft, lock: LockRecord, number: int, *, was_taken: bool) -> NumberReturned:
    last = lock.last_number
    return NumberReturned(now_ms=draft.now_ms, name=lock.name, number=number, was_taken=was_taken, last_number=last)


def _given(lock: LockRecord, command: TakeNumber) -> Number | None:
    """The number that this ask got before."""
    for each in lock.numbers:
        if each.owner and (each.principal, each.request_key) == (command.principal, command.request_key):
            return each if command.number in (0, each.number) else None
    return None


def _entry(lock: LockRecord, number: int) -> Number | None:
    """The entry of who has a number, if that is known."""
    for each in lock.numbers:
        if each.number == number:
            return each if each.owner else None
    return None


def _next(lock: LockRecord, at_least: int) -> int:
    """The lowest free number from `at_least` on: one that was given back, else the one after the last."""
    free = [each.number for each in lock.numbers if not each.owner and each.number >= at_least]
    return min([*free, max(lock.last_number + 1, at_least)])


def _last(lock: LockRecord, gone: Number) -> int:
    """The last number without the one that was given back: the highest that others have, or had before it."""
    return max([gone.after, *[each.number for each in lock.numbers if each.owner and each.number < gone.number]])


def _put(draft: Draft, lock: LockRecord, last: int, entry: Number | None, gone: int = 0) -> None:
    """Write the series with this entry, the newest, and as many of the others as it remembers."""
    number = gone if entry is None else entry.number
    others = [each for each in lock.numbers if each.number != number and (each.owner or each.number <= last)]
    found = others if entry is None else [entry, *others]
    taken, free = [each for each in found if each.owner], [each for each in found if not each.owner]
    kept = {each.number for each in (*taken[:NUMBERS_KEPT], *free[:NUMBERS_KEPT])}
    draft.put(lock.replace(last_number=last, numbers=tuple([each for each in found if each.number in kept])))
