"""Callers whose answer comes later: they wait in a queue of the store, and this server waits with them.

Everything here runs on the event loop's thread. A caller that is queued is parked under its place (namespace, job,
ticket). Only the hand-over that names this place wakes it. A commit of this server reports hand-overs to
`on_handed_over`; commits of other processes arrive as events at `on_events`. Before those are read, a store may say
that the ticket is gone (`on_gone`): then one look says whether the job is the caller's.

The place itself is a record of the store. The waiters here keep their places alive, and answer with position and ticket
when the wait times out, so that a caller can come back.

The claim of a caller that hangs up is withdrawn (`core/claims/withdraw.py`), unless the caller has other servers: it
may be on its way to one of them, or wait there already. Then its place ends by silence, or the caller withdraws it. A
job that was handed over stays with a request key, which can ask for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dibs.base.errors import Unavailable
from dibs.base.logger import log
from dibs.core import events as kinds
from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Command, KeepTickets, Withdraw
from dibs.core.draft import HandedOver
from dibs.core.events import Event
from dibs.core.lease_outcomes import Frozen
from dibs.core.limits import KEEP_BATCH_MAX, SHUTDOWN_MS_MAX, TICKET_KEEP_MS
from dibs.core.outcomes import Granted, GrantedAll, Outcome, Queued, TicketsKept
from dibs.core.records import ticket_key
from dibs.engine.coordinator import undo_of
from dibs.engine.metrics import Metrics
from dibs.stores.waiters import mark_of

Result = Outcome | BaseException
TicketRef = tuple[str, str, int]


class _Timer(Protocol):
    def cancel(self) -> None: ...


# A part of the server's time to stop: even if the store hangs, waiters must get their tickets.
LAST_WORD_MS = SHUTDOWN_MS_MAX // 5
_NOWHERE: TicketRef = ("", "", 0)


class Waiter:
    """One caller. Its connection reports that it hung up (`cancel`), or that it wants an answer now (`hurry`)."""

    __slots__ = (
        *("_answer", "_has_hung_up", "_waiters"),
        *("command", "gone", "moves", "ticket", "queued", "timer", "wait_ms"),
    )

    def __init__(
        self,
        waiters: Waiters,
        command: Acquire | AcquireAll,
        wait_ms: int,
        answer: Callable[[Result], bool],
        has_hung_up: Callable[[], bool] | None,
    ) -> None:
        self._waiters = waiters
        self._has_hung_up = has_hung_up
        self._answer: Callable[[Result], bool] | None = answer
        self.command = command
        self.wait_ms = wait_ms
        self.moves = has_hung_up is not None  # hanging up does not say that its caller gives up
        self.ticket: TicketRef | None = None
        self.queued: Queued | None = None  # its last known place
        self.timer: _Timer | None = None
        self.gone = False

    def cancel(self) -> None:
        if self._answer is not None and not self.gone:
            self.gone = True
            self._waiters.abandon(self)

    def is_gone(self) -> bool:
        return self.gone or (self._has_hung_up is not None and self._has_hung_up())

    def hurry(self) -> None:
        self._waiters.on_timeout(self)

    def finish(self, result: Result) -> None:
        """Answer, once."""
        if self.timer is not None:
            self.timer.cancel()
        self._waiters.forget(self)
        answer, self._answer = self._answer, None
        if answer is not None and not self.gone and not answer(result):
            self._waiters.on_not_taken(self, result)


class Waiters:
    """`post` has a command decided (`Batcher.post`), `later` is the event loop's `call_later`. `on_first` is called
    when the first caller is parked: from then on the store is watched closely for hand-overs by others."""

    def __init__(
        self,
        post: Callable[..., None],
        later: Callable[..., _Timer],
        on_first: Callable[[], object] = lambda: None,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._post = post
        self._later = later
        self._on_first = on_first
        self._parked: dict[TicketRef, Waiter] = {}
        self._marks: dict[str, TicketRef] = {}  # of tickets in the store; two may share one
        self._asking: dict[Waiter, None] = {}  # those who were parked and ask again
        self._open: dict[tuple[str, str, str | None], set[Waiter]] = {}  # of each ask with a key, its requests here
        self._lost: set[Waiter] = set()  # who lost a place and asked again since the last round of keeping places
        self._keeping = False
        self.is_closed = False  # it keeps nobody waiting any more: callers get their position at once

    def __len__(self) -> int:
        return len(self._parked)

    def ask(
        self,
        command: Acquire | AcquireAll,
        wait_ms: int,
        answer: Callable[[Result], bool],
        *,
        has_hung_up: Callable[[], bool] | None = None,
    ) -> Waiter:
        """Claim, and wait in the queue for up to `wait_ms`. `answer` is called once, on the event loop; it returns
        whether the caller was still there. `has_hung_up` is for a caller that may go on to another server and closes
        the connection then: it sees that before the loop does, and its claim is not withdrawn."""
        waiter = Waiter(self, command, wait_ms, answer, has_hung_up)
        if command.request_key is not None:
            self._open.setdefault(_name_of(command), set()).add(waiter)
        try:
            self._post(command, lambda result: self._asked(waiter, result), waiter.is_gone)
        except BaseException:  # too much to do: its caller is told at once, and waits for nothing
            self.forget(waiter)
            raise
        return waiter

    def forget(self, waiter: Waiter) -> None:
        name = _name_of(waiter.command)
        requests = self._open.get(name, set())
        requests.discard(waiter)
        if not requests:
            self._open.pop(name, None)

    def on_poll(self, command: Acquire | AcquireAll) -> None:
        """A caller that was kept waiting here asks with its ticket how it stands. Its earlier request is over: when
        that connection ends, nothing is withdrawn."""
        name = command.name if isinstance(command, Acquire) else command.names[0]
        earlier = self._parked.get((command.ns, name, command.ticket))
        if earlier is None or earlier.queued is None or earlier.queued.ticket_id != command.ticket_id:
            return  # nobody, or another
        if self._unpark(earlier):
            self._metrics.answered(earlier.queued)
            earlier.finish(earlier.queued)

    def on_handed_over(self, handed: Sequence[HandedOver]) -> None:
        for each in handed:
            waiter = self._take_with((each.ns, each.name, each.number), each.ticket_id)
            if waiter is not None:
                outcome = _formed_as(waiter.command, each.outcome)
                self._metrics.answered(outcome)
                waiter.finish(outcome)

    def on_events(self, events: Iterable[Event]) -> None:
        """Something happened in the store. If it concerns a place kept here, its owner asks again. Whoever loses the
        place that it got by asking again stays parked: the next round of keeping places finds that out. So no
        rule that takes a place and drops it can keep a server busy."""
        for event in events:
            if event.kind == kinds.OPENED:
                self._keep_all()  # notifies those that the closed job kept waiting
            if event.kind not in (kinds.ACQUIRED, kinds.LEFT):
                continue
            ticket = (event.ns, event.job, event.ticket)
            waiter = self._parked.get(ticket)
            if waiter is None:
                continue
            if event.kind == kinds.LEFT and event.reason == "left":
                # Another request gave the place up. The caller gets the state, and is not put back in the queue.
                waiter.command = waiter.command.replace(wait=False, ticket=0, ticket_id=None)
                waiter.queued = None
            elif event.kind == kinds.LEFT:
                if waiter in self._lost:
                    continue
                self._lost.add(waiter)
            self._take(ticket)
            self._ask_again(waiter)

    def on_gone(self, marks: Iterable[str]) -> None:
        """The store says that these are gone. A waiter whose ticket is among them got the job, or lost its place."""
        for mark in marks:
            waiter = self._parked.get(self._marks.get(mark, _NOWHERE))
            if waiter is not None and isinstance(waiter.command, Acquire):
                self._look(waiter, waiter.command)

    def _look(self, waiter: Waiter, command: Acquire) -> None:
        assert waiter.queued is not None
        # The ticket has become the lease. Without it, the claim would be put back in the queue.
        proof = {"wait": False, "ticket_id": None, "lease_id": waiter.queued.ticket_id}

        def seen(result: Result) -> None:
            if isinstance(result, Granted) and self._unpark(waiter):
                is_new = result.lease.lease_id == command.ticket_id  # else its session got the job otherwise
                waiter.finish(result.replace(again=False, held_before=False) if is_new else result)
            else:
                self._metrics.kept_back(result)

        with contextlib.suppress(Exception):  # too much to do: the events come later
            self._post(command.replace(audited=False, **proof), seen, waiter.is_gone)

    def close(self) -> None:
        """Answer all waiters with their positions, which they keep for as long as a waiter may be silent."""
        self.is_closed = True
        for waiter in list(self._parked.values()):
            self.on_timeout(waiter)
        self._later(LAST_WORD_MS / 1000, self._answer_with_last_known_positions)

    def on_timeout(self, waiter: Waiter) -> None:
        """Ask a last time, so that the caller gets its current position, or the job if it just got it."""
        waiter.wait_ms = 0
        if self._unpark(waiter):
            self._ask_again(waiter)

    def abandon(self, waiter: Waiter) -> None:
        """The caller is gone: withdraw its claim. If its first answer has not come yet, this happens when it comes."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        if self._unpark(waiter):
            self._metrics.abandoned += 1
            self._withdraw(waiter)
        self.forget(waiter)

    def _unpark(self, waiter: Waiter) -> bool:
        """False if it does not wait here."""
        if waiter.ticket is None or self._parked.get(waiter.ticket) is not waiter:
            return False
        return self._take(waiter.ticket) is not None

    def _take(self, ticket: TicketRef) -> Waiter | None:
        waiter = self._parked.pop(ticket, None)
        if waiter is not None:
            self._marks.pop(mark_of(ticket_key(*ticket)), None)
        return waiter

    def _take_with(self, ticket: TicketRef, ticket_id: str | None) -> Waiter | None:
        """The waiter at a place, if it has this ticket. If an older copy of the store took over, the number may be
        another's now: whoever waited at it lost its place, and asks again."""
        waiter = self._take(ticket)
        if waiter is not None and waiter.queued is not None and waiter.queued.ticket_id != ticket_id:
            self._ask_again(waiter)
            return None
        return waiter

    def on_not_taken(self, waiter: Waiter, result: Result) -> None:
        """The caller of this answer hung up."""
        if isinstance(result, Queued):
            self._note(waiter, result)
        if isinstance(result, Granted | GrantedAll):
            self.on_undelivered(waiter.command, result)
        elif waiter.queued is not None:
            self._later(0, self._withdraw, waiter)  # after the other answers: it may have asked again here

    def on_undelivered(self, command: Command, result: Result) -> None:
        """The caller of a claim was gone when the answer came. Without a request key nobody can ask for what the claim
        got, so it is undone."""
        if not isinstance(command, Acquire | AcquireAny | AcquireAll) or command.request_key is not None:
            return
        if isinstance(result, Granted | GrantedAll):
            self._quietly(undo_of(command))

    def _asked(self, waiter: Waiter, result: Result) -> None:
        self._asking.pop(waiter, None)
        if waiter.gone:
            self.on_not_taken(waiter, result)
        elif isinstance(result, Queued) and waiter.wait_ms > 0 and not self.is_closed:
            self._park(waiter, result)
        elif isinstance(result, BaseException | Frozen) and waiter.queued is not None:
            # Nothing was decided about a waiter with a place. It gets its ticket, because without it it could not come
            # back, and would be given the job when nobody waits for the answer.
            waiter.finish(waiter.queued)
        else:
            waiter.finish(result)

    def _note(self, waiter: Waiter, queued: Queued) -> None:
        waiter.queued = queued
        waiter.ticket = (queued.ns, queued.name, queued.ticket)
        waiter.command = waiter.command.replace(ticket=queued.ticket, ticket_id=queued.ticket_id)

    def _park(self, waiter: Waiter, queued: Queued) -> None:
        self._note(waiter, queued)
        self._metrics.kept_back(queued)
        assert waiter.ticket is not None
        earlier = self._take_with(waiter.ticket, queued.ticket_id)
        if earlier is not None:  # two connections asked with the same ticket or request key: the last one waits
            waiter.moves = True  # nobody knows which of them its caller reads: the place ends by silence
            self._metrics.answered(queued)
            earlier.finish(queued)
        if not self._parked:
            self._on_first()
        self._parked[waiter.ticket] = waiter
        self._marks[mark_of(ticket_key(*waiter.ticket))] = waiter.ticket
        if waiter.timer is None:
            waiter.timer = self._later(waiter.wait_ms / 1000, self.on_timeout, waiter)
        if not self._keeping:
            self._keeping = True
            self._later(TICKET_KEEP_MS / 1000, self._keep)

    def _ask_again(self, waiter: Waiter) -> None:
        self._asking[waiter] = None
        try:
            self._post(waiter.command, lambda result: self._asked(waiter, result), waiter.is_gone)
        except Exception as error:  # too much to do, or shutting down
            self._metrics.answered(error)
            self._asked(waiter, error)

    def _answer_with_last_known_positions(self) -> None:
        """For the case that the store does not answer and this server must end."""
        for waiter in list(self._asking):
            if waiter.queued is not None and not waiter.gone:
                waiter.finish(waiter.queued)

    def _keep(self) -> None:
        """Renew the places of all waiters here. One whose place is gone, or whose job is open again, asks again."""
        self._lost.clear()
        self._keeping = bool(self._parked)
        if self._keeping:
            self._later(TICKET_KEEP_MS / 1000, self._keep)
            self._keep_all()

    def _keep_all(self) -> None:
        tickets = list(self._parked)
        for first in range(0, len(tickets), KEEP_BATCH_MAX):
            self._keep_tickets(tuple(tickets[first : first + KEEP_BATCH_MAX]))

    def _keep_tickets(self, tickets: tuple[TicketRef, ...]) -> None:
        try:
            self._post(KeepTickets(tickets=tickets), lambda result: self._kept(tickets, result))
        except Exception as error:
            self._kept(tickets, error)

    def _kept(self, tickets: tuple[TicketRef, ...], result: Result) -> None:
        """A place is not lost before the next round. An error of one of the places must not cost the others theirs."""
        if isinstance(result, BaseException):
            if len(tickets) == 1 or isinstance(result, Unavailable):
                log.warning("places in line could not be kept: %d; %r", len(tickets), result)
            else:
                self._keep_tickets(tickets[: len(tickets) // 2])
                self._keep_tickets(tickets[len(tickets) // 2 :])
        elif isinstance(result, TicketsKept):
            for ticket in result.gone:
                waiter = self._take(ticket)
                if waiter is not None:
                    self._ask_again(waiter)

    def _withdraw(self, waiter: Waiter) -> None:
        others = self._open.get(_name_of(waiter.command), set()) - {waiter}
        if not waiter.moves and waiter.ticket not in self._parked and not others:  # else it asks here, too
            self._quietly(undo_of(waiter.command))

    def _quietly(self, command: Withdraw) -> None:
        """Nobody is there who could get an error; at worst the ticket or the lease runs out by itself."""
        with contextlib.suppress(Exception):
            self._post(command, lambda result: None)


def _formed_as(command: Acquire | AcquireAll, outcome: Granted | GrantedAll) -> Granted | GrantedAll:
    """The grant in the form of the ask: a claim-all of one job has its place as a claim of that job has."""
    if isinstance(command, AcquireAll) and isinstance(outcome, Granted):
        return GrantedAll(now_ms=outcome.now_ms, grants=(outcome,))
    return outcome


def _name_of(command: Acquire | AcquireAll) -> tuple[str, str, str | None]:
    return command.ns, command.principal, command.request_key
