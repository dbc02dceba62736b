"""Claiming without a server: finding dead owners, and waiting in line.

A waiter watches only its own ticket. The process that hands it the job, or drops it from the line, deletes the ticket,
and the store wakes the waiter. Only the first few in line look for expired holds and dead owners, each a little later
than the one before, in case those before have died. Asking again writes nothing unless something changed or the place
must be kept.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C part of `signal`; typeshed does not list it

from dibs.base.clock import steady_ms
from dibs.core.commands import EndSession, Leave, Release
from dibs.core.keys import session_key, ticket_key
from dibs.core.limits import EMBEDDED_POLL_MS, TICKET_KEEP_MS
from dibs.core.outcomes import Granted, GrantedAll, Held, Left, Queued, Refused
from dibs.core.records import SessionRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome
    from dibs.engine.coordinator import Coordinator

_ENDING = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def claim(coordinator: Coordinator, command: Any, wait_ms: int) -> Outcome:
    """The outcome of a claim, after waiting in line for up to `wait_ms` if it waits. An interrupt gives up the claim
    or the place. It can come only while the store is watched, never during a request, so it is always known what was
    written."""
    if not wait_ms:
        shield = _Shield()
        try:
            return _ask(coordinator, command)
        finally:
            shield.down()
    until_ms = steady_ms() + wait_ms
    poll_ms = max(EMBEDDED_POLL_MS, coordinator.store.capabilities.poll_ms)
    outcome: Outcome | None = None
    shield = _Shield()
    try:
        while True:
            outcome = _ask(coordinator, command)
            left_ms = until_ms - steady_ms()
            if not isinstance(outcome, Queued) or left_ms <= 0:
                shield.down()
                return outcome
            command = command.replace(ticket=outcome.ticket, ticket_id=outcome.ticket_id)
            shield.down()
            key = ticket_key(outcome.ns, outcome.name, outcome.ticket)
            coordinator.store.until_gone(key, min(left_ms, _patience_ms(outcome, poll_ms)))
            shield.up()
    except KeyboardInterrupt:
        give_up(coordinator, command, outcome)
        raise
    finally:
        shield.down()


class _Shield:
    """Blocks the signals that end a process. It does not import `signal`, which costs more than a claim."""

    def __init__(self) -> None:
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _ENDING)

    def up(self) -> None:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _ENDING)

    def down(self) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)


def give_up(coordinator: Coordinator, command: Any, outcome: Outcome | None) -> None:
    """Give back what `outcome` granted: the job, the place in line, or the job that was handed over a moment ago. What
    another ask was told of, too, stays."""
    ns, principal, seat = command.ns, command.principal, command.fresh_lease_id
    grants = outcome.grants if isinstance(outcome, GrantedAll) else (outcome,)
    got = [(each.name, each.lease.lease_id) for each in grants if isinstance(each, Granted)]
    if isinstance(outcome, Queued):
        number, ticket_id = outcome.ticket, outcome.ticket_id
        left = coordinator.one(
            Leave(
                ns=ns, name=outcome.name, principal=principal, ticket=number, ticket_id=ticket_id, seat=seat
            )
        )
        if isinstance(left, Left) and not left.was_in:
            got = [(name, ticket_id) for name in getattr(command, "names", None) or (command.name,)]
    for name, lease_id in got:
        coordinator.one(
            Release(ns=ns, name=name, principal=principal, lease_id=lease_id, uncounted=True, seat=seat)
        )


def _ask(coordinator: Coordinator, command: Command) -> Outcome:
    """Claim. If an owner that blocks the claim is dead, which every process on this machine can see, end its session
    and claim again."""
    outcome = coordinator.one(command)
    if _end_dead_session(coordinator, outcome):
        return coordinator.one(command)
    return outcome


def _end_dead_session(coordinator: Coordinator, outcome: Outcome) -> bool:
    answers = outcome.outcomes if isinstance(outcome, Refused) else (outcome,)
    blockers = [b for each in answers if isinstance(each, Held | Queued) for b in each.blockers]
    sessions = {blocker.holder.session for blocker in blockers if blocker.holder.session is not None}
    if not sessions:
        return False
    from dibs.system.session_mark import is_gone  # imported only if a session blocks the claim

    found = coordinator.store.read([session_key(session) for session in sessions]).records.values()
    dead = [
        each.record.id
        for each in found
        if isinstance(each.record, SessionRecord) and is_gone(each.record.process)
    ]
    for session in dead:
        coordinator.one(EndSession(session=session, principal=None, dead=True))
    return bool(dead)


def _patience_ms(queued: Queued, poll_ms: int) -> int:
    """How long to wait for a wake-up at most: until the blocking hold may have ended, and well before the place is
    lost. Places ahead look first."""
    ends_ms = [blocker.holder.expires_ms - queued.now_ms for blocker in queued.blockers]
    if queued.delay_until_ms > queued.now_ms:
        ends_ms.append(queued.delay_until_ms - queued.now_ms)
    look_ms = max(1, min([*ends_ms, poll_ms])) + (queued.position - 1) * poll_ms
    return min(look_ms, TICKET_KEEP_MS)
