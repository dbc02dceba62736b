"""A session as an `async with` block. The same names as `session.Session`."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from dibs.client.embedded import process_mark
from dibs.clock import steady_ms
from dibs.errors import DibsError, InvalidInput
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim
from dibs.sdk.async_doors import drive
from dibs.sdk.async_guard import Guard, to_the_end
from dibs.sdk.claims import SessionClaims
from dibs.sdk.hold import SessionHold

if TYPE_CHECKING:
    from types import TracebackType

    from dibs.sdk.async_doors import AsyncDoor
    from dibs.sdk.claims import OnLost
    from dibs.sdk.operations import Wish

log = logging.getLogger("dibs")


class AsyncSession(SessionClaims[AsyncClaim]):
    """Claims made through it need no heartbeats of their own. When it is lost, the block is cancelled."""

    def __init__(
        self,
        door: AsyncDoor,
        timeout_ms: int,
        owner: str | None,
        ttl: float | None,
        metadata: str | None,
        on_lost: OnLost | None,
    ) -> None:
        super().__init__(owner)
        self._door = door
        self._slice_seconds = door.slice_seconds
        self._timeout_ms = timeout_ms
        self._ttl = ttl
        self._metadata = metadata
        self._on_lost = on_lost
        self._guard: Guard | None = None

    async def __aenter__(self) -> AsyncSession:
        if self._held is not None:
            raise InvalidInput("A session is for one block. Ask the client for another one.")
        opening = asyncio.ensure_future(self._opened())
        try:
            self._held = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await to_the_end(self._undone(opening))
            raise
        self._guard = Guard(self._held, self._door, self._on_lost, beats=True)
        return self

    async def _opened(self) -> SessionHold:
        sent_ms = steady_ms()
        flow = operations.opening(self._owner, self._ttl, self._metadata, process_mark(os.getpid()))
        return SessionHold(await drive(self._door, flow, self._timeout_ms), sent_ms)

    async def _undone(self, opening: asyncio.Future[SessionHold]) -> None:
        """Nobody waits for it any more: once it is open, end it."""
        try:
            hold = await opening
        except DibsError:
            return
        await self._ended(hold)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._hold
        ours_alone = self._guard.leave(error) if self._guard is not None else False
        if not hold.is_ours:
            return
        if hold.let_go():
            await to_the_end(self._ended(hold))
        elif ours_alone or (hold.was_lost and error is None):
            hold.check()

    async def _ended(self, hold: SessionHold) -> None:
        try:
            await drive(self._door, operations.ending(hold.session_id), self._timeout_ms)
        except DibsError as trouble:
            log.warning("A session could not be ended and goes with its TTL: %s", trouble.details)

    def _begin(self, wish: Wish, on_lost: OnLost | None) -> AsyncClaim:
        return AsyncClaim(self._door, wish, self._timeout_ms, on_lost, self._hold)
