"""The part of the simulation's checker that knows queues: who came when, who was passed over, who waits for what is
free, who was answered late, whose place is no longer the one it was.

It looks at events, records and answers, and knows none of the rules. Where it is in doubt whether somebody may be
served it says nothing: a false alarm costs more trust than a bug that another world finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

from dibs.core import events as kinds
from dibs.core.commands import Acquire, AcquireAll, AcquireTerms, Leave, Withdraw
from dibs.core.events import Event
from dibs.core.outcomes import Granted, GrantedAll, Outcome, Queued
from dibs.core.records import EXCLUSIVE, SHARED, LockRecord, SessionRecord, Stored, Ticket, session_key, ticket_key
from dibs.engine.coordinator import Result

NS = "default"
KEPT_MS = 10_000  # a place whose caller asks again so soon is the same, also at another server
IDLE_MS_MAX = 4_000  # how long a job may be free with somebody first in the queue: sweeps, and a server that takes over
ANSWER_LATE_MS_MAX = 6_500  # a server looks after its waiters every TICKET_KEEP_MS, if it missed all news
TICKETS_MAX = 40  # that one ask may take, and as many times TICKETS_A_REQUEST as it sent requests
TICKETS_A_REQUEST = 10
# Why a place may go although its caller is there: it is answered so, or may come again.
TAKEN_AWAY = frozenset((None, "left", "answered", "stopped asking"))

Puts = Mapping[str, Stored | None]


def overlap(one: str, other: str) -> bool:
    """Return whether two names cover a common path. A name outside of a tree covers only itself."""
    if one == other or not (one.startswith("path:") and other.startswith("path:")):
        return one == other
    return all(left == right for left, right in zip(one[5:].split("/"), other[5:].split("/"), strict=False))


def covers(closed: str, job: str) -> bool:
    """Return whether a closure of that name, or of all below it, concerns the job."""
    return overlap(closed, job) or (closed.endswith("/") and job.startswith(closed))


class Arrival(NamedTuple):
    """A place in a queue, by the event that made it."""

    came: int  # the smaller, the sooner
    mode: str
    owner: str


class QueueChecker:
    """`say` takes a promise and a sentence. `now` gives a record, as it is or as a commit is about to write it."""

    def __init__(self, say: Callable[[str, str], None], now: Callable[[str, Puts], Stored | None]) -> None:
        self._say, self._now = say, now
        self._numbers = count()
        self.queues: dict[str, dict[int, Arrival]] = {}
        self._served_ms: dict[tuple[str, int], int] = {}
        self._why: dict[tuple[str, int], str | None] = {}  # of places that left
        self._seen_ms: dict[str, int] = {}  # by the proof of a place: when the answer was made that named it
        self._away_ms: dict[str, int] = {}  # by the proof of a place: when its caller hung up to go elsewhere
        self._given_up: set[str] = set()  # proofs and request keys of places that their callers may have left
        self._taken: Counter[str] = Counter()  # places by owner
        self._asks: Counter[str] = Counter()
        self._idle_ms: dict[str, int] = {}  # since when it could be served
        self.refused: dict[str, str] = {}  # by request key: the last answer to its caller, if not the job or a place

    def queue(self, job: str) -> dict[int, Arrival]:
        return self.queues.setdefault(job, {})

    def follow(self, event: Event, now_ms: int) -> None:
        queue = self.queue(event.job)
        if event.kind == kinds.QUEUED:
            queue[event.ticket] = Arrival(next(self._numbers), event.mode or EXCLUSIVE, event.owner or "")
        elif event.kind in (kinds.ACQUIRED, kinds.LEFT) and event.ticket:
            queue.pop(event.ticket, None)
            if event.kind == kinds.ACQUIRED:
                self._served_ms[event.job, event.ticket] = now_ms
            else:
                self._why[event.job, event.ticket] = event.reason

    # What clients ask and read

    def sends(self, command: AcquireTerms | Leave | Withdraw) -> None:
        if isinstance(command, Leave):
            self._given_up.add(command.ticket_id)
        elif isinstance(command, Withdraw):  # of two asks of a session at one place, either may give it up
            self._given_up.update(filter(None, (command.ticket_id, command.request_key)))
        else:
            self._asks[command.owner] += 1

    def hangs_up(self, command: AcquireTerms, now_ms: int, *, moves: bool) -> None:
        """Its caller goes away. Unless it goes to another server, it leaves the queue."""
        if not moves:
            self._given_up.update(filter(None, (command.ticket_id, command.request_key)))
        elif command.ticket_id is not None:
            self._away_ms[command.ticket_id] = now_ms

    def takes(self, event: Event) -> None:
        """A place is taken. If one ask takes many, a server asks again and again for somebody who sleeps."""
        owner = event.owner or ""
        self._taken[owner] += 1
        if self._taken[owner] > TICKETS_MAX + TICKETS_A_REQUEST * self._asks[owner]:
            said = f"{owner} asked {self._asks[owner]} times, and was put in line {self._taken[owner]} times"
            self._say("queue:one-wake", f"{said}, the last time for {event.job}: a server asks without end.")

    def heard(self, client: str, command: AcquireTerms, result: Result) -> None:
        """A caller that asks with its ticket has its place, unless it was away for long."""
        if isinstance(result, Outcome) and not isinstance(result, Queued | Granted | GrantedAll):
            self.refused[command.request_key or ""] = type(result).__name__.lower()
        if not isinstance(result, Queued) or not isinstance(command, Acquire | AcquireAll):
            return
        before, known_ms = command.ticket_id, self._seen_ms.get(command.ticket_id or "")
        self._seen_ms[result.ticket_id] = result.now_ms
        if known_ms is None or before is None or before == result.ticket_id:
            return
        job = command.names[0] if isinstance(command, AcquireAll) else command.name
        was = job, command.ticket
        why = self._why.get(was)
        if why in ("left", "answered"):  # somebody took it away: as long as its caller was there, it had it
            known_ms = max(known_ms, self._away_ms.get(before, 0))
        if was in self._served_ms or why not in TAKEN_AWAY or result.now_ms - known_ms > KEPT_MS:
            return
        if self._given_up.isdisjoint(filter(None, (before, command.request_key))):
            said = f"{client} stood in line for {job} at place {command.ticket}, asked again with its ticket after "
            said += f"{result.now_ms - known_ms} ms, and was told of place {result.ticket}: "
            self._say("queue:fifo", f"{said}others are ahead of it now who came after it.")

    # What a commit writes

    def passed_over(self, event: Event, puts: Puts, is_related: Callable[[str], bool]) -> str:
        """Name somebody who waits for what overlaps the job of a new owner, came before it, and was passed over.
        `is_related` says of a session that it does not keep the new owner out."""
        mine = self.queue(event.job).get(event.ticket)
        came = mine.came if mine is not None and event.ticket else next(self._numbers)
        for name, queue in self.queues.items():
            for number, arrival in queue.items() if overlap(name, event.job) else ():
                if arrival.came >= came or EXCLUSIVE not in (arrival.mode, event.mode):
                    continue
                ticket = self._now(ticket_key(NS, name, number), puts)
                if not isinstance(ticket, Ticket) or ticket.expires_ms <= event.at_ms:
                    continue
                if ticket.session is None or not is_related(ticket.session):
                    return f"{arrival.owner}, who waits for {name} at place {number}"
        return ""

    # What is true from time to time

    def look(self, world: QueueRecords, now_ms: int, well_since_ms: int | None) -> None:
        """`well_since_ms`: since when some server could serve all the time; None: since a moment ago at most."""
        idle: dict[str, int] = {}
        for ticket in world.tickets():
            if self._is_free(world, ticket, now_ms):
                idle[ticket.lease_id] = since_ms = self._idle_ms.get(ticket.lease_id, now_ms)
                if well_since_ms is not None and now_ms - max(since_ms, well_since_ms) > IDLE_MS_MAX:
                    names = " and ".join(_names(ticket))
                    said = f"{names} could be given to {ticket.owner}, who is first in line, for {now_ms - since_ms} ms"
                    self._say("queue:one-wake", f"{said}, and nobody did: a lost wake-up.")
        self._idle_ms = idle

    def _is_free(self, world: QueueRecords, ticket: Ticket, now_ms: int) -> bool:
        """Return whether nothing at all is in the way of this place."""
        if ticket.expires_ms <= now_ms or ticket.stopped or ticket.charge is not None:
            return False
        session = self._now(session_key(ticket.session), {}) if ticket.session is not None else None
        if isinstance(session, SessionRecord) and (session.ended_ms or session.expires_ms <= now_ms):
            return False
        parts = [(part.name, part.number) for part in ticket.whole] or [(ticket.name, ticket.number)]
        return all(self._is_part_free(world, ticket, name, number, now_ms) for name, number in parts)

    def _is_part_free(self, world: QueueRecords, ticket: Ticket, name: str, number: int, now_ms: int) -> bool:
        mine = self.queue(name).get(number)
        if mine is None or world.is_closed(name, now_ms):
            return False
        for other, queue in self.queues.items():
            if overlap(other, name) and any(each.came < mine.came for each in queue.values()):
                return False
        for lock in world.locks():
            if overlap(lock.name, name):
                if lock.parked or lock.done or lock.acl or lock.delay_until_ms > now_ms:
                    return False
                if lock.name != name and lock.holders:
                    return False
        own = world.lock(name)
        if own is None:
            return False
        taken = sum(len(each.slot_numbers) for each in own.holders)
        if own.pooled and not all(each.slot_numbers for each in own.holders):
            return False  # one that had it before it was a pool has all of it
        if own.pooled:
            return ticket.mode == EXCLUSIVE and ticket.slots in (0, own.slots) and taken + ticket.units <= own.slots
        if not own.holders:
            return ticket.units <= (ticket.slots or 1)
        if ticket.slots and ticket.slots == own.slots:
            return all(each.slot_numbers for each in own.holders) and taken + ticket.units <= own.slots
        return ticket.mode == SHARED and all(each.mode == SHARED for each in own.holders)

    def answered_late(self, job: str, number: int, owner: str, since_ms: int, now_ms: int) -> None:
        """`owner` waits at a server that has been well since then, and has no answer yet."""
        served_ms = self._served_ms.get((job, number))
        if served_ms is not None and now_ms - max(served_ms, since_ms) > ANSWER_LATE_MS_MAX:
            said = f"{owner} was given {job} {now_ms - served_ms} ms ago, still waits for the answer"
            self._say("queue:one-wake", f"{said}, and its server was well all the time.")


class QueueRecords:
    """The records that a look needs."""

    def __init__(self, locks: Iterable[LockRecord], tickets: Iterable[Ticket], closed: Mapping[str, int]) -> None:
        self._locks = {each.name: each for each in locks}
        self._tickets = list(tickets)
        self._closed = closed

    def tickets(self) -> Iterator[Ticket]:
        """One for each claim that waits, also if it waits in several queues."""
        for each in self._tickets:
            if not each.whole or (each.whole[0].name, each.whole[0].number) == (each.name, each.number):
                yield each

    def locks(self) -> Iterable[LockRecord]:
        return self._locks.values()

    def lock(self, name: str) -> LockRecord | None:
        return self._locks.get(name)

    def is_closed(self, name: str, now_ms: int) -> bool:
        return any(
            until_ms > now_ms - IDLE_MS_MAX and covers(closed, name) for closed, until_ms in self._closed.items()
        )


def _names(ticket: Ticket) -> list[str]:
    return [part.name for part in ticket.whole] or [ticket.name]
