"""Maintenance stops: jobs that nobody is granted until a given time. The promise `closed`.

A closure names a job. A name that ends in "/" stands for every job whose name begins with it, too. In a tree a closure
is what a hold would be: it closes everything that overlaps its name, above it and below. Closures are in `Meta`, which
every decision reads, so they cost no read and are never overlooked. Who has a job keeps it: it may renew, hand over and
release. Newcomers are refused and may wait in the queue. `queue.py` serves nobody meanwhile, and goes on afterwards.

A closure is over at its end, by the clock. A sweep, or the next change, then removes it and writes the event.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import Close, Open
from dibs.core.draft import Draft
from dibs.core.durations import format_duration
from dibs.core.holds.exclusion import closure_of
from dibs.core.lease_outcomes import ClosureSet, NotClosed, Opened
from dibs.core.limits import CLOSURE_MS_MAX, CLOSURES_MAX
from dibs.core.outcomes import Outcome
from dibs.core.records import Closure
from dibs.core.waiting.queue import advance


def close(draft: Draft, command: Close) -> Outcome:
    """Close a job, or all below a name. Closing it again replaces end and reason."""
    until_ms = command.until_ms or draft.now_ms + command.length_ms
    kept = [each for each in end_closures(draft) if (each.ns, each.name) != (command.ns, command.name)]
    why = None
    if until_ms <= draft.now_ms:
        why = "That time is over already, by the store's clock."
    elif until_ms - draft.now_ms > CLOSURE_MS_MAX:
        why = f"A job can be closed for {format_duration(CLOSURE_MS_MAX)} at most. Close it again before that is over."
    elif len(kept) >= CLOSURES_MAX:
        why = f"{CLOSURES_MAX} closures are in effect, which is the most. Open one, or close a name above several."
    if why is not None:
        draft.discard()
        return NotClosed(now_ms=draft.now_ms, name=command.name, why=why)
    closure = Closure(
        ns=command.ns,
        name=command.name,
        at_ms=draft.now_ms,
        until_ms=until_ms,
        by=command.principal,
        reason=command.reason,
    )
    draft.put(draft.meta().replace(closures=(*kept, closure)))
    draft.emit(events.CLOSED, closure.ns, closure.name, by=closure.by, reason=closure.reason, until_ms=until_ms)
    return ClosureSet(now_ms=draft.now_ms, name=command.name, closure=closure)


def open_(draft: Draft, command: Open) -> Outcome:
    """End a closure early. `Opened` says whether there was one, and which other still closes the job."""
    closures = end_closures(draft)
    found = [each for each in closures if (each.ns, each.name) == (command.ns, command.name)]
    if found:
        draft.put(draft.meta().replace(closures=tuple([each for each in closures if each not in found])))
        _go_on(draft, found, command.principal)
    still = closure_of(draft, command.ns, command.name)
    return Opened(now_ms=draft.now_ms, name=command.name, was_closed=bool(found), closure=still)


def end_closures(draft: Draft) -> tuple[Closure, ...]:
    """Remove closures whose time is over. Returns the others."""
    meta = draft.meta()
    over = [each for each in meta.closures if each.until_ms <= draft.now_ms]
    if over:
        meta = meta.replace(closures=tuple([each for each in meta.closures if each not in over]))
        draft.put(meta)
        _go_on(draft, over, None)
    return meta.closures


def _go_on(draft: Draft, over: list[Closure], by: str | None) -> None:
    """Serve the queue of the name itself. Those below it may be thousands: their first waiters find out
    (`queue.py`)."""
    for closure in over:
        draft.emit(events.OPENED, closure.ns, closure.name, by=by, began_ms=closure.at_ms)
        advance(draft, closure.ns, (closure.name,))
