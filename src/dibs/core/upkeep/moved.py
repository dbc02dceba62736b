"""A record for another store, which has another clock and other event numbers, and does not know of earlier outages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dibs.base.cheap import Mapping, Sequence
from dibs.core.draft import Draft
from dibs.core.events import IMPORTED
from dibs.core.holds.max_hold import capped_ms
from dibs.core.holds.outage_credit import credited_ms
from dibs.core.limits import TICKET_MS
from dibs.core.records import LockRecord, Meta, Outage, SessionRecord, Stored, Ticket, shifted
from dibs.core.service.credentials import CredentialRegister, Usage
from dibs.core.service.webhooks import DeadLetters, Lane, Webhook, WebhookProgress, WebhookRegister


def moved(record: Stored, outages: tuple[Outage, ...], by_ms: int) -> Stored:
    """`record` for a store that is `by_ms` later. Leases, sessions, places, done marks and delays have as much time
    left as they had: their instants move, and the credit that they have for `outages` is written into their deadlines.
    Everything else keeps its dates. A token that expires tomorrow does so however late the copy is used."""
    if isinstance(record, LockRecord):
        holders = [
            each.replace(
                expires_ms=capped_ms(credited_ms(each.expires_ms, each.renewed_ms, each.ttl_ms, outages), each.ends_ms)
            )
            if each.ttl_ms
            else each  # it lives as long as its session
            for each in record.holders
        ]
        return shifted(record.replace(holders=tuple(holders)), by_ms)
    if isinstance(record, SessionRecord | Ticket):
        ttl_ms = TICKET_MS if isinstance(record, Ticket) else record.ttl_ms
        expires_ms = credited_ms(record.expires_ms, record.renewed_ms, ttl_ms, outages)
        return shifted(record.replace(expires_ms=expires_ms), by_ms)
    return record


def publish(draft: Draft, brought: Sequence[tuple[str, Stored]], *, adds: bool) -> None:
    """The last write of an import: what the store may have as well, and the event by which its servers learn of it. So
    an import that was killed has brought no token, webhook, closure or count."""
    draft.need(*[key for key, _ in brought])
    for key, record in brought:
        draft.write(key, merged(draft.get(key), record, adds=adds))
    draft.emit(IMPORTED)


def merged(own: Stored | None, brought: Stored, *, adds: bool) -> Stored:
    """Of two records a store keeps its own. Registers name what both have, and change, so that servers look. Counts are
    added up: `relabelled` has let the records count here."""
    if own is None:
        return brought
    if isinstance(own, Meta) and isinstance(brought, Meta):
        there = {(each.ns, each.name) for each in own.closures}
        closures = [each for each in brought.closures if (each.ns, each.name) not in there]
        return own.replace(closures=(*own.closures, *closures), outages=brought.outages or own.outages)
    if isinstance(own, WebhookRegister) and isinstance(brought, WebhookRegister):
        known = {each.id for each in own.entries}
        entries = (*own.entries, *[each for each in brought.entries if each.id not in known])
        return WebhookRegister(changes=own.changes + 1, entries=entries)
    if isinstance(own, CredentialRegister) and isinstance(brought, CredentialRegister):
        return CredentialRegister(changes=own.changes + 1)  # it names none of them: all are read
    if isinstance(own, Usage) and isinstance(brought, Usage):
        held, waiting = own.held + brought.held, own.waiting + brought.waiting
        return own.replace(held=held, waiting=waiting, sessions=own.sessions + brought.sessions)
    return own if adds or not isinstance(brought, Webhook | WebhookProgress | DeadLetters) else brought


def relabelled(record: Stored, quotas: Mapping[str, str]) -> Stored:
    """`record` with each `charge` as in the store that it comes to, by those that it has. One that is not among them is
    of an older count, and counts nowhere."""
    if isinstance(record, LockRecord):
        holders = [each.replace(charge=_quota(each.charge, quotas)) for each in record.holders]
        return record.replace(holders=tuple(holders))
    if isinstance(record, Ticket | SessionRecord):
        return record.replace(charge=_quota(record.charge, quotas))
    return record


def _quota(quota: str | None, quotas: Mapping[str, str]) -> str | None:
    return None if quota is None else quotas.get(quota)


class Renumbering:
    """Finds where a webhook continues when events have other numbers: `new` in the place of `old`, in order, and never
    lower. `next_old` and `next_new` are the numbers that come next. `gap`: numbers that are not used are reported to
    its target, because no reader of the events would notice."""

    def __init__(
        self, old: Sequence[int], new: Sequence[int], next_old: int, next_new: int, gap: tuple[int, int] | None = None
    ) -> None:
        self._old = old
        self._new = new
        self._next_old = next_old
        self._next_new = next_new
        self._gap = gap

    def of(self, record: Stored) -> Stored:
        if isinstance(record, Webhook) and record.replay_after >= 0:
            return record.replace(replay_after=self._position(record.replay_after))
        if isinstance(record, WebhookProgress):
            lanes = [self._lane(each) for each in record.lanes]
            moved_on = record.replace(at=self._position(record.at), lanes=tuple(lanes), until_ms=0)
            return moved_on if self._gap is None else _with_gap(moved_on, *self._gap)
        if isinstance(record, DeadLetters):
            letters = [each.replace(seq=self._number(each.seq)) for each in record.letters]
            return DeadLetters(letters=tuple(letters))
        return record

    def _position(self, after: int) -> int:
        """The position before the first event after `after`. It stays if events between were pruned: a gap."""
        first = self._old[0] if self._old else self._next_old
        new_first = self._new[0] if self._new else self._next_new
        if after + 1 < first:
            return max(after, min(1, new_first - 2))  # 0 would ask for all that is there, and miss nothing
        index = bisect_right(self._old, after)
        return (self._new[index] if index < len(self._new) else self._next_new) - 1

    def _lane(self, lane: Lane) -> Lane:
        if not lane.job:  # it reports a gap
            return lane.replace(until_ms=0)
        index = bisect_right(self._old, lane.last)
        last = self._new[index - 1] if index else lane.last
        return lane.replace(after=self._position(lane.after), last=last, until_ms=0)

    def _number(self, seq: int) -> int:
        index = bisect_left(self._old, seq)
        return self._new[index] if index < len(self._old) and self._old[index] == seq else seq


def without_history(record: Stored, last: int) -> Stored:
    """A webhook's record for a store that does not get the history. It begins after the event `last`, and a gap reports
    what its target is not sent."""
    if isinstance(record, Webhook) and record.replay_after >= 0:
        return record.replace(replay_after=last)
    if isinstance(record, WebhookProgress):
        after = min([record.at, *[lane.after for lane in record.lanes]])
        return _with_gap(record.replace(at=last, lanes=(), until_ms=0), after, last)
    return record


def _with_gap(progress: WebhookProgress, after: int, last: int) -> WebhookProgress:
    """`progress` with a gap to report: nothing that follows has a number between these two."""
    known = [lane for lane in progress.lanes if not lane.job]
    gap = Lane(job="", after=min([after, *[lane.after for lane in known]]), last=last)
    lanes = [lane for lane in progress.lanes if lane.job]
    return progress.replace(lanes=(gap, *lanes), gaps=progress.gaps + 1)
