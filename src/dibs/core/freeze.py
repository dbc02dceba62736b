"""A store that is being moved. While it is frozen nothing in it changes, so a copy shows one moment.

Every decision looks at the mark, and every commit compares what was looked at: a write that was decided before the
mark was set and comes after it is a conflict. Reading stays possible. Nothing expires meanwhile, and the time counts
as an outage afterwards, so nobody loses a lease because of the move.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import (
    Freeze,
    KeepPlaces,
    Sweep,
    Thaw,
)
from dibs.core.events import Event
from dibs.core.outages import remember
from dibs.core.outcomes import PlacesKept
from dibs.core.records import FreezeMark, Outage
from dibs.core.upkeep_outcomes import FreezeNoted, Frozen, Swept, Thawed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Outcome


def while_frozen(draft: Draft, command: Command, mark: FreezeMark) -> Outcome:
    """The outcome in a frozen store: a server's own upkeep has nothing to do; every other command is refused."""
    if isinstance(command, Sweep):
        return Swept(now_ms=draft.now_ms, key=command.key, frozen=True)
    if isinstance(command, KeepPlaces):
        return PlacesKept(now_ms=draft.now_ms)
    return Frozen(now_ms=draft.now_ms, mark=mark)


def freeze(draft: Draft, command: Freeze) -> Outcome:
    """Set the mark, and replace the mark that the command knows of: its owner finds out with its next write. A repeated
    import keeps the times of the first try, so that it writes the same records again."""
    meta = draft.meta()
    old = meta.frozen
    if old is not None and old.id not in (command.over, command.id):
        return Frozen(now_ms=draft.now_ms, mark=old)
    goes_on = old is not None and old.incomplete and old.source == command.source
    mark = FreezeMark(
        at_ms=old.at_ms if old is not None else draft.now_ms,
        id=command.id,
        incomplete=command.incomplete,
        source=command.source,
        adds=command.adds,
        from_ms=old.from_ms if old is not None and goes_on else draft.now_ms,
    )
    draft.put(meta.replace(frozen=mark))
    return FreezeNoted(now_ms=draft.now_ms, mark=mark)


def thaw(draft: Draft, command: Thaw) -> Outcome:
    """Remove the mark. Nobody could renew since `since_ms`, so that time was an outage."""
    meta, now_ms = draft.meta(), draft.now_ms
    mark = meta.frozen
    if mark is not None and (mark.id != command.id if command.id is not None else mark.incomplete):
        return Frozen(now_ms=now_ms, mark=mark)
    since_ms = command.since_ms
    if mark is None and command.id is not None:
        since_ms = None  # a repeat: the first one recorded the outage
    elif since_ms is None and mark is not None:
        since_ms = mark.at_ms
    outages = meta.outages
    if since_ms is not None and since_ms <= now_ms:
        outages = remember(outages, Outage(began_ms=since_ms, ended_ms=now_ms))
        draft.tell(Event(at_ms=now_ms, kind=events.OUTAGE, began_ms=since_ms))
    thawed = meta.replace(frozen=None, outages=outages, token_floor=max(meta.token_floor, command.floor))
    if thawed != meta:
        draft.put(thawed)
    return Thawed(now_ms=now_ms, was_frozen=mark is not None)
