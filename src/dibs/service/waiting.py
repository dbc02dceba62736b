"""Callers whose answer comes later: they wait in a line of the store, and this server waits with them.

Everything here runs on the event loop's thread. A caller that is put in line is parked under its place (namespace, job,
ticket). It is woken by the one hand-over that names its place, whoever made it: a commit of this server tells
`handed`, a commit of somebody else's is heard of as an event. Nobody else is woken.

The place itself is the store's. This room only keeps saying that its callers are still asking, gives their places up
when they hang up, and when their time is over tells them where they stand, so that they can come back with a ticket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core import events as kinds
from dibs.core.commands import KeepPlaces, Leave, Release
from dibs.core.limits import KEEP_BATCH_MAX, TICKET_KEEP_MS
from dibs.core.outcomes import Granted, GrantedAll, Kept, Queued

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from dibs.core.commands import Acquire, AcquireAll, Command
    from dibs.core.draft import Handed
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome

    Result = Outcome | BaseException
    Place = tuple[str, str, int]

    class Timer(Protocol):
        def cancel(self) -> None: ...


class Waiter:
    """One caller. `cancel` says that it hung up."""

    __slots__ = ("_answer", "_room", "command", "gone", "place", "timer", "wait_ms")

    def __init__(
        self, room: WaitingRoom, command: Acquire | AcquireAll, wait_ms: int, answer: Callable[[Result], None]
    ) -> None:
        self._room = room
        self._answer: Callable[[Result], None] | None = answer
        self.command = command
        self.wait_ms = wait_ms
        self.place: Place | None = None
        self.timer: Timer | None = None
        self.gone = False

    def cancel(self) -> None:
        if self._answer is not None and not self.gone:
            self.gone = True
            self._room.hung_up(self)

    def finish(self, result: Result) -> None:
        """Answer, once."""
        if self.timer is not None:
            self.timer.cancel()
        answer, self._answer = self._answer, None
        if answer is not None and not self.gone:
            answer(result)


class WaitingRoom:
    """`post` has a command decided (`Batcher.post`), `later` is the event loop's `call_later`."""

    def __init__(
        self,
        post: Callable[[Command, Callable[[Result], None]], None],
        later: Callable[..., Timer],
    ) -> None:
        self._post = post
        self._later = later
        self._parked: dict[Place, Waiter] = {}
        self._keeping = False

    def __len__(self) -> int:
        return len(self._parked)

    def ask(self, command: Acquire | AcquireAll, wait_ms: int, answer: Callable[[Result], None]) -> Waiter:
        """Claim, and wait in line for up to `wait_ms`. `answer` is called once, on the event loop."""
        waiter = Waiter(self, command, wait_ms, answer)
        self._post(command, lambda result: self._asked(waiter, result))
        return waiter

    def handed(self, handed: Sequence[Handed]) -> None:
        """A commit of ours gave jobs to waiters."""
        for each in handed:
            waiter = self._parked.pop((each.ns, each.name, each.number), None)
            if waiter is not None:
                waiter.finish(each.outcome)

    def heard(self, events: Sequence[Event]) -> None:
        """Something happened in the store. If it concerns a place kept here, its owner asks again."""
        for event in events:
            if event.ticket and event.kind in (kinds.ACQUIRED, kinds.LEFT):
                waiter = self._parked.pop((event.ns, event.job, event.ticket), None)
                if waiter is not None:
                    self._ask_again(waiter)

    def close(self) -> None:
        """Tell everybody where they stand; their places stay theirs for as long as a waiter may be silent."""
        for waiter in list(self._parked.values()):
            self._time_is_over(waiter)

    def hung_up(self, waiter: Waiter) -> None:
        """The caller is gone: leave the line. One whose first answer is still out is dealt with when that comes."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        if waiter.place is not None and self._parked.pop(waiter.place, None) is not None:
            self._leave(waiter)

    def _asked(self, waiter: Waiter, result: Result) -> None:
        if waiter.gone:
            self._clear_up(waiter, result)
        elif isinstance(result, Queued) and waiter.wait_ms > 0:
            self._park(waiter, result)
        else:
            waiter.finish(result)

    def _park(self, waiter: Waiter, queued: Queued) -> None:
        waiter.command = waiter.command.replace(ticket=queued.ticket, ticket_id=queued.ticket_id)
        waiter.place = (queued.ns, queued.name, queued.ticket)
        self._parked[waiter.place] = waiter
        if waiter.timer is None:
            waiter.timer = self._later(waiter.wait_ms / 1000, self._time_is_over, waiter)
        if not self._keeping:
            self._keeping = True
            self._later(TICKET_KEEP_MS / 1000, self._keep)

    def _time_is_over(self, waiter: Waiter) -> None:
        """Ask a last time, so that the caller hears its position of now, or that it just got the job."""
        waiter.wait_ms = 0
        if waiter.place is not None and self._parked.pop(waiter.place, None) is not None:
            self._ask_again(waiter)

    def _ask_again(self, waiter: Waiter) -> None:
        try:
            self._post(waiter.command, lambda result: self._asked(waiter, result))
        except (
            Exception
        ) as error:  # too much to do, or shutting down: the caller can come back with its ticket
            waiter.finish(error)

    def _keep(self) -> None:
        """Say that everybody here is still asking. Whoever's place is gone finds out why by asking again."""
        places = list(self._parked)
        self._keeping = bool(places)
        if not places:
            return
        self._later(TICKET_KEEP_MS / 1000, self._keep)
        for first in range(0, len(places), KEEP_BATCH_MAX):
            chunk = tuple(places[first : first + KEEP_BATCH_MAX])
            try:
                self._post(KeepPlaces(places=chunk), self._kept)
            except Exception:  # the next round comes well before a place is lost
                return

    def _kept(self, result: Result) -> None:
        if isinstance(result, Kept):
            for place in result.gone:
                waiter = self._parked.pop(place, None)
                if waiter is not None:
                    self._ask_again(waiter)

    def _clear_up(self, waiter: Waiter, result: Result) -> None:
        """An answer to somebody who hung up. A place is given up; so is a job, unless a request key can ask for it."""
        command = waiter.command
        if isinstance(result, Queued):
            waiter.command = command.replace(ticket=result.ticket, ticket_id=result.ticket_id)
            waiter.place = (result.ns, result.name, result.ticket)
            self._leave(waiter)
        elif command.request_key is None and command.session is None:
            grants = result.grants if isinstance(result, GrantedAll) else (result,)
            for granted in [each for each in grants if isinstance(each, Granted)]:
                self._give_back(command, granted)

    def _give_back(self, command: Acquire | AcquireAll, granted: Granted) -> None:
        if not granted.again:
            lease_id = granted.lease.lease_id
            release = Release(
                ns=command.ns, name=granted.name, principal=command.principal, lease_id=lease_id
            )
            self._quietly(release)

    def _leave(self, waiter: Waiter) -> None:
        if waiter.place is None or waiter.command.ticket_id is None:
            return
        ns, name, number = waiter.place
        self._quietly(
            Leave(
                ns=ns,
                name=name,
                principal=waiter.command.principal,
                ticket=number,
                ticket_id=waiter.command.ticket_id,
            )
        )

    def _quietly(self, command: Command) -> None:
        """Nobody is left to hear how it went; at worst the place or the lease runs out by itself."""
        try:
            self._post(command, lambda result: None)
        except Exception:
            return
