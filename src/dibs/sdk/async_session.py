"""A session as an `async with` block. The same names as `session.Session`."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim
from dibs.sdk.async_doors import LEAVING, drive
from dibs.sdk.async_guard import BlockGuard, shielded
from dibs.sdk.claims import SessionClaims
from dibs.sdk.hold import SessionHold
from dibs.system.session_mark import process_mark

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from dibs.core.durations import Duration
    from dibs.sdk.async_doors import AsyncDoor
    from dibs.sdk.claims import OnLost
    from dibs.sdk.operations import ClaimRequest

log = logging.getLogger("dibs")


class AsyncSession(SessionClaims[AsyncClaim]):
    """Claims made through it need no heartbeats of their own. When it is lost, the block is cancelled."""

    _names_later = True

    def __init__(
        self,
        door: AsyncDoor,
        timeout_ms: int,
        owner: str | None,
        ttl: Duration | None,
        metadata: str | None,
        on_lost: OnLost | None,
        joins: Callable[[], str] | None = None,
    ) -> None:
        """`joins` gives the id of a session that others use, too: it is renewed here, and not ended."""
        super().__init__(owner)
        self._door = door
        self._joins = joins
        self._slice_seconds = door.slice_seconds
        self._timeout_ms = timeout_ms
        self._ttl = ttl
        self._metadata = metadata
        self._on_lost = on_lost
        self._guard: BlockGuard | None = None

    async def __aenter__(self) -> AsyncSession:
        begun, self._begun = self._begun, True
        if begun:
            raise InvalidInput("A session is for one block. Ask the client for another one.")
        try:
            hold = await shielded(self._open)
        except asyncio.CancelledError:
            await self._undo()
            raise
        self._guard = BlockGuard(hold, self._door, self._on_lost, beats=True)
        return self

    async def _open(self) -> SessionHold:
        sent_ms = steady_ms()
        if self._joins is not None:
            session_id = await asyncio.to_thread(self._joins)
            found = await drive(self._door, operations.join_session(session_id), self._timeout_ms)
            self._owner = self._owner or found.owner
            hold = self._held = SessionHold(found, sent_ms)
            return hold
        flow = operations.open_session(self._owner, self._ttl, self._metadata, process_mark(os.getpid()))
        hold = self._held = SessionHold(await drive(self._door, flow, self._timeout_ms), sent_ms)
        return hold

    async def _undo(self) -> None:
        """The caller was cancelled: if the session is open, end it."""
        hold = self._held
        if hold is not None and hold.let_go():
            await shielded(lambda: self._ended(hold))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._hold
        ours_alone = self._guard.leave(error) if self._guard is not None else False
        if not hold.is_ours:
            return
        if not hold.was_lost and hold.let_go():
            await shielded(lambda: self._ended(hold))
        elif ours_alone or (hold.was_lost and error is None):
            hold.check()

    async def _ended(self, hold: SessionHold) -> None:
        if self._joins is not None:
            return
        try:
            await drive(self._door, operations.end_session(hold.session_id), self._timeout_ms, LEAVING)
        except DibsError as trouble:
            log.warning("A session could not be ended and will expire: %s", trouble.details)

    async def _settle(self) -> None:
        """Give back claims that could not be given up earlier, because there was no answer."""
        if self._hold.owes:
            await drive(self._door, self._hold.settle_debts(), self._timeout_ms)

    def _begin(self, request: ClaimRequest, on_lost: OnLost | None) -> AsyncClaim:
        return AsyncClaim(self._door, request, self._timeout_ms, on_lost, self._hold)
