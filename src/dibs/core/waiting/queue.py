"""Waiting in the queue: the promises `queue:fifo`, `queue:no-dead-grant` and `queue:one-wake`.

A place in a job's queue is a ticket. The lock keeps the order (numbers only, so that a thousand waiters cost a few
bytes each), each ticket is a record of its own. `advance` is the only function that gives a job to a waiter. Every
rule that frees something calls it in the same decision, so a job is never free while a live waiter wants it, and no
newcomer can take it in between.

All names of a tree share one queue, in which a place waits for the claims and for the earlier places that overlap it.
So when a name becomes free, only the places that overlap it are looked at, and of those only the first ones are loaded.
A ticket for several jobs is in all their queues at once and holds nothing. A job in whose queue it is first is reserved
for it until the others are free, too. Its places were made in one commit, so two such tickets have the same order in
all queues and cannot wait for each other.

Nobody is served while the job is closed (`closures.py`). The first in the queue is marked then: once the job is open,
its server finds the mark when it keeps the place, and asks for it, which lets the queue advance.

Once LEAVE_AT_ONCE_MAX places have left their queues in one decision, the rest is for a sweep: a job whose thousand
waiters died must not keep all others waiting.
"""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.core import events
from dibs.core.commands import Acquire, AcquireAll, KeepTickets, Leave
from dibs.core.draft import Draft, HandedOver
from dibs.core.holds.access import allowed, put_list
from dibs.core.holds.capacity import is_paused, misfit, own_hold
from dibs.core.holds.endings import end_hold
from dibs.core.holds.exclusion import blockers, is_blocked, named, tree_neighbours
from dibs.core.holds.expiry import end_expired, shown, ticket_over, why_over
from dibs.core.holds.grants import for_session, grant, swap
from dibs.core.limits import LEAVE_AT_ONCE_MAX
from dibs.core.names import in_tree
from dibs.core.outcomes import Granted, GrantedAll, Left, Outcome, Queued, TicketsKept
from dibs.core.overlap import covers
from dibs.core.records import EXCLUSIVE, EXPIRED, SHARED, Closure, LockRecord, Part, Ticket, lock_key, ticket_key
from dibs.core.waiting import tickets


def may_wait(ask: Acquire | AcquireAll) -> bool:
    """Tell whether the caller wants a place in the queue. Who has a ticket wants to keep it, or to get another for
    it."""
    return ask.wait or ask.ticket_id is not None


def ticket_of(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> Ticket | None:
    """Find the present place of a caller that may wait: of its ticket, or of its request key or session, because a
    repeat after a lost reply must not get a second place. A lost place does not count."""
    ticket = None
    if ask.ticket_id is not None:
        ticket = draft.ticket(ask.ns, names[0], ask.ticket)
        if ticket is not None and (ticket.lease_id, ticket.principal) != (ask.ticket_id, ask.principal):
            ticket = None
        if ticket is not None and tickets.names_of(ticket) != names:
            ticket = None
    if ticket is None:
        ticket = tickets.recognised(draft, ask, names)
    if ticket is None or ticket.number not in draft.lock(ticket.ns, ticket.name).line:
        return None  # a ticket is in no queue after a git remote had half of a push
    over = why_over(draft, ticket)
    if over is not None:
        give_up(draft, ticket, over)
        return None
    if ticket.mode == SHARED and in_tree(ticket.name):  # `refresh` looks only at places that exclude the claim
        queues = dict.fromkeys(names)
        if _step(draft, ticket.ns, ticket.name, ticket.number, queues):
            advance(draft, ticket.ns, list(queues))
        return draft.ticket(ticket.ns, ticket.name, ticket.number)
    return ticket


def give_up(draft: Draft, ticket: Ticket, reason: str) -> None:
    """Take a ticket out of its queues, and serve those behind it."""
    tickets.drop(draft, ticket, reason)
    advance(draft, ticket.ns, tickets.names_of(ticket))


def advance(draft: Draft, ns: str, names: Sequence[str]) -> None:
    """Give each job to the head of its queue, and to the next ones as long as they fit. A ticket for several jobs that
    is served or dropped advances its other queues, too, after these."""
    queues: dict[str, None] = dict.fromkeys(names)
    while queues:
        name, _ = queues.popitem()
        if draft.left >= LEAVE_AT_ONCE_MAX:
            _advance_later(draft, ns, name)
        elif in_tree(name):
            _advance_tree(draft, ns, name, queues)
        else:
            _advance_queue(draft, ns, name, queues)


def _advance_later(draft: Draft, ns: str, name: str) -> None:
    """Leave a queue to the next sweep, which comes at once: as a delay of the job that is over, or in the tree's
    record. Nobody overtakes meanwhile, because whoever comes is behind those who wait."""
    if in_tree(name):
        tree = draft.tree(ns)
        if name not in tree.unserved and draft.tree_queue(ns).of(name):
            draft.put(tree.replace(unserved=(*tree.unserved, name), unserved_ms=draft.now_ms))
        return
    lock = draft.lock(ns, name)
    if lock.line and not lock.delay_until_ms:
        draft.put(lock.replace(delay_until_ms=draft.now_ms))


def go_on(draft: Draft, ns: str) -> None:
    """Serve the places of a tree that an earlier decision left."""
    tree = draft.tree(ns)
    if tree.unserved:
        draft.put(tree.replace(unserved=(), unserved_ms=0))
        advance(draft, ns, tree.unserved)


def _advance_queue(draft: Draft, ns: str, name: str, queues: dict[str, None]) -> None:
    # Mostly one is served and the next one waits, so two are enough; of dead tickets twice as many are loaded then.
    peek, loaded = 2, 0
    while True:
        queue = draft.lock(ns, name).line
        if not queue:
            return
        if not loaded:
            _load(draft, ns, [(name, number) for number in queue[:peek]])
            peek, loaded = max(tickets.PEEK, 2 * peek), peek
        loaded -= 1
        if not _step(draft, ns, name, queue[0], queues):
            return
        if draft.left >= LEAVE_AT_ONCE_MAX:
            queues[name] = None
            return


def _advance_tree(draft: Draft, ns: str, name: str, queues: dict[str, None]) -> None:
    """Walk once along the places that overlap `name`. A place is served if no hold and no earlier place overlaps it; a
    place that has an earlier one to wait for is not even loaded."""
    entries = draft.tree_queue(ns).of(name)
    peek, loaded = 2, 0
    for at, entry in enumerate(entries):
        while True:
            queue = draft.tree_queue(ns)
            first = queue.first(entry.name, entry.mode)
            if not queue.has(entry.number) or (first is not None and first.number < entry.number):
                break
            if at >= loaded:
                _load(draft, ns, [(each.name, each.number) for each in entries[at : at + peek]])
                peek, loaded = max(tickets.PEEK, 2 * peek), at + peek
            if not _step(draft, ns, entry.name, entry.number, queues):
                break
            if entry.name != name and not covers(name, entry.name):
                queues[entry.name] = None  # others that overlap it do not overlap `name`
            if draft.left >= LEAVE_AT_ONCE_MAX:
                queues[name] = None
                return


def _load(draft: Draft, ns: str, entries: list[tuple[str, int]]) -> None:
    """Load places of a queue at once. If many leave it, the other jobs of their tickets will be needed, too."""
    keys = [ticket_key(ns, name, number) for name, number in entries]
    draft.need(*keys, *[lock_key(ns, name) for name, _ in entries])
    if len(entries) >= tickets.PEEK:
        found = [draft.ticket(ns, name, number) for name, number in entries]
        parts = [part for ticket in found if ticket is not None for part in ticket.whole]
        keys = [ticket_key(ns, part.name, part.number) for part in parts]
        draft.need(*keys, *[lock_key(ns, part.name) for part in parts])


def _clear_way(draft: Draft, ns: str, name: str, mode: str) -> None:
    """Drop or serve what is ahead of a newcomer in a tree, up to the first place that must wait longer."""
    queues: dict[str, None] = {}
    while draft.left < LEAVE_AT_ONCE_MAX:
        entry = draft.tree_queue(ns).first(name, mode)
        if entry is None or not _step(draft, ns, entry.name, entry.number, queues):
            break
        if not queues:  # there may be more of them
            more = draft.tree_queue(ns).of(name)[:LEAVE_AT_ONCE_MAX]
            draft.need(*[ticket_key(ns, each.name, each.number) for each in more])
        queues[entry.name] = None
    advance(draft, ns, list(queues))


def _step(draft: Draft, ns: str, name: str, number: int, queues: dict[str, None]) -> bool:
    """Serve one place whose turn it is; False if it must wait. Adds other queues that may advance to `queues`."""
    ticket = draft.ticket(ns, name, number)
    if ticket is None:
        tickets.remove_from_queue(draft, ns, name, number)
        draft.left += 1
        return True
    if ticket.whole:
        draft.need(*[lock_key(ns, part.name) for part in ticket.whole])
    reason = _pointless(draft, ticket)
    if reason is None:
        if (ticket.stopped or draft.meta().closures) and _note_stop(draft, ticket):
            return False
        if not _ready(draft, ticket):
            return False
        names = tickets.names_of(ticket)
        ended = [each for part in names for each in _end_in_way(draft, ns, part, ticket.mode)]
        if ended:
            queues.update(dict.fromkeys(ended))
            return True  # an expiry that was just noticed may have delayed or parked the job: look again
    if ticket.whole:
        draft.need(*[ticket_key(ns, part.name, part.number) for part in ticket.whole])
    draft.left += len(tickets.parts_of(ticket))
    if reason is None:
        _hand_over(draft, ticket)
        if ticket.session is not None:
            queues.update(dict.fromkeys(_serve_own(draft, ns, ticket.session)))
    else:
        tickets.drop(draft, ticket, reason)
    queues.update(dict.fromkeys([part.name for part in ticket.whole if part.name != name]))
    return True


def join_queue(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> Ticket:
    ticket = tickets.join(draft, ask, names)
    if draft.meta().closures:
        advance(draft, ask.ns, names)  # the first in the queue must have the mark of a closed job
    return ticket


def _closure_of_ticket(draft: Draft, ticket: Ticket) -> Closure | None:
    """The longest of the closures of the jobs that it needs."""
    from dibs.core.holds.closures import closure_of  # rare: asked only while something is closed

    closures = [closure_of(draft, ticket.ns, part.name) for part in tickets.needed_parts(draft, ticket)]
    return max([each for each in closures if each is not None], key=lambda each: each.until_ms, default=None)


def _note_stop(draft: Draft, ticket: Ticket) -> bool:
    """Mark a ticket whose turn it is while a job of it is closed, for its server to see. Returns whether one is."""
    is_stopped = _closure_of_ticket(draft, ticket) is not None
    first = tickets.parts_of(ticket)[0]
    kept = draft.ticket(ticket.ns, first.name, first.number)
    if kept is not None and kept.stopped != is_stopped:
        draft.put(kept.replace(stopped=is_stopped))
    return is_stopped


def _pointless(draft: Draft, ticket: Ticket) -> str | None:
    """Return why a ticket must not be served: its owner is gone or not allowed, or a job that it needs is done."""
    over = why_over(draft, ticket)
    if over is not None:
        return over
    for part in tickets.needed_parts(draft, ticket):
        lock = draft.lock(ticket.ns, part.name)
        unfit = _unfit(draft, lock, ticket)
        if unfit is not None:
            return unfit
        if lock.parked:
            return "parked"
        if lock.done is not None and draft.now_ms < lock.done.until_ms and not ticket.again:
            return "done"
    return None


def _unfit(draft: Draft, lock: LockRecord, ticket: Ticket) -> str | None:
    if not allowed(draft, lock, ticket):
        return "forbidden"
    if (lock.pooled or ticket.units > 1) and misfit(lock, ticket, draft.now_ms) is not None:
        return "pool changed"
    return None


def drop_unfit(draft: Draft, ns: str, name: str) -> None:
    """Drop waiters that a job's new access list or pool refuses, in a tree under all names, and serve the others."""
    entries = [(name, number) for number in draft.lock(ns, name).line]
    if in_tree(name):
        entries = [(entry.name, entry.number) for entry in draft.tree_queue(ns).of(name)]
    draft.need(*[ticket_key(ns, each, number) for each, number in entries])
    names = [name]
    for each, number in entries:
        ticket = draft.ticket(ns, each, number)
        if ticket is None or not tickets.needed_names(draft, ticket, ticket.session, (each,)):
            continue
        reason = _unfit(draft, draft.lock(ns, each), ticket)
        if reason is not None:
            tickets.drop(draft, ticket, reason)
            names += tickets.names_of(ticket)
    advance(draft, ns, names)


def _ready(draft: Draft, ticket: Ticket) -> bool:
    """Return whether all jobs of the ticket are free or held by its owner, and it is first in every queue."""
    for part in tickets.needed_parts(draft, ticket):
        lock = draft.lock(ticket.ns, part.name)
        if draft.now_ms < lock.delay_until_ms or is_paused(lock):
            return False
        if in_tree(lock.name):
            first = draft.tree_queue(lock.ns).first(lock.name, ticket.mode)
            if first is not None and first.number < part.number:
                return False
        elif lock.line[:1] != (part.number,):
            return False
        if is_blocked(draft, lock, ticket.mode, ticket.slots, ticket.session, ticket.units):
            return False
    return True


def ahead(draft: Draft, lock: LockRecord, number: int, mode: str) -> int:
    """Return how many come before this place (number 0: a newcomer)."""
    if not in_tree(lock.name):
        return lock.line.index(number) if number in lock.line else len(lock.line)
    return draft.tree_queue(lock.ns).count(lock.name, mode, number)


def first_ahead(draft: Draft, lock: LockRecord, mode: str) -> Ticket | None:
    if not in_tree(lock.name):
        return draft.ticket(lock.ns, lock.name, lock.line[0]) if lock.line else None
    entry = draft.tree_queue(lock.ns).first(lock.name, mode)
    return draft.ticket(lock.ns, entry.name, entry.number) if entry is not None else None


def queued(draft: Draft, ticket: Ticket) -> Queued:
    """The answer to one who waits: its position in the longest of its queues, and what blocks any job that it needs."""
    parts = tickets.needed_parts(draft, ticket) or tickets.parts_of(ticket)
    entries = [(draft.lock(ticket.ns, part.name), part.number) for part in parts]
    in_way = {
        (blocker.name, blocker.holder.lease_id): blocker
        for lock, _ in entries
        for blocker in blockers(draft, lock, ticket.mode, ticket.slots, ticket.session, ticket.units)
    }
    few = named(tuple(in_way.values()))
    return Queued(
        now_ms=draft.now_ms,
        ns=ticket.ns,
        name=ticket.name,
        ticket=ticket.number,
        ticket_id=ticket.lease_id,
        position=1 + max([ahead(draft, lock, number, ticket.mode) for lock, number in entries]),
        blockers=few,
        unnamed=len(in_way) - len(few),
        delay_until_ms=max([lock.delay_until_ms for lock, _ in entries]),
        closure=_closure_of_ticket(draft, ticket) if draft.meta().closures else None,
        paused=any(is_paused(lock) for lock, _ in entries),
    )


def present_lock(draft: Draft, ns: str, name: str) -> LockRecord:
    """End expired holds, and give the job to the next waiter. For commands of an owner."""
    before = draft.lock(ns, name)
    if end_expired(draft, before) is before:
        return before
    advance(draft, ns, (name,))
    return draft.lock(ns, name)


def refresh(draft: Draft, ns: str, name: str, mode: str = EXCLUSIVE) -> LockRecord:
    """The present lock, for claims: expired holds that block it are ended, and its queue advances. The queue advances
    even if nothing ended: its head may have stopped asking, or a lock delay may be over."""
    if not in_tree(name):
        before = draft.lock(ns, name)
        if end_expired(draft, before) is before and not before.line:
            return before
        advance(draft, ns, (name,))
        return draft.lock(ns, name)
    _make_whole(draft, draft.lock(ns, name))
    advance(draft, ns, _end_in_way(draft, ns, name, mode))
    if draft.tree(ns).line:
        _clear_way(draft, ns, name, mode)
    return draft.lock(ns, name)


def _make_whole(draft: Draft, lock: LockRecord) -> None:
    """A git remote that was killed may have the half of a grant that is in the lock, without the claim in the tree. Its
    owner had no answer, and gets one only after this: the grant is made whole, or ended if somebody else got in its
    way."""
    from dibs.core.holds.path_claims import note_claims, unclaimed

    half = unclaimed(draft, lock) if lock.holders else []
    rest = lock.replace(holders=tuple([each for each in lock.holders if each not in half])) if half else lock
    for holder in half:
        if is_blocked(draft, rest, holder.mode, lock.slots, holder.session):
            lock = end_hold(draft, lock, holder, how=EXPIRED, at_ms=draft.now_ms, uncounted=True)
        else:
            note_claims(draft, lock)


def _end_in_way(draft: Draft, ns: str, name: str, mode: str) -> list[str]:
    """End the expired holds that block a claim. Returns the names on which any ended."""
    names = [name]
    if in_tree(name):
        names += tree_neighbours(draft, ns, name, mode)
        draft.need(*[lock_key(ns, each) for each in names])
    ended = []
    for each in names:
        before = draft.lock(ns, each)
        if end_expired(draft, before) is not before:
            ended.append(each)
        elif each != name and not before.holders:
            from dibs.core.holds.path_claims import note_claims

            note_claims(draft, before)  # the other half of a grant: the claim in the tree
    return ended


def serve_own(draft: Draft, ns: str, session_id: str) -> None:
    """After a session got a job in another way: it may now have everything that another of its tickets waits for."""
    for name in _serve_own(draft, ns, session_id):
        advance(draft, ns, (name,))


def _serve_own(draft: Draft, ns: str, session_id: str) -> list[str]:
    """Serve a session's tickets whose jobs it now holds. Returns the queues of those that want what it holds."""
    session = draft.session(session_id)
    if session is None or not session.waits:
        return []
    holds = frozenset(session.holds)
    waits = [wait for wait in session.waits if wait.ns == ns and lock_key(ns, wait.name) in holds]
    draft.need(*[ticket_key(ns, wait.name, wait.number) for wait in waits])
    names: list[str] = []
    for wait in waits:
        ticket = draft.ticket(ns, wait.name, wait.number)
        if ticket is not None and not ticket_over(draft, ticket):
            names += tickets.names_of(ticket)
            if not tickets.needed_parts(draft, ticket):
                _hand_over(draft, ticket)
    return names


def _hand_over(draft: Draft, ticket: Ticket) -> None:
    tickets.remove(draft, ticket)
    parts = tickets.parts_of(ticket)
    grants = tuple([_grant_part(draft, ticket, part) for part in parts])
    outcome = GrantedAll(now_ms=draft.now_ms, grants=grants) if ticket.whole else grants[0]
    first, proof = parts[0], ticket.lease_id
    draft.handed.append(
        HandedOver(ns=ticket.ns, name=first.name, number=first.number, ticket_id=proof, outcome=outcome)
    )


def _grant_part(draft: Draft, ticket: Ticket, part: Part) -> Granted:
    lock = draft.lock(ticket.ns, part.name)
    own = own_hold(draft, lock, ticket.session, ticket.mode)
    if own is not None:
        gone = ticket.replace(name=part.name, number=part.number)
        draft.events.append(tickets.ticket_event(draft, gone, events.LEFT, reason="granted otherwise"))
        stored = next(each for each in lock.holders if each.lease_id == own.lease_id)  # `own` is as it is shown
        kept = for_session(draft, ticket, stored).replace(used=True)
        draft.put(swap(lock, kept))
        return Granted(now_ms=draft.now_ms, name=part.name, lease=shown(draft, kept), again=True, held_before=True)
    granted = grant(draft, ticket, lock, ticket.lease_id, part.number)
    if ticket.acl is not None and not lock.acl:
        put_list(draft, draft.lock(ticket.ns, part.name), ticket.acl, ticket.principal)
    return granted


def leave(draft: Draft, command: Leave) -> Outcome:
    """Give up a place. Repeating it succeeds. A place that was served already is not given up by this."""
    ticket = draft.ticket(command.ns, command.name, command.ticket)
    if ticket is None or (ticket.lease_id, ticket.principal) != (command.ticket_id, command.principal):
        return Left(now_ms=draft.now_ms, name=command.name, was_in=False)
    tickets.note_want(draft, ticket, tickets.names_of(ticket))
    give_up(draft, ticket, "left")
    return Left(now_ms=draft.now_ms, name=command.name, was_in=True)


def keep_tickets(draft: Draft, command: KeepTickets) -> Outcome:
    """Keep the places of callers at a server. Returns those that must ask again: gone, or closed no more."""
    draft.need(*[ticket_key(ns, name, number) for ns, name, number in command.tickets])
    gone = []
    for ns, name, number in command.tickets:
        ticket = draft.ticket(ns, name, number)
        if ticket is None or ticket_over(draft, ticket):
            gone.append((ns, name, number))
        else:
            if ticket.stopped and not _note_stop(draft, ticket):
                gone.append((ns, name, number))
            tickets.keep(draft, ticket)
    return TicketsKept(now_ms=draft.now_ms, gone=tuple(gone))
