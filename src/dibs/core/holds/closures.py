"""Maintenance stops: jobs that nobody is granted until a given time. The promise `closed`.

A closure names a job. A name that ends in "/" stands for every job whose name begins with it, too. In a tree a closure
is what a hold would be: it closes everything that overlaps its name, above it and below. Closures are in `Meta`, which
every decision reads, so they cost no read and are never overlooked. Who has a job keeps it: it may renew, hand over and
release. Newcomers are refused and may wait in line. `waiting/queue.py` serves nobody meanwhile, and goes on afterwards.

A closure is over at its end, by the clock. A sweep, or the next change, then removes it and writes the event. The line
of its name is served then (`claims/job_settings.py`, which has the commands).
"""

from __future__ import annotations

from dibs.base.cheap import Iterable
from dibs.core import events
from dibs.core.commands import Close
from dibs.core.draft import Draft
from dibs.core.durations import format_duration
from dibs.core.lease_outcomes import ClosureSet, NotClosed
from dibs.core.limits import CLOSURE_MS_MAX, CLOSURES_MAX
from dibs.core.names import in_tree
from dibs.core.outcomes import Outcome
from dibs.core.overlap import overlaps
from dibs.core.records import Closure


def closure_of(draft: Draft, ns: str, name: str) -> Closure | None:
    """The closure that keeps a job closed for longest."""
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


def put_closure(draft: Draft, command: Close) -> Outcome:
    """Close a job, or all below a name. Closing it again replaces end and reason."""
    until_ms = command.until_ms or draft.now_ms + command.length_ms
    kept = [each for each in draft.meta().closures if (each.ns, each.name) != (command.ns, command.name)]
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


def over(draft: Draft) -> list[Closure]:
    """The closures whose time is over."""
    return [each for each in draft.meta().closures if each.until_ms <= draft.now_ms]


def remove(draft: Draft, gone: list[Closure]) -> None:
    meta = draft.meta()
    draft.put(meta.replace(closures=tuple([each for each in meta.closures if each not in gone])))
