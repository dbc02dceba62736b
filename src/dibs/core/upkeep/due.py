"""Upkeep, what time brings: records that are due, old ones, a store that is being moved, and outages."""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.core import commands, events, records
from dibs.core.claims.closures import end_closures
from dibs.core.claims.sessions import finish
from dibs.core.draft import Draft
from dibs.core.holds.expiry import deadline_ms, session_deadline_ms, session_over, ticket_deadline_ms, ticket_over
from dibs.core.holds.quota import is_current, payer_of, take_quota, usage_of
from dibs.core.lease_outcomes import BeatRecorded, Counted, FreezeNoted, Frozen, Identified, Raised, Swept, Thawed
from dibs.core.limits import MOVES_KEPT, OUTAGES_KEPT, PULSE_KEPT_MS, PULSE_LATE_MS
from dibs.core.outcomes import Outcome, TicketsKept
from dibs.core.waiting.queue import give_up, go_on, refresh

# A store that is being moved. While it is frozen nothing in it changes, so a copy shows one moment.
#
# Every decision looks at the mark, and every commit compares what was looked at: a write that was decided before the
# mark was set and comes after it is a conflict. Reading stays possible. Nothing expires meanwhile, and the time counts
# as an outage afterwards, so nobody loses a lease because of the move.
#
# **A store that is frozen to be moved gives up its name.** Whoever goes on has a name of its own and names the ones
# before: the store that it is imported into, and also the old one, if it is thawed. A client that knows the old name
# goes on with whichever of the two it hears first, and from then on takes the other for what it is, another store. A
# copy of a store that was not frozen names nobody.


def while_frozen(draft: Draft, command: commands.Command, mark: records.FreezeMark) -> Outcome:
    """The outcome in a frozen store: a server's own upkeep has nothing to do; every other command is refused."""
    if isinstance(command, commands.Sweep):
        return Swept(now_ms=draft.now_ms, key=command.key, frozen=True)
    if isinstance(command, commands.KeepTickets):
        return TicketsKept(now_ms=draft.now_ms)
    return Frozen(now_ms=draft.now_ms, mark=mark)


def freeze(draft: Draft, command: commands.Freeze) -> Outcome:
    """Set the mark, and replace the mark that the command knows of: its owner finds out with its next write. A repeated
    import keeps the times of the first try, so that it writes the same records again."""
    meta = draft.meta()
    old = meta.frozen
    if old is not None and old.id not in (command.over, command.id):
        return Frozen(now_ms=draft.now_ms, mark=old)
    goes_on = old is not None and old.incomplete and old.source == command.source
    mark = records.FreezeMark(
        at_ms=old.at_ms if old is not None else draft.now_ms,
        id=command.id,
        incomplete=command.incomplete,
        source=command.source,
        adds=command.adds,
        from_ms=old.from_ms if old is not None and goes_on else draft.now_ms,
    )
    draft.put(meta.replace(frozen=mark))
    return FreezeNoted(now_ms=draft.now_ms, mark=mark)


def thaw(draft: Draft, command: commands.Thaw) -> Outcome:
    """Remove the mark. Nobody could renew since `since_ms`, so that time was an outage. Who goes on from a name that
    was given up has a name of its own: a store that was moved away, and the one that it was moved into."""
    meta, now_ms = draft.meta(), draft.now_ms
    mark = meta.frozen
    if mark is not None and (mark.id != command.id if command.id is not None else mark.incomplete):
        return Frozen(now_ms=now_ms, mark=mark)
    since_ms = command.since_ms
    if mark is None and command.id is not None:
        since_ms = None  # a repeat: the first one recorded the outage
    elif since_ms is None and mark is not None:
        since_ms = mark.at_ms
    if since_ms is not None and since_ms <= now_ms:
        _note_outage(draft, records.Outage(began_ms=since_ms, ended_ms=now_ms))
        meta = draft.meta()
    if mark is not None and mark.incomplete:
        from dibs.core.upkeep.moved import publish  # rare, and it knows webhooks and tokens

        publish(draft, command.brought, adds=mark.adds)
        meta = draft.meta()
    thawed = meta.replace(frozen=None, token_floor=max(meta.token_floor, command.floor))
    if mark is not None and command.moved_from:
        thawed = _goes_on_from(thawed, command.moved_from)
    elif mark is not None and command.fresh_id and not mark.source:
        thawed = _goes_on_from(thawed.replace(store_id=command.fresh_id), (meta.store_id, *meta.moved_from))
    if thawed != meta:
        draft.put(thawed)
    return Thawed(now_ms=now_ms, was_frozen=mark is not None)


def _goes_on_from(meta: records.Meta, names: tuple[str, ...]) -> records.Meta:
    before = dict.fromkeys([*names, *meta.moved_from])
    kept = [name for name in before if name not in ("", meta.store_id)]
    return meta.replace(moved_from=tuple(kept[:MOVES_KEPT]))


# Counts anew what a principal with a limit has: a new count starts at zero, and everything is counted again. A `charge`
# of an older count returns nothing (`quota.py`).


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
                each.replace(charge=take_quota(draft, payer, "held"))
                if _should_count(draft, payer, found.ns, each.principal, each.charge)
                else each
                for each in found.holders
            ]
        )
        if holders != found.holders:
            draft.put(found.replace(holders=holders))
    elif isinstance(found, records.SessionRecord):
        if not found.ended_ms and _should_count(draft, payer, found.ns, found.principal, found.charge):
            draft.put(found.replace(charge=take_quota(draft, payer, "sessions")))
    elif isinstance(found, records.Ticket) and _should_count(draft, payer, found.ns, found.principal, found.charge):
        draft.put(found.replace(charge=take_quota(draft, payer, "waiting")))
    return Counted(now_ms=draft.now_ms)


def _should_count(draft: Draft, payer: str, ns: str | None, principal: str, quota: str | None) -> bool:
    """Return whether something that `principal` has in `ns` belongs to `payer` and is not counted yet."""
    own_ns, _, name = payer.partition("/")
    if principal != name or (own_ns and own_ns != ns):
        return False
    return payer_of(quota) in (None, payer) and not is_current(draft, quota, payer)


_SWEPT = (
    records.LOCK_PREFIX,
    records.SESSION_PREFIX,
    records.CREDENTIAL_PREFIX,
    records.TREE_PREFIX,
    "ticket/",
    records.META_KEY,
)


def is_swept(key: str) -> bool:
    """Return whether `sweep` knows this kind of record. A newer server may keep others, and sweeps them itself."""
    return key.startswith(_SWEPT)


def sweep(draft: Draft, command: commands.Sweep) -> Outcome:
    """Do what is due on one record. A sweep that comes too early, or twice, does nothing."""
    found = draft.get(command.key)
    if isinstance(found, records.LockRecord):
        return _sweep_lock(draft, command.key, found)
    if isinstance(found, records.SessionRecord):
        return _sweep_session(draft, command.key, found)
    if isinstance(found, records.Ticket):
        if ticket_over(draft, found):
            give_up(draft, found, "stopped asking")
        elif found.expires_ms < (deadline := ticket_deadline_ms(draft, found)):
            draft.put(found.replace(expires_ms=deadline))
    elif isinstance(found, records.Tree):
        go_on(draft, found.namespace())
    elif isinstance(found, records.Meta):
        end_closures(draft)
    elif command.key.startswith(records.CREDENTIAL_PREFIX):
        from dibs.core.service.credentials import forget_credential

        forget_credential(draft, command.key)
    return Swept(now_ms=draft.now_ms, key=command.key)


def _sweep_lock(draft: Draft, key: str, lock: records.LockRecord) -> Swept:
    if 0 < lock.delay_until_ms <= draft.now_ms:
        draft.put(lock.replace(delay_until_ms=0))  # it is over; otherwise the record would be due for ever
    lock = refresh(draft, lock.ns, lock.name)
    expired = len([event for event in draft.events if event.kind == events.EXPIRED])
    due_ms = lock.due_ms()
    if not lock.holders and not lock.line and due_ms is not None and due_ms <= draft.now_ms:
        _forget(draft, lock)
        return Swept(now_ms=draft.now_ms, key=key, expired=expired, forgotten=True)
    _write_credit(draft, lock)
    return Swept(now_ms=draft.now_ms, key=key, expired=expired)


def _write_credit(draft: Draft, lock: records.LockRecord) -> None:
    """Write the later deadline of a lease with outage credit: the store's index of due records needs it."""
    holders = tuple(
        [
            holder.replace(expires_ms=max(holder.expires_ms, deadline_ms(draft, holder)))
            if holder.ttl_ms and holder.expires_ms <= draft.now_ms
            else holder
            for holder in lock.holders
        ]
    )
    if holders != lock.holders:
        draft.put(lock.replace(holders=holders))


def _forget(draft: Draft, lock: records.LockRecord) -> None:
    """Delete an idle record. The floor takes over its fencing token, so that the next one still rises."""
    meta = draft.meta()
    if lock.token > meta.token_floor:
        draft.put(meta.replace(token_floor=lock.token))
    draft.drop(lock)
    draft.emit(events.FORGOTTEN, lock.ns, lock.name, token=lock.token)


def _sweep_session(draft: Draft, key: str, session: records.SessionRecord) -> Swept:
    if session.ended_ms:
        if session.holds or session.waits:
            session = finish(draft, session, session.how or records.EXPIRED)
        elif (session.due_ms() or 0) <= draft.now_ms:
            draft.drop(session)
    elif session_over(draft, session):
        session = finish(draft, session, records.EXPIRED)
    elif session.expires_ms < (deadline := session_deadline_ms(draft, session)):
        draft.put(session.replace(expires_ms=deadline))
    return Swept(now_ms=draft.now_ms, key=key, unfinished=bool(session.ended_ms and session.holds))


def raise_floor(draft: Draft, command: commands.RaiseFloor) -> Outcome:
    """Raise the floor, for a store that replaces another whose higher tokens were already seen."""
    meta = draft.meta()
    if command.floor > meta.token_floor:
        meta = meta.replace(token_floor=command.floor)
        draft.put(meta)
    return Raised(now_ms=draft.now_ms, floor=meta.token_floor)


def identify(draft: Draft, command: commands.Identify) -> Outcome:
    """The permanent id of the store. The first server that starts on it sets it."""
    meta = draft.meta()
    if not meta.store_id:
        meta = meta.replace(store_id=command.fresh_id)
        draft.put(meta)
    return Identified(now_ms=draft.now_ms, store_id=meta.store_id, moved_from=meta.moved_from)


# Outages: times in which no server could commit a renewal. How pulses show them, and how they are recorded.
#
# Each server regularly records that it is up: its **pulse**, a separate record for each server. Decisions read another
# record, `Meta`, which is written only when there was an outage. So healthy servers write nothing that another reads.
#
# A pulse says that all time before it is accounted for: either some server could serve, or the time is recorded as an
# outage. A server without a gap since its last pulse does not need the others for that. A server that starts, or was
# stopped or cut off, reads the newest pulse of all others: between that pulse, or the beginning of its own gap, and the
# end of the gap, no server could serve. Until that is recorded it ends nothing that was live when its gap began.


def beat(draft: Draft, command: commands.Beat) -> Outcome:
    """Record that a server is up. If none was up for longer than PULSE_LATE_MS before it, that was an outage. A shorter
    silence before the start of a server stays in doubt until that server's next pulse. So a server that crashes again
    and again, faster than PULSE_LATE_MS, is noticed all the same."""
    for server in command.gone:  # in the same decision that writes a newer pulse, so the newest is never lost
        old = draft.pulse(server)
        if old is not None and _is_old(old, draft.now_ms):
            draft.drop(old)
    now_ms = draft.now_ms
    pulse = records.Pulse(at_ms=now_ms, server=command.server)
    own = draft.pulse(command.server)
    if command.idle or command.alive_since_ms is None:
        draft.put(pulse)
        return BeatRecorded(now_ms=now_ms)
    if draft.meta().frozen is not None:
        draft.discard()
        return BeatRecorded(now_ms=now_ms, frozen=True)
    began_ms = _accounted_ms(draft, own, command)
    if began_ms is None or command.alive_since_ms - began_ms <= PULSE_LATE_MS:
        in_doubt = began_ms is not None and command.alive_since_ms > began_ms
        draft.put(pulse.replace(doubt_ms=began_ms) if in_doubt else pulse)
        return BeatRecorded(now_ms=now_ms)
    draft.put(pulse)
    _note_outage(draft, records.Outage(began_ms=began_ms, ended_ms=now_ms))
    return BeatRecorded(now_ms=now_ms, outage_ms=now_ms - began_ms)


def accounted_ms(pulses: Sequence[records.Pulse]) -> int | None:
    """Up to when it is known whether some server could serve. None: there was never a server."""
    return max([pulse.doubt_ms or pulse.at_ms for pulse in pulses], default=None)


def live_servers(pulses: Sequence[records.Pulse], now_ms: int) -> list[str]:
    """The servers with a recent pulse, in an order that is the same for all of them."""
    return sorted([pulse.server for pulse in pulses if now_ms - pulse.at_ms <= PULSE_LATE_MS])


def gone_servers(pulses: Sequence[records.Pulse], now_ms: int) -> tuple[str, ...]:
    """The servers whose pulse nobody needs any more."""
    return tuple([pulse.server for pulse in pulses if _is_old(pulse, now_ms)])


def _is_old(pulse: records.Pulse, now_ms: int) -> bool:
    return now_ms - pulse.at_ms >= PULSE_KEPT_MS


def _accounted_ms(draft: Draft, own: records.Pulse | None, command: commands.Beat) -> int | None:
    known = [command.heard_ms] if command.heard_ms is not None else []
    if own is not None:
        # It served until its gap began. Its pulses may be older, or have gone on while its batches did not.
        began_ms = own.at_ms if command.doubt_ms is None else command.doubt_ms
        known.append(min(own.doubt_ms or began_ms, began_ms))
    if not known:
        return None
    at_ms = max(known)
    for outage in draft.meta().outages:
        # Another server recorded it at this moment, and its pulse was not read yet; or the store was moved.
        if outage.began_ms - at_ms <= PULSE_LATE_MS:
            at_ms = max(at_ms, outage.ended_ms)
    return at_ms


def _note_outage(draft: Draft, outage: records.Outage) -> None:
    meta = draft.meta()
    draft.put(meta.replace(outages=remember(meta.outages, outage)))
    draft.emit(events.OUTAGE, began_ms=outage.began_ms)


def remember(outages: tuple[records.Outage, ...], outage: records.Outage) -> tuple[records.Outage, ...]:
    """Keep the newest; merge the two oldest when there are too many. The time between them is not added to the lost
    time, so a lease gets at most the credit of both, and never less than it had."""
    kept = [*outages, outage]
    if len(kept) > OUTAGES_KEPT:
        one, two = kept[:2]
        both = records.Outage(
            began_ms=one.began_ms,
            ended_ms=two.ended_ms,
            lost_ms=one.lost() + two.lost(),
            longest_ms=max(one.longest(), two.longest()),
        )
        kept[:2] = [both]
    return tuple(kept)
