"""A record for another store, which has another clock and other event numbers, and does not know of earlier outages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dibs.base.cheap import Sequence
from dibs.core.credentials import CredentialRegister
from dibs.core.expiry import capped_ms, credited_ms
from dibs.core.limits import TICKET_MS
from dibs.core.records import LockRecord, Outage, SessionRecord, Stored, Ticket, shifted
from dibs.core.webhooks import DeadLetters, Lane, Webhook, WebhookProgress, WebhookRegister


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


def merged(own: Stored | None, brought: Stored) -> Stored:
    """Of two records a store keeps its own. Registers name what both have, and change, so that servers look."""
    if own is None:
        return brought
    if isinstance(own, WebhookRegister) and isinstance(brought, WebhookRegister):
        known = {each.id for each in own.entries}
        entries = (*own.entries, *[each for each in brought.entries if each.id not in known])
        return WebhookRegister(changes=own.changes + 1, entries=entries)
    if isinstance(own, CredentialRegister) and isinstance(brought, CredentialRegister):
        return CredentialRegister(changes=own.changes + 1)  # it names none of them: all are read
    return own


class Renumbering:
    """Finds where a webhook continues when events have other numbers: `new` in the place of `old`, in order, and never
    lower. `next_old` and `next_new` are the numbers that come next."""

    def __init__(self, old: Sequence[int], new: Sequence[int], next_old: int, next_new: int) -> None:
        self._old = old
        self._new = new
        self._next_old = next_old
        self._next_new = next_new

    def of(self, record: Stored) -> Stored:
        if isinstance(record, Webhook) and record.replay_after >= 0:
            return record.replace(replay_after=self._position(record.replay_after))
        if isinstance(record, WebhookProgress):
            lanes = [self._lane(each) for each in record.lanes]
            return record.replace(at=self._position(record.at), lanes=tuple(lanes), until_ms=0)
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
        if not lane.job:  # it tells of a gap
            return lane.replace(until_ms=0)
        index = bisect_right(self._old, lane.last)
        last = self._new[index - 1] if index else lane.last
        return lane.replace(after=self._position(lane.after), last=last, until_ms=0)

    def _number(self, seq: int) -> int:
        index = bisect_left(self._old, seq)
        return self._new[index] if index < len(self._old) and self._old[index] == seq else seq


def without_history(record: Stored, last_old: int, last: int) -> Stored:
    """A webhook's record for a store that does not get the history, whose last event was `last_old`. It begins after
    the event `last`, and its target is told what it is not sent."""
    if isinstance(record, Webhook) and record.replay_after >= 0:
        return record.replace(replay_after=last)
    if isinstance(record, WebhookProgress):
        after = min([record.at, *[lane.after for lane in record.lanes]])
        gap = (Lane(job="", after=after, last=last_old),) if after < last_old else ()
        return record.replace(at=last, lanes=gap, until_ms=0, gaps=record.gaps + len(gap))
    return record
