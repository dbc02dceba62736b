"""Counts anew what a principal with a limit has: a new count starts at zero, and everything is charged again. A charge
of an older count gives nothing back (`quota.py`).
"""

from __future__ import annotations

from dibs.core.keys import LOCK_PREFIX, SESSION_PREFIX, USAGE_PREFIX, split_lock_key
from dibs.core.quota import charge, is_current, payer_of, usage_of
from dibs.core.upkeep_outcomes import Counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import BeginCount, CountUsage
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome


def begin_count(draft: Draft, command: BeginCount) -> Outcome:
    """Start a principal's count again. Every record that holds something of it must then be counted."""
    usage = usage_of(draft, command.payer)
    fresh = usage.replace(count=max(usage.count + 1, draft.now_ms), held=0, waiting=0, sessions=0)
    draft.write(USAGE_PREFIX + command.payer, fresh)
    return Counted(now_ms=draft.now_ms)


def count(draft: Draft, command: CountUsage) -> Outcome:
    """Charge what one record holds of a principal, unless it is charged already. A charge to the principal's record for
    one namespace stays there."""
    if command.key.startswith(LOCK_PREFIX):
        _count_lock(draft, command)
    elif command.key.startswith(SESSION_PREFIX):
        _count_session(draft, command)
    else:
        _count_ticket(draft, command)
    return Counted(now_ms=draft.now_ms)


def _is_counted_here(draft: Draft, payer: str, ns: str | None, principal: str, charged: str | None) -> bool:
    """Whether what `principal` has in `ns`, with this charge, must be charged to `payer`."""
    own_ns, _, name = payer.partition("/")
    if principal != name or (own_ns and own_ns != ns):
        return False
    return payer_of(charged) in (None, payer) and not is_current(draft, charged, payer)


def _count_lock(draft: Draft, command: CountUsage) -> None:
    ns, name = split_lock_key(command.key)
    if not draft.knows(ns, name):
        return
    lock = draft.lock(ns, name)
    holders = tuple(
        [
            each.replace(charge=charge(draft, command.payer, "held"))
            if _is_counted_here(draft, command.payer, ns, each.principal, each.charge)
            else each
            for each in lock.holders
        ]
    )
    if holders != lock.holders:
        draft.put(lock.replace(holders=holders))


def _count_session(draft: Draft, command: CountUsage) -> None:
    session = draft.session(command.key.removeprefix(SESSION_PREFIX))
    if session is None or session.ended_ms:
        return
    if _is_counted_here(draft, command.payer, session.ns, session.principal, session.charge):
        draft.put(session.replace(charge=charge(draft, command.payer, "sessions")))


def _count_ticket(draft: Draft, command: CountUsage) -> None:
    _, ns, number, name = command.key.split("/", 3)
    ticket = draft.ticket(ns, name, int(number))
    if ticket is not None and _is_counted_here(draft, command.payer, ns, ticket.principal, ticket.charge):
        draft.put(ticket.replace(charge=charge(draft, command.payer, "waiting")))
