"""The dibs session of one connection: opened with the first claim, opened again after it was lost, and ended with the
connection. A session that the agent's commands and hooks use, too, is not ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from dibs.agents.kept_claim import ignore_failure
from dibs.base.errors import LeaseLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from dibs.sdk.async_session import AsyncSession

log = logging.getLogger("dibs")
CLOSE_SECONDS_MAX = 4.0  # the MCP SDK gives a server five seconds to stop


class ConnectionSession:
    """`make` gives a session that is not open yet. `closing` is set when the connection ends. `claims` are the tasks
    that hold the claims of this connection."""

    def __init__(
        self,
        make: Callable[[], AsyncSession],
        closing: asyncio.Event,
        claims: Collection[asyncio.Task[None]],
    ) -> None:
        self._make = make
        self._closing = closing
        self._claims = claims
        self._ready: asyncio.Future[AsyncSession] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def opened(self) -> AsyncSession | None:
        """The session, if it is open."""
        ready = self._ready
        if ready is None or not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [] if self._task is None else [self._task]

    async def open(self) -> AsyncSession:
        for _ in range(2):
            if self._ready is None:
                self._ready = ignore_failure(asyncio.get_running_loop().create_future())
                self._task = asyncio.create_task(self._live(self._ready), name="dibs mcp session")
            session = await asyncio.shield(self._ready)
            try:
                session.check()
                return session
            except LeaseLost:
                await asyncio.wait(self.tasks, timeout=CLOSE_SECONDS_MAX)
        raise Unavailable("The session of this connection was lost, and a new one was lost, too.")

    async def _live(self, ready: asyncio.Future[AsyncSession]) -> None:
        try:
            session = self._make()
            async with session:
                ready.set_result(session)
                await self._closing.wait()
                if session._joins is not None and self._claims:  # it goes on, so each claim is released
                    await asyncio.wait(set(self._claims), timeout=CLOSE_SECONDS_MAX)
        except LeaseLost as lost:
            log.warning("the session was lost: %s", lost.why)
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._ready = None

    async def drop(self) -> None:
        """Somebody ended it: the next `open` opens another one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS_MAX)

    async def over(self) -> None:
        if self._task is not None:
            await asyncio.shield(self._task)
