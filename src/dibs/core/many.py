"""Several jobs in one command: the first free one, or all or none. The promise `all-or-nothing`."""

from __future__ import annotations

from dibs.core.claims import check_session, judge, note_want
from dibs.core.deadlock import find_cycle
from dibs.core.exclusion import blockers, overlaps
from dibs.core.line import ahead, grant, join, keep, place_of, refresh
from dibs.core.names import in_tree
from dibs.core.outcomes import Deadlock, Delayed, Granted, GrantedAll, Held, Queued, Refused
from dibs.core.records import SHARED, lock_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import AcquireAll, AcquireAny
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Ticket


def acquire_any(draft: Draft, command: AcquireAny) -> Outcome:
    """The first of the names that can be claimed now. A repeat with the same request key gets the same one; what the
    caller's session holds already is passed over, so that asking again gives the next one."""
    refused = check_session(draft, command.session, command.principal)
    if refused is not None:
        return refused
    draft.need(*[lock_key(command.ns, name) for name in command.names])
    answers: list[Outcome] = []
    for name in command.names:
        lock = refresh(draft, command.ns, name, command.mode)
        verdict = judge(draft, command, lock, by_session=False)
        if verdict is None:
            return grant(draft, command, name, command.fresh_lease_id)
        if isinstance(verdict, Granted):
            return verdict
        answers.append(verdict)
    # No want is noted: whoever takes any of several waits for none of them.
    return Refused(now_ms=draft.now_ms, outcomes=tuple(answers))


def acquire_all(draft: Draft, command: AcquireAll) -> Outcome:
    """All of the names, or none of them: at once, or by waiting in all their lines with nothing in hand."""
    refused = check_session(draft, command.session, command.principal)
    if refused is not None:
        return refused
    draft.need(*[lock_key(command.ns, name) for name in command.names])
    locks = [refresh(draft, command.ns, name, command.mode) for name in command.names]
    verdicts = [judge(draft, command, lock, command.ticket_id) for lock in locks]
    if all(verdict is None or isinstance(verdict, Granted) for verdict in verdicts):
        grants = [
            verdict if isinstance(verdict, Granted) else grant(draft, command, name, command.fresh_lease_id)
            for name, verdict in zip(command.names, verdicts, strict=True)
        ]
        return GrantedAll(now_ms=draft.now_ms, grants=tuple(grants))
    bad = tuple([verdict for verdict in verdicts if verdict is not None and not isinstance(verdict, Granted)])
    ticket = _ticket_of(draft, command)
    waitable = all(isinstance(verdict, Held | Delayed) for verdict in bad)
    if ticket is not None and waitable:
        keep(draft, ticket)
        return _queued(draft, command, ticket)
    for name in command.names:
        cycle = find_cycle(draft, command.session, command.ns, name, command.mode, command.slots)
        if cycle:
            return Deadlock(now_ms=draft.now_ms, name=name, cycle=cycle)
    if not (command.wait and waitable):
        note_want(draft, command, bad[0].name)  # type: ignore[union-attr]  # every verdict of `judge` has a name
        return Refused(now_ms=draft.now_ms, outcomes=bad)
    ticket = place_of(draft, command, command.names[0]) or join(draft, command, command.names)
    return _queued(draft, command, ticket)


def _queued(draft: Draft, command: AcquireAll, ticket: Ticket) -> Queued:
    """Where one stands: as far back as in the longest of the lines."""
    numbers = {part.name: part.number for part in ticket.whole} or {ticket.name: ticket.number}
    locks = [draft.lock(command.ns, name) for name in command.names]
    in_way = {
        (blocker.name, blocker.holder.lease_id): blocker
        for lock in locks
        for blocker in blockers(draft, lock, command.mode, command.slots, command.session)
    }
    return Queued(
        now_ms=draft.now_ms,
        ns=ticket.ns,
        name=ticket.name,
        ticket=ticket.number,
        ticket_id=ticket.lease_id,
        position=1 + max(ahead(draft, lock, numbers.get(lock.name, 0), command.mode) for lock in locks),
        blockers=tuple(in_way.values()),
        delay_until_ms=max(lock.delay_until_ms for lock in locks),
    )


def _ticket_of(draft: Draft, command: AcquireAll) -> Ticket | None:
    if command.ticket_id is None:
        return None
    ticket = draft.ticket(command.ns, command.names[0], command.ticket)
    if ticket is None or (ticket.lease_id, ticket.principal) != (command.ticket_id, command.principal):
        return None
    return ticket


def overlapping_pair(names: tuple[str, ...], mode: str) -> tuple[str, str] | None:
    """Two of the names that would stand in each other's way; claiming both could never succeed."""
    places = [name for name in names if in_tree(name)]
    if mode == SHARED:
        return None
    for index, one in enumerate(places):
        for other in places[index + 1 :]:
            if overlaps(one, other):
                return one, other
    return None
