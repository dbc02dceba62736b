"""Commands about a job that claim nothing: its access list, its pool, closing and opening it, freeing it.

The rules are in `holds/access.py`, `holds/capacity.py` and `holds/closures.py`. Here is what all these commands do
around them: what is over is ended first, and the queue is looked at in the same decision. A waiter that can never be
served as it is now leaves the queue, and the others are served as far as possible.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import Close, Free, Open, SetAcl, SetPool
from dibs.core.draft import Draft
from dibs.core.holds import closures
from dibs.core.holds.access import may_set, put_list
from dibs.core.holds.capacity import pool_of, put_pool, units_of
from dibs.core.lease_outcomes import AclSet, Freed, NotFound, Opened, PoolSet
from dibs.core.outcomes import Forbidden, Outcome
from dibs.core.records import Closure
from dibs.core.waiting.queue import advance, drop_unfit, present_lock


def set_acl(draft: Draft, command: SetAcl) -> Outcome:
    """Replace or remove a job's access list, for its owner or an admin. Waiters that it does not allow leave the
    queue."""
    if not command.ahead and not draft.knows(command.ns, command.name):
        return NotFound(now_ms=draft.now_ms, name=command.name)
    lock = present_lock(draft, command.ns, command.name)
    if not may_set(lock, command):
        return Forbidden(now_ms=draft.now_ms, name=lock.name)
    if command.acl != lock.acl:
        put_list(draft, lock, command.acl, command.principal)
        drop_unfit(draft, command.ns, command.name)
    return AclSet(now_ms=draft.now_ms, name=lock.name, acl=command.acl)


def set_pool(draft: Draft, command: SetPool) -> Outcome:
    """Say how many slots a job has. The line is served as far as there is room now, and who waits for more than the
    pool has leaves it."""
    lock, slots = present_lock(draft, command.ns, command.name), command.slots
    was = pool_of(lock)
    if put_pool(draft, lock, slots, command.principal):
        drop_unfit(draft, command.ns, command.name)
    lock = draft.lock(command.ns, command.name)
    taken, waiting = units_of(lock.holders), len(lock.line)
    return PoolSet(now_ms=draft.now_ms, name=lock.name, slots=slots, was=was, taken=taken, waiting=waiting)


def close(draft: Draft, command: Close) -> Outcome:
    end_closures(draft)
    return closures.put_closure(draft, command)


def open_(draft: Draft, command: Open) -> Outcome:
    """End a closure early. `Opened` says whether there was one, and which other still closes the job."""
    end_closures(draft)
    found = [each for each in draft.meta().closures if (each.ns, each.name) == (command.ns, command.name)]
    _go_on(draft, found, command.principal)
    still = closures.closure_of(draft, command.ns, command.name)
    return Opened(now_ms=draft.now_ms, name=command.name, was_closed=bool(found), closure=still)


def end_closures(draft: Draft) -> None:
    """Remove closures whose time is over."""
    _go_on(draft, closures.over(draft), None)


def _go_on(draft: Draft, gone: list[Closure], by: str | None) -> None:
    """Serve the line of the name itself. Those below it may be thousands: their first waiters find out (`queue.py`)."""
    if gone:
        closures.remove(draft, gone)
    for closure in gone:
        draft.emit(events.OPENED, closure.ns, closure.name, by=by, began_ms=closure.at_ms)
        advance(draft, closure.ns, (closure.name,))


def free(draft: Draft, command: Free) -> Outcome:
    """Free a parked or delayed job, and reset its count of failures."""
    lock = present_lock(draft, command.ns, command.name)
    if lock.parked or draft.now_ms < lock.delay_until_ms:
        draft.put(lock.replace(parked=False, failures=0, delay_until_ms=0))
        draft.emit(events.FREED, lock.ns, lock.name, by=command.principal)
        advance(draft, command.ns, (command.name,))  # the queue waits until a delay is over
        return Freed(now_ms=draft.now_ms, name=lock.name, was_parked=True)
    return Freed(now_ms=draft.now_ms, name=lock.name, was_parked=False)
