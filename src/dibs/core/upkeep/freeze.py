"""Freezing a store to move it, and going on: the promises `move:whole` and `move:live`.

While a store is frozen nothing in it changes, so a copy shows one moment.

Every decision looks at the mark, and every commit compares what was looked at: a write that was decided before the
mark was set and comes after it is a conflict. Looking stays possible. Nothing expires meanwhile, and the time counts
as an outage afterwards, so nobody loses a lease because of the move.

**A store that is frozen to be moved gives up its name.** A store that goes on from it has a new name and lists the
ones before: the store that it is imported into, and also the old one, if it is thawed. A client that knows the old name
goes on with whichever of the two it hears first, and from then on takes the other for what it is, another store. A
copy of a store that was not frozen lists none.
"""

from __future__ import annotations

from dibs.core import commands, records
from dibs.core.draft import Draft
from dibs.core.lease_outcomes import FreezeNoted, Frozen, Identified, Raised, Swept, Thawed
from dibs.core.limits import MOVES_KEPT
from dibs.core.outcomes import Outcome, TicketsKept
from dibs.core.upkeep.outages import note_outage


def while_frozen(draft: Draft, command: commands.Command, mark: records.FreezeMark) -> Outcome | None:
    """The outcome in a frozen store: a server's own upkeep has nothing to do; every other command is refused, and so is
    a look while an import is not complete: a job that is not there yet would look free, and a session over. None: the
    rule of the command answers."""
    if isinstance(command, (commands.Inspect, commands.InspectSession)) and not mark.incomplete:
        return None
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
        note_outage(draft, records.Outage(began_ms=since_ms, ended_ms=now_ms))
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
