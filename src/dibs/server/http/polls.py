"""A caller that waits for its answer, and the connection it waits on.

A connection that is lost, or that receives another request, calls the object in its `waiting` attribute. The fast lane
puts the `Waiter` itself there; a request served through ASGI puts a `LongPoll` there, which also ends a task.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dibs.server.http.response import ClientGone

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from dibs.core.commands import Acquire, AcquireAll
    from dibs.core.outcomes import Outcome
    from dibs.engine.waiters import Waiter

    class Waiting(Protocol):
        def cancel(self) -> None:
            """The client is gone."""

        def hurry(self) -> None:
            """The client sent another request: answer this one with its place in line."""

    class WaitingConnection(Protocol):
        """A connection, as seen by a waiting caller."""

        waiting: Waiting | None

        @property
        def is_gone(self) -> bool:
            """Whether the client is gone."""

        @property
        def has_hung_up(self) -> bool:
            """Whether the client has closed its side."""

    class Ask(Protocol):
        def __call__(
            self,
            command: Acquire | AcquireAll,
            wait_ms: int,
            answer: Callable[[Outcome | BaseException], bool],
            *,
            has_hung_up: Callable[[], bool] | None,
        ) -> Waiter: ...


class LongPoll:
    def __init__(self, ask: Ask, connection: WaitingConnection) -> None:
        self._ask = ask
        self._connection = connection
        self._waiter: Waiter | None = None
        self._has_hung_up: Callable[[], bool] | None = None
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def outcome(self, command: Acquire | AcquireAll, wait_ms: int, *, moves: bool) -> Outcome:
        """The final outcome for the caller; raises its error, or ClientGone. `moves`: a caller that closes its side
        has gone on to another server."""
        if moves:
            self._has_hung_up = lambda: self._connection.has_hung_up
        self._waiter = self._ask(command, wait_ms, self._settle, has_hung_up=self._has_hung_up)
        self._connection.waiting = self
        try:
            return await self._future
        finally:
            self._connection.waiting = None

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
        if self._has_hung_up is not None and self._has_hung_up():
            self._future.set_exception(ClientGone())
            return False
        if isinstance(result, BaseException):
            self._future.set_exception(result)
        else:
            self._future.set_result(result)
        return True
