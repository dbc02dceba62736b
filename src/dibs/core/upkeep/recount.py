"""Counts anew what a principal with a limit has: a new count starts at zero, and everything is charged again. A charge
of an older count gives nothing back (`quota.py`).
"""

from __future__ import annotations

from dibs.core import commands, records
from dibs.core.draft import Draft
from dibs.core.holds.quota import HELD, SESSIONS, WAITING, is_current, payer_of, take_quota, usage_of
from dibs.core.lease_outcomes import Counted
from dibs.core.outcomes import Outcome


def begin_count(draft: Draft, command: commands.BeginCount) -> Outcome:
    """Start a principal's count again. Every record that holds something of it must then be counted."""
    usage = usage_of(draft, command.payer)
    fresh = usage.replace(count=max(usage.count + 1, draft.now_ms), held=0, waiting=0, sessions=0)
    draft.write(records.USAGE_PREFIX + command.payer, fresh)
    return Counted(now_ms=draft.now_ms)


def count(draft: Draft, command: commands.CountUsage) -> Outcome:
    payer, found = command.payer, draft.get(command.key)
    if isinstance(found, records.LockRecord):
        holders = tuple(
            [
                each.replace(charge=take_quota(draft, payer, HELD))
                if _should_count(draft, payer, found.ns, each.principal, each.charge)
                else each
                for each in found.holders
            ]
        )
        if holders != found.holders:
            draft.put(found.replace(holders=holders))
    elif isinstance(found, records.SessionRecord):
        if not found.ended_ms and _should_count(draft, payer, found.ns, found.principal, found.charge):
            draft.put(found.replace(charge=take_quota(draft, payer, SESSIONS)))
    elif isinstance(found, records.Ticket) and _should_count(draft, payer, found.ns, found.principal, found.charge):
        draft.put(found.replace(charge=take_quota(draft, payer, WAITING)))
    return Counted(now_ms=draft.now_ms)


def _should_count(draft: Draft, payer: str, ns: str | None, principal: str, quota: str | None) -> bool:
    """Return whether something that `principal` has in `ns` belongs to `payer` and is not counted yet."""
    own_ns, _, name = payer.partition("/")
    if principal != name or (own_ns and own_ns != ns):
        return False
    return payer_of(quota) in (None, payer) and not is_current(draft, quota, payer)
