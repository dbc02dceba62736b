"""When a hold is over, and what becomes of it. The promises `lease:never-early` and `lease:outage-credit` live here.

A hold is over when the store's clock reaches its deadline, not before. The deadline is `expires_ms`, moved later by each
outage that began while the hold was live and ended before its owner was heard again: time in which nobody could renew is
not held against the owner. Credit is min(ttl, OUTAGE_CREDIT_MS_MAX) after the outage's end, so that a dead owner's job
is late by a bounded time.

`settle` is the first step of every rule: it takes a lock as stored and gives it as it stands now.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import Beat, Sweep
from dibs.core.events import Event
from dibs.core.limits import ENDINGS_KEPT, OUTAGE_CREDIT_MS_MAX, OUTAGES_KEPT, PULSE_LATE_MS
from dibs.core.outcomes import Beaten, Swept
from dibs.core.records import (
    EXPIRED,
    META_KEY,
    PULSE_KEY,
    Ending,
    Holder,
    Lock,
    Meta,
    Outage,
    Pulse,
    lock_key,
)
from dibs.core.view import Decision, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.records import Stored


def deadline_ms(holder: Holder, outages: tuple[Outage, ...]) -> int:
    """When `holder` may be replaced. Never before its TTL has passed since it was last heard."""
    deadline = holder.expires_ms
    for outage in outages:
        if holder.renewed_ms < outage.ended_ms and deadline > outage.began_ms:
            deadline = max(deadline, outage.ended_ms + min(holder.ttl_ms, OUTAGE_CREDIT_MS_MAX))
    return deadline


def settle(lock: Lock, now_ms: int, outages: tuple[Outage, ...]) -> tuple[Lock, tuple[Event, ...]]:
    """`lock` as it stands at `now_ms`, and the expiries that this notices. The same object when nothing changed."""
    if not lock.holders:
        return lock, ()
    noticed: list[Event] = []
    kept: list[Holder] = []
    for holder in lock.holders:
        deadline = deadline_ms(holder, outages)
        if now_ms < deadline:
            kept.append(holder if deadline == holder.expires_ms else holder.replace(expires_ms=deadline))
        else:
            lock = end(lock, holder, how=EXPIRED, at_ms=deadline)
            noticed.append(event_of(lock, holder, events.EXPIRED, now_ms, checkpoint=holder.checkpoint))
    if tuple(kept) != lock.holders:
        lock = lock.replace(holders=tuple(kept))
    return lock, tuple(noticed)


def end(
    lock: Lock,
    holder: Holder,
    *,
    how: str,
    at_ms: int,
    checkpoint: str | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> Lock:
    """`lock` without `holder`, which ended `how`. An involuntary end counts as a failure and starts the lock delay."""
    ending = Ending(
        lease_id=holder.lease_id,
        owner=holder.owner,
        principal=holder.principal,
        token=holder.token,
        how=how,
        at_ms=at_ms,
        checkpoint=checkpoint if checkpoint is not None else holder.checkpoint,
        request_key=holder.request_key,
        by=by,
        reason=reason,
    )
    # Checkpoints may be 4 KiB each: only the newest ending is ever shown to a successor.
    older = [each.replace(checkpoint=None) for each in lock.endings[: ENDINGS_KEPT - 1]]
    lost = how != "released"
    return lock.replace(
        holders=tuple([each for each in lock.holders if each.lease_id != holder.lease_id]),
        endings=(ending, *older),
        failures=lock.failures + 1 if lost else 0,
        delay_until_ms=max(lock.delay_until_ms, at_ms + holder.delay_ms)
        if lost and holder.delay_ms
        else lock.delay_until_ms,
    )


def event_of(lock: Lock, holder: Holder, kind: str, at_ms: int, **more: object) -> Event:
    """An event about one hold on one job."""
    return Event(
        at_ms=at_ms,
        kind=kind,
        ns=lock.ns,
        job=lock.name,
        owner=holder.owner,
        principal=holder.principal,
        token=holder.token,
        mode=holder.mode,
        attempt=holder.attempt,
        **more,  # type: ignore[arg-type]  # names of Event's own fields, checked by its constructor
    )


def sweep(view: View, command: Sweep) -> Decision:
    """Do what is due on one job. A sweep that comes too early, or twice, does nothing."""
    stored = view.lock(command.ns, command.name)
    if stored is None:
        return Decision(outcome=Swept(now_ms=view.now_ms, name=command.name))
    meta = view.meta()
    lock, noticed = settle(stored, view.now_ms, meta.outages)
    key = lock_key(command.ns, command.name)
    due_ms = lock.due_ms()
    if not lock.holders and due_ms is not None and due_ms <= view.now_ms:
        return _forget(view, lock, meta, noticed)
    swept = Swept(now_ms=view.now_ms, name=command.name, expired=len(noticed))
    # A lease with outage credit is written back with its later deadline: the store's index of what is due follows it.
    return Decision(outcome=swept, writes={} if lock is stored else {key: lock}, events=noticed)


def _forget(view: View, lock: Lock, meta: Meta, noticed: tuple[Event, ...]) -> Decision:
    """Drop an idle record. Its number moves into the floor first, so that the job's next token still rises."""
    gone = Event(at_ms=view.now_ms, kind=events.FORGOTTEN, ns=lock.ns, job=lock.name, token=lock.token)
    return Decision(
        outcome=Swept(now_ms=view.now_ms, name=lock.name, expired=len(noticed), forgotten=True),
        writes={
            lock_key(lock.ns, lock.name): None,
            META_KEY: meta.replace(token_floor=max(meta.token_floor, lock.token)),
        },
        events=(*noticed, gone),
    )


def beat(view: View, command: Beat) -> Decision:
    """Note that a server is up. If none was for longer than PULSE_LATE_MS before it, that was an outage."""
    pulse = view.pulse()
    now_ms = view.now_ms
    writes: dict[str, Stored | None] = {PULSE_KEY: Pulse(at_ms=now_ms)}
    if pulse is None or command.alive_since_ms - pulse.at_ms <= PULSE_LATE_MS:
        return Decision(outcome=Beaten(now_ms=now_ms), writes=writes)
    meta = view.meta()
    outage = Outage(began_ms=pulse.at_ms, ended_ms=now_ms)
    writes[META_KEY] = meta.replace(outages=_remember(meta.outages, outage))
    told = Event(at_ms=now_ms, kind=events.OUTAGE, began_ms=outage.began_ms)
    return Decision(
        outcome=Beaten(now_ms=now_ms, outage_ms=outage.ended_ms - outage.began_ms),
        writes=writes,
        events=(told,),
    )


def _remember(outages: tuple[Outage, ...], outage: Outage) -> tuple[Outage, ...]:
    """Keep the newest; merge the two oldest when there are too many, which can only give more credit, never less."""
    kept = [*outages, outage]
    if len(kept) > OUTAGES_KEPT:
        kept[:2] = [Outage(began_ms=kept[0].began_ms, ended_ms=kept[1].ended_ms)]
    return tuple(kept)
