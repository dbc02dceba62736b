"""Claiming on a store of one's own: looking whether the owner is dead, and waiting in line without a server.

There is nobody here to be woken by. A waiter watches the store for news and asks again with its ticket when there is
some, when the hold in its way runs out, and often enough to keep its place. Asking again writes nothing unless
something changed or the place must be kept.
"""

from __future__ import annotations

from dibs.clock import steady_ms
from dibs.core.commands import EndSession, Leave
from dibs.core.limits import EMBEDDED_POLL_MS, TICKET_KEEP_MS
from dibs.core.outcomes import Held, Queued, Refused
from dibs.core.records import Session, session_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome
    from dibs.service.coordinator import Coordinator


def claim(coordinator: Coordinator, command: Any, wait_ms: int) -> Outcome:
    """The outcome of a claim, after waiting in line for up to `wait_ms` where it asks for that."""
    outcome = _ask(coordinator, command)
    if not wait_ms or not isinstance(outcome, Queued):
        return outcome
    until_ms = steady_ms() + wait_ms
    seen_seq = _last_seq(coordinator)
    queued = outcome
    try:
        while True:
            command = command.replace(ticket=queued.ticket, ticket_id=queued.ticket_id)
            left_ms = until_ms - steady_ms()
            if left_ms <= 0:
                return queued
            if coordinator.store.watch(seen_seq, min(left_ms, _patience_ms(queued))):
                seen_seq = _last_seq(coordinator)
            outcome = _ask(coordinator, command)
            if not isinstance(outcome, Queued):
                return outcome
            queued = outcome
    except KeyboardInterrupt:
        leave(coordinator, command)
        raise


def leave(coordinator: Coordinator, command: Any) -> None:
    """Give up the place that `command` holds, if it holds one."""
    if command.ticket_id is not None:
        name = getattr(command, "names", None) or (command.name,)
        coordinator.one(
            Leave(
                ns=command.ns,
                name=name[0],
                principal=command.principal,
                ticket=command.ticket,
                ticket_id=command.ticket_id,
            )
        )


def _ask(coordinator: Coordinator, command: Command) -> Outcome:
    """Ask; if whoever is in the way is dead, as anybody on this machine can see, end its session and ask again."""
    outcome = coordinator.one(command)
    if _bury(coordinator, outcome):
        return coordinator.one(command)
    return outcome


def _bury(coordinator: Coordinator, outcome: Outcome) -> bool:
    answers = outcome.outcomes if isinstance(outcome, Refused) else (outcome,)
    blockers = [b for each in answers if isinstance(each, Held | Queued) for b in each.blockers]
    sessions = {blocker.holder.session for blocker in blockers if blocker.holder.session is not None}
    if not sessions:
        return False
    from dibs.service.processes import is_gone  # only where sessions are in the way

    found = coordinator.store.read([session_key(session) for session in sessions]).records.values()
    dead = [
        each.record.id for each in found if isinstance(each.record, Session) and is_gone(each.record.process)
    ]
    for session in dead:
        coordinator.one(EndSession(session=session, principal=None, dead=True))
    return bool(dead)


def _patience_ms(queued: Queued) -> int:
    """How long to wait for news at most: until the hold in the way may be over, and well before the place is lost."""
    ends_ms = [blocker.holder.expires_ms - queued.now_ms for blocker in queued.blockers]
    if queued.delay_until_ms > queued.now_ms:
        ends_ms.append(queued.delay_until_ms - queued.now_ms)
    return max(1, min([*ends_ms, EMBEDDED_POLL_MS, TICKET_KEEP_MS]))


def _last_seq(coordinator: Coordinator) -> int:
    newest = coordinator.store.events(0, 1, newest=True)
    return newest[-1].seq if newest else 0
