"""Whether somebody waits for what an owner holds, and whether its owner was told: the promise `queue:holder-told`.

An owner is told of each waiter once. Places in a line have rising numbers, so a hold remembers one number: the last
place of which its owner was told. It is stored by the write that renews the hold, so telling costs no write.

A heartbeat of a lease reads the job's own line, which is in the same record. It reads the line of a tree only if a
waiter marked the hold (`wanted`). A heartbeat of a session mostly comes from a timer, and reads no lines: whoever
begins to wait writes down in the session which job that is, and the session is told when the worker itself asks
(`active`).
"""

from __future__ import annotations

from dibs.core.grants import swap
from dibs.core.keys import lock_key, split_lock_key
from dibs.core.limits import WANT_MS, WANTED_MAX
from dibs.core.names import in_tree
from dibs.core.overlap import overlaps
from dibs.core.proof import may_use
from dibs.core.records import SHARED, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import AcquireTerms
    from dibs.core.draft import Draft
    from dibs.core.lease_outcomes import WaitedFor
    from dibs.core.outcomes import Blocker, Queued
    from dibs.core.records import Holder, LockRecord, SessionRecord, Ticket


# What a session wants: a refused claim that counts as waiting, for `deadlock.py`. An agent that asks, is refused,
# thinks and asks again waits just like one in line. So the last refusal of a session that holds something counts until
# the session gets something, lets something go or asks for something else, and for WANT_MS at most. A reported deadlock
# is also a refusal: the others in the cycle must be told of it as well when they ask again. So is a wait that was given
# up.


def note_want(draft: Draft, ask: AcquireTerms | Ticket, names: tuple[str, ...]) -> None:
    """The caller asked for these and was refused."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is not None and session.holds:
        want = Want(
            ns=ask.ns,
            name=names[0],
            until_ms=draft.now_ms + WANT_MS,
            mode=ask.mode,
            slots=ask.slots,
            at_ms=draft.now_ms,
            more=names[1:],
        )
        draft.put(session.replace(want=want))


def forget_want(draft: Draft, ask: AcquireTerms) -> None:
    """The session got a final answer to a new request, so its earlier refusal does not count any more."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is not None and session.want is not None and may_use(session, ask.principal, ask.bound):
        draft.put(session.replace(want=None))


def waiters(draft: Draft, lock: LockRecord, holder: Holder, *, whole: bool = False) -> tuple[int, int, int]:
    """Return how many wait for a hold, how many of them its owner was not told of, and the number of the newest place.
    Places of the owner's own session do not count. A waiter that died counts until its place is seen to be over.
    `whole`: looks at the line of a tree even if nothing says that somebody waits there."""
    if not lock.line and not (in_tree(lock.name) and (whole or holder.wanted)):
        return 0, 0, 0
    places = _line(draft, lock, holder.mode)
    session = draft.session(holder.session) if holder.session is not None else None
    if session is not None and session.waits:
        own = {(wait.name, wait.number) for wait in session.waits if wait.ns == lock.ns}
        places = [place for place in places if place not in own]
    numbers = [number for _, number in places]
    return len(numbers), sum([number > holder.told for number in numbers]), max(numbers, default=0)


def _line(draft: Draft, lock: LockRecord, mode: str) -> list[tuple[str, int]]:
    """The places that wait for a hold on this job."""
    if not in_tree(lock.name):
        return [(lock.name, number) for number in lock.line]
    return [
        (place.name, place.number)
        for place in draft.tree(lock.ns).line
        if overlaps(place.name, lock.name) and not (mode == SHARED and place.mode == SHARED)
    ]


def note_wanted(draft: Draft, place: Queued) -> None:
    """Somebody begins to wait: mark the holds in the way whose owners could not see it otherwise."""
    for blocker in place.blockers[:WANTED_MAX]:
        _mark(draft, place.ns, blocker)


def _mark(draft: Draft, ns: str, blocker: Blocker) -> None:
    lock = draft.lock(ns, blocker.name)
    if in_tree(lock.name):
        for holder in lock.holders:
            if holder.lease_id == blocker.holder.lease_id and not holder.wanted:
                draft.put(swap(lock, holder.replace(wanted=True)))
    session = draft.session(blocker.holder.session) if blocker.holder.session is not None else None
    key = lock_key(ns, lock.name)
    if session is not None and key not in session.wanted and len(session.wanted) < WANTED_MAX:
        draft.put(session.replace(wanted=(*session.wanted, key)))


def tell_session(draft: Draft, session: SessionRecord, bound: str | None) -> tuple[WaitedFor, ...]:
    """The jobs of a session for which somebody waits of whom it was not told. From now on it counts as told."""
    from dibs.core.lease_outcomes import WaitedFor  # no claim needs it

    keys = [key for key in session.wanted if bound in (None, split_lock_key(key)[0])]
    draft.need(*keys)
    found = []
    for ns, name in map(split_lock_key, keys):
        for holder in draft.lock(ns, name).holders:
            if holder.session == session.id:
                lock = draft.lock(ns, name)
                waiting, new, newest = waiters(draft, lock, holder, whole=True)
                still = waiting > 0 and in_tree(name)
                draft.put(swap(lock, holder.replace(told=max(holder.told, newest), wanted=still)))
                if new:
                    found.append(WaitedFor(ns=ns, name=name, waiting=waiting, new=new))
    draft.put(session.replace(wanted=tuple([key for key in session.wanted if key not in keys])))
    return tuple(found)
