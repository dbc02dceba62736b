"""The state of a job: the answer to `inspect`, and one word for it."""

from __future__ import annotations

from dibs.base.errors import InvalidInput
from dibs.core import outcomes
from dibs.core.commands import Inspect
from dibs.core.draft import Draft
from dibs.core.holds.capacity import is_paused
from dibs.core.holds.exclusion import blockers, named
from dibs.core.holds.expiry import end_expired, may_go_on, shown
from dibs.core.names import in_tree
from dibs.core.records import (
    CLOSED,
    DELAYED,
    DONE,
    EXCLUSIVE,
    FREE,
    FROZEN,
    HELD,
    PARKED,
    PAUSED,
    STATES,
    Closure,
    LockRecord,
)
from dibs.core.waiting.queue import ahead


def inspect(draft: Draft, command: Inspect) -> outcomes.Outcome:
    """The state of the job. Writes nothing, so it works on a store that cannot be written. A hold whose time is over is
    shown as held, with nothing left, until its end is written: a heartbeat that was decided in time may come before."""
    meta = draft.meta()
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
    if meta.closures:
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
        frozen=meta.frozen is not None,
    )


def state_of(lock: LockRecord, now_ms: int, closure: Closure | None = None, *, frozen: bool = False) -> str:
    """Return how a job stands, as one of STATES: the word that every surface shows. Only live holds may be in `lock`.
    `closure` is what closes the job, if anything does; `frozen`: its store is.

    Of a job that nobody holds it is what a newcomer's claim would be told, in the order of `acquire.judge`. A frozen
    store refuses every claim, but what is done or parked there is still said: whoever reads may leave it alone."""
    lock = lock.by_kind()
    if lock.holders:
        return HELD
    if lock.parked:
        return PARKED
    if lock.done is not None and now_ms < lock.done.until_ms:
        return DONE
    if frozen:
        return FROZEN
    if closure is not None:
        return CLOSED
    if is_paused(lock):
        return PAUSED
    return DELAYED if now_ms < lock.delay_until_ms else FREE


def states_named(text: str | None) -> tuple[str, ...]:
    """Return which states a list is of, as a caller names them: `all`, or some with commas between. None: held ones."""
    states = STATES if text == "all" else tuple((text or HELD).split(","))
    if not set(states) <= set(STATES):
        raise InvalidInput(f"status is all, or some of {', '.join(STATES)} with commas between.")
    return states
