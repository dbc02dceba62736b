"""Only the newest of a group waits: the promise `queue:newest`.

A waiting claim may name a group that it replaces (`Terms.replaces`). A group is a name within one job. When a claim of
a group takes a place in the job's queue, the older place of the same group leaves it, whoever has it: who may claim the
job may replace, and an access list is what keeps others out. An owner is never replaced.

The newest takes a place of its own at the end of the queue. It does not inherit the older one's: then whoever replaces
often would stay ahead of all who came after its first ask, and places would not be in the order of their numbers.

So a group has one place in a queue at most, and the lock remembers which (`Group.number`): no other ticket is read to
find it. An ask that was replaced may come again, with its ticket or after a lost reply. It must not replace the newer
one, so the lock also remembers the last asks that were replaced, by a digest of what they prove themselves with.
"""

from __future__ import annotations

from dibs.core.commands import Acquire, AcquireAll
from dibs.core.draft import Draft
from dibs.core.holds.proof import session_owner
from dibs.core.holds.quota import over_waiting, payer_of
from dibs.core.limits import GROUPS_KEPT, REPLACED_KEPT, REPLACED_LEAST, REPLACED_MAX, REPLACED_MS
from dibs.core.outcomes import QuotaExceeded, Superseded, TooMany
from dibs.core.records import Group, LockRecord, Ticket
from dibs.core.waiting.queue import advance, join_queue
from dibs.core.waiting.tickets import drop, forget_want, names_of, parts_of

REPLACED = "superseded"  # the reason in the history
_MARK_CHARS = 12


def join_as_newest(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> Ticket | QuotaExceeded | TooMany:
    """Take a place at the end of each queue, in which the older places of the group leave. That may free the job for
    the newcomer itself: a ticket for several jobs holds them back until it has all. A place that it replaces does not
    count against the limit of its principal."""
    older = _older(draft, ask, names)
    own = [len(parts_of(each)) for each in older if ask.payer is not None and payer_of(each.charge) == ask.payer]
    over = over_waiting(draft, ask, names[0], len(names) - sum(own))
    if over is not None:
        forget_want(draft, ask)
        return over
    ticket = join_queue(draft, ask, names)
    for name in names:
        _note_newest(draft, draft.lock(ask.ns, name), ask, ticket)
    _send_away(draft, ask, older)
    return ticket


def replace_older(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> None:
    """The caller was given the jobs without a place in the queue: older places of its group would come after it."""
    _send_away(draft, ask, _older(draft, ask, names))


def _send_away(draft: Draft, ask: Acquire | AcquireAll, older: list[Ticket]) -> None:
    """The event reaches the servers at which their callers wait. These ask once more, and get the reason."""
    by = ask.owner or session_owner(draft, ask.session)
    for ticket in older:
        drop(draft, ticket, REPLACED, by)
        for part in parts_of(ticket):
            _note_replaced(draft, draft.lock(ticket.ns, part.name), ticket)
        advance(draft, ticket.ns, names_of(ticket))


def superseded(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> Superseded | None:
    """Return who replaced an ask that comes again without a place: a newer one of its group came after it."""
    mark = _digest(ask.principal, ask.request_key or ask.ticket_id or ask.fresh_lease_id)
    for name in names:
        lock = draft.lock(ask.ns, name)
        group = _find(lock, ask.replaces)
        if group is None:
            continue
        # With a ticket, its number decides. It is the one in the queue of the first job.
        is_older = ask.ticket_id is not None and name == names[0] and ask.ticket < group.number
        if is_older or _was_replaced(group, mark):
            newest = draft.ticket(lock.ns, name, group.number)
            by = newest.owner if newest is not None else ""
            return Superseded(now_ms=draft.now_ms, name=name, group=ask.replaces or "", by=by)
    return None


def _older(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> list[Ticket]:
    """The places of the group in these queues: one in each at most, and one ticket may be in several."""
    found: dict[str, Ticket] = {}
    for name in names:
        lock = draft.lock(ask.ns, name)
        group = _find(lock, ask.replaces)
        if group is not None and group.number in lock.line:
            ticket = draft.ticket(ask.ns, name, group.number)
            if ticket is not None:
                found[ticket.lease_id] = ticket
    return list(found.values())


def _find(lock: LockRecord, group: str | None) -> Group | None:
    if not lock.groups or group is None:
        return None
    mark = _digest(group)
    return next((each for each in lock.groups if each.mark == mark), None)


def _note_newest(draft: Draft, lock: LockRecord, ask: Acquire | AcquireAll, ticket: Ticket) -> None:
    number = next(part.number for part in parts_of(ticket) if part.name == lock.name)
    known = _find(lock, ask.replaces)
    newest = Group(mark=_digest(ask.replaces or ""), number=number, at_ms=draft.now_ms)
    # All groups are in the job's record, which every heartbeat reads: many of them remember less each.
    most = max(REPLACED_LEAST, REPLACED_MAX // (1 + len(lock.groups)))
    if known is not None:
        kept = most if draft.now_ms - known.at_ms < REPLACED_MS else min(most, REPLACED_KEPT)
        newest = newest.replace(replaced=known.replaced[: kept * _MARK_CHARS])
    # Groups whose place is in the queue are needed; of the others, the last ones.
    line, groups, gone = frozenset(lock.line), [newest], 0
    for each in lock.groups:
        if each.mark == newest.mark:
            continue
        if each.number not in line:
            gone += 1
            if gone > GROUPS_KEPT:
                continue
        if len(each.replaced) > most * _MARK_CHARS:
            each = each.replace(replaced=each.replaced[: most * _MARK_CHARS])
        groups.append(each)
    draft.put(lock.replace(groups=tuple(groups)))


def _note_replaced(draft: Draft, lock: LockRecord, ticket: Ticket) -> None:
    group = _find(lock, ticket.replaces)
    if group is not None:
        mark = _digest(ticket.principal, ticket.request_key or ticket.lease_id)
        most = max(REPLACED_LEAST, REPLACED_MAX // len(lock.groups))
        kept = group.replace(replaced=(mark + group.replaced)[: most * _MARK_CHARS])
        draft.put(lock.replace(groups=tuple([kept if each is group else each for each in lock.groups])))


def _was_replaced(group: Group, mark: str) -> bool:
    marks = group.replaced
    return mark in marks and any(marks.startswith(mark, at) for at in range(0, len(marks), _MARK_CHARS))


def _digest(*words: str) -> str:
    from hashlib import sha256  # it loads OpenSSL, and few claims are of a group

    return sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_CHARS]
