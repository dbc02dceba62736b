"""The state of a job: the answer to `inspect`, and one word for it."""

from __future__ import annotations

from dibs.core import outcomes
from dibs.core.commands import Inspect
from dibs.core.draft import Draft
from dibs.core.holds.exclusion import blockers, named
from dibs.core.holds.expiry import end_expired, may_go_on, shown
from dibs.core.names import in_tree
from dibs.core.records import DELAYED, DONE, EXCLUSIVE, FREE, HELD, PARKED, LockRecord
from dibs.core.waiting.queue import ahead


def inspect(draft: Draft, command: Inspect) -> outcomes.Outcome:
    """The state of the job. Writes nothing, so it works on a store that cannot be written. A hold whose time is over is
    shown as held, with nothing left, until its end is written: a heartbeat that was decided in time may come before."""
    seen = draft.knows(command.ns, command.name)
    stored = draft.lock(command.ns, command.name)
    lock = end_expired(draft, stored)
    unended = [shown(draft, holder) for holder in stored.holders if may_go_on(draft, holder)]
    lock = stored.replace(holders=tuple(unended)) if unended else lock
    in_way = blockers(draft, lock, EXCLUSIVE, 1, None) if in_tree(lock.name) else ()
    others = tuple([blocker for blocker in in_way if blocker.name != lock.name])
    few = named(others)
    draft.discard()
    closure = None
    if draft.meta().closures:
        from dibs.core.holds.closures import closure_of  # rare

        closure = closure_of(draft, command.ns, command.name)
    return outcomes.Status(
        now_ms=draft.now_ms,
        name=command.name,
        lock=lock,
        seen=seen,
        waiting=ahead(draft, lock, 0, EXCLUSIVE),
        overlapping=few,
        unnamed=len(others) - len(few),
        closure=closure,
    )


def state_of(lock: LockRecord, now_ms: int) -> str:
    """One of STATES. Only live holds may be in `lock`."""
    lock = lock.by_kind()
    if lock.holders:
        return HELD
    if lock.parked:
        return PARKED
    if lock.done is not None and now_ms < lock.done.until_ms:
        return DONE
    return DELAYED if now_ms < lock.delay_until_ms else FREE
