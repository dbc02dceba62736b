"""A caller that waits for its answer, and the connection it waits on.

A connection that is lost, or brings something new, says so to whoever sits in its `waiting`: the fast lane puts the
room's waiter there itself, the long way a `LongPoll`, which also has a task to end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dibs.server.response import ClientGone

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from dibs.core.commands import Acquire, AcquireAll
    from dibs.core.outcomes import Outcome
    from dibs.service.waiters import Waiter

    class Waiting(Protocol):
        def cancel(self) -> None:
            """The client is gone."""

        def hurry(self) -> None:
            """The client wants something else now: it is told where it stands."""

    class Seat(Protocol):
        """A connection, as far as waiting on it goes."""

        waiting: Waiting | None

        @property
        def is_gone(self) -> bool:
            """Whether nobody is left to hear an answer."""

    Ask = Callable[[Acquire | AcquireAll, int, Callable[[Outcome | BaseException], bool]], Waiter]


class LongPoll:
    def __init__(self, ask: Ask, seat: Seat) -> None:
        self._ask = ask
        self._seat = seat
        self._waiter: Waiter | None = None
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def outcome(self, command: Acquire | AcquireAll, wait_ms: int) -> Outcome:
        """What the caller is told in the end; raises what went wrong, or ClientGone."""
        self._waiter = self._ask(command, wait_ms, self._settle)
        self._seat.waiting = self
        try:
            return await self._future
        finally:
            self._seat.waiting = None

    def cancel(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        if not self._future.done():
            self._future.set_exception(ClientGone())

    def hurry(self) -> None:
        if self._waiter is not None:
            self._waiter.hurry()

    def _settle(self, result: Outcome | BaseException) -> bool:
        if self._future.done():  # its task was ended
            return False
        if isinstance(result, BaseException):
            self._future.set_exception(result)
        else:
            self._future.set_result(result)
        return True
