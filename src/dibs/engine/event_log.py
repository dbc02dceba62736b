"""Reads the store's events a page at a time, and notices what was pruned meanwhile. Nothing here writes an event.

The numbers of the events are the store's, so a position of one server is good at every other, and without a server.

**Numbers repeat**: a store that was replaced by a copy by other means than ours, or a database that lost commits in a
failover, gives the same numbers again. So who stays and reads on knows its position by the event that it read last,
reads that one with those that follow, and compares (`is_same`).
"""

from __future__ import annotations

from collections.abc import Iterable

from dibs.base.record import Record
from dibs.core.events import Event
from dibs.core.limits import EVENTS_KEPT_MAX, LIST_LOOKS_MAX, LIST_PAGE_DEFAULT, PAGE_CHARS_MAX
from dibs.stores.port import Store


class EventPage(Record):
    """The events that follow a position. `upto` is the position after this page. `oldest` is set if events after the
    asked position were pruned: the number of the oldest event that the store has, or will have next."""

    events: list[Event]
    upto: int
    is_last: bool
    oldest: int | None = None


class EventFilter(Record):
    """The events of jobs in one namespace: of one job, or of those whose name begins with `prefix`."""

    ns: str
    prefix: str = ""
    name: str | None = None

    def takes(self, event: Event) -> bool:
        if event.ns != self.ns or not event.job:
            return False
        return event.job.startswith(self.prefix) if self.name is None else event.job == self.name


def is_same(one: Event, other: Event) -> bool:
    """Return whether two events with one number are one event, as far as matters to whoever counts or reports them."""
    return _fields(one) == _fields(other)


def _fields(event: Event) -> tuple[int, str, str, str, str, str, int, int]:
    name = event.kind, event.ns, event.job
    return event.at_ms, *name, event.owner, event.principal, event.token, event.ticket


def read_on(store: Store, after: int, limit: int, known: Event | None) -> EventPage:
    """The next events after a position, whose event is `known`. If the store has another one there, it has another
    past: the page begins with that event, and with a gap."""
    if known is None or known.seq != after or not store.capabilities.gapless:
        return read_page(store, after, limit)
    found = store.events(after - 1, limit + 1)
    if not found or found[0].seq != after:
        return read_page(store, after, limit)  # it was pruned, or the store's numbers end before it
    if not is_same(found[0], known):
        return _page_of(store, after - 1, limit, found[:limit]).replace(oldest=after)
    if len(found) == 1:
        return EventPage(events=[], upto=after, is_last=True)
    return _page_of(store, after, limit, found[1:])


def read_page(store: Store, after: int, limit: int, wanted: EventFilter | None = None) -> EventPage:
    """The next `limit` events after a position, or of these the wanted ones. Of one job, only those are read."""
    job = None if wanted is None or wanted.name is None else (wanted.ns, wanted.name)
    before = after if job is None else max(after, store.newest_seq())  # what is read now includes all up to here
    return _page_of(store, after, limit, store.events(after, limit, job), wanted, before)


def _page_of(
    store: Store, after: int, limit: int, found: list[Event], wanted: EventFilter | None = None, before: int = 0
) -> EventPage:
    """Make a page of what was read. `before`: all up to this number was read."""
    job = None if wanted is None else wanted.name
    is_last, oldest = len(found) < limit, None
    if job is None and store.capabilities.gapless and found:
        if found[-1].seq - found[0].seq + 1 != len(found):
            # The store was restored from a backup. The next page begins behind the missing numbers, and reports them as
            # a gap.
            is_last, found = False, [event for at, event in enumerate(found) if event.seq == found[0].seq + at]
        oldest = found[0].seq if found[0].seq > after + 1 else None
    elif not found or found[0].seq > after + 1:
        oldest = _oldest_beyond(store, after)
        if oldest is not None and found and oldest > after:
            oldest = min(oldest, found[0].seq)  # more may have been pruned since
    if job is not None and store.capabilities.gapless:
        marks = [after if oldest is None else oldest - 1, *(event.seq for event in found)]
        for at, end in enumerate((*marks[1:], *((before,) if is_last else ()))):
            following = _after_skipped(store, marks[at], end)
            if following is not None and not at and oldest is None:
                oldest = following
            elif following is not None:  # as above
                is_last, found = False, found[:at]
                break
    upto = found[-1].seq if found else after
    if is_last:
        upto = max(upto, before)
    if oldest is not None and not found:
        upto = oldest - 1 if oldest <= after else max(upto, oldest - 1)
    kept = found if wanted is None else [event for event in found if wanted.takes(event)]
    return EventPage(events=kept, upto=upto, is_last=is_last, oldest=oldest)


def fitting(sizes: Iterable[int]) -> int:
    """Count the first items that fit on one page, by the texts of callers in each: one at least."""
    total = count = 0
    for size in sizes:
        total += size
        if count and total > PAGE_CHARS_MAX:
            break
        count += 1
    return count


def text_of(event: Event) -> int:
    return sum([len(text) for text in (event.metadata, event.checkpoint, event.result) if text is not None])


def newest_fitting(events: list[Event]) -> list[Event]:
    return events[len(events) - fitting([text_of(event) for event in reversed(events)]) :]


def collect(store: Store, wanted: EventFilter, after: int | None, limit: int) -> EventPage:
    """The first wanted events after a position; without one, the wanted of the newest events. LIST_LOOKS_MAX events are
    looked at in one call, and long ones fill a page: then it may be short, and `upto` says where to continue."""
    if after is None:
        job = None if wanted.name is None else (wanted.ns, wanted.name)
        most = limit if job is not None else max(limit, LIST_PAGE_DEFAULT)
        newest = store.events(0, most, job, newest=True)
        found = [event for event in newest if wanted.takes(event)][-limit:]
        return EventPage(
            events=newest_fitting(found), upto=newest[-1].seq if newest else store.newest_seq(), is_last=True
        )
    page = read_page(store, after, LIST_PAGE_DEFAULT, wanted)
    found, oldest, looked = list(page.events), page.oldest, LIST_PAGE_DEFAULT
    most = fitting(map(text_of, found))
    while most == len(found) < limit and looked < LIST_LOOKS_MAX and not page.is_last:
        following = read_page(store, page.upto, LIST_PAGE_DEFAULT, wanted)
        if following.oldest is not None:  # the next call begins with this gap
            return EventPage(events=found, upto=page.upto, is_last=False, oldest=oldest)
        page = following
        found += page.events
        looked += LIST_PAGE_DEFAULT
        most = fitting(map(text_of, found))
    most = min(most, limit)
    if len(found) > most:
        return EventPage(events=found[:most], upto=found[most - 1].seq, is_last=False, oldest=oldest)
    return EventPage(events=found, upto=page.upto, is_last=page.is_last, oldest=oldest)


def _oldest_beyond(store: Store, after: int) -> int | None:
    """The number of the oldest event that is left, if it does not follow `after` at once. A store that was replaced by
    an older copy has only lower numbers: then the number that it gives next."""
    gapless = store.capabilities.gapless
    if not after and not gapless:
        return None  # its numbers do not begin with 1, and 0 is not the position of anybody who has read
    last = store.newest_seq()  # first: an event that comes between the two looks must not pass for a pruned one
    first = store.events(after if gapless else 0, 1)
    if first and first[0].seq > after + 1:
        return first[0].seq
    return last + 1 if last < after or (not first and last > after) else None


def _after_skipped(store: Store, low: int, high: int) -> int | None:
    """The number of the first event after those that a restore or an import skipped between two numbers, or of the next
    one to come. They are many more than there are events on either side, so that the middle is one of them."""
    if high - low <= EVENTS_KEPT_MAX:
        return None
    middle = (low + high) // 2
    found = store.events(middle, 1)
    if not found:
        return high + 1
    return found[0].seq if found[0].seq > middle + 1 else None


def position_at(store: Store, at_ms: int) -> int:
    """The position before the first event at or after a time. Events are in the order of their times."""
    first, last = store.events(0, 1), store.events(0, 1, newest=True)
    if not first or not last or last[0].at_ms < at_ms:
        return store.newest_seq()
    low, high = first[0].seq - 1, last[0].seq - 1
    while low < high:
        middle = (low + high) // 2
        found = store.events(middle, 1)
        if not found:  # all were pruned meanwhile
            return store.newest_seq()
        event = found[0]
        if event.at_ms < at_ms:
            low = event.seq
        else:
            high = middle
    return low
