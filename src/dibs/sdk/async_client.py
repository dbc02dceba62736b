"""The client for event loops. The same names as `client.Client`; calls to the store are awaited.

One client serves any number of tasks, and loops one after another or at once: each has connections of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, NotClaimed
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim, AsyncLeader, BlockGuard, given_up
from dibs.sdk.async_doors import LEAVING, drive, open_door, shielded
from dibs.sdk.claims import ClientFace, SessionClaims
from dibs.sdk.events import AsyncEvents
from dibs.sdk.hold import SessionHold
from dibs.sdk.methods import awaits, awaits_end, given
from dibs.system.session_mark import process_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from dibs.client.queueing import Flow, PendingClaim
    from dibs.client.settings import Settings
    from dibs.core.durations import Duration
    from dibs.sdk.answers import Lease
    from dibs.sdk.async_doors import AsyncDoor
    from dibs.sdk.claims import OnLost


# A session as an `async with` block. The same names as `client.Session`.

log = logging.getLogger("dibs")
T = TypeVar("T")


class AsyncSession(SessionClaims[AsyncClaim]):
    """Claims made through it need no heartbeats of their own. When it is lost, the block is cancelled."""

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

    def _begin(self, request: PendingClaim, on_lost: OnLost | None, *, fail_on_error: bool) -> AsyncClaim:
        return AsyncClaim(self._door, request, self._timeout_ms, on_lost, self._hold, fail_on_error=fail_on_error)


class AsyncClient(ClientFace[AsyncClaim, AsyncSession, AsyncLeader, AsyncEvents]):
    """`Client` for asyncio. Requests to a server use the event loop; a store is called in threads."""

    def _open(self, settings: Settings) -> None:
        self._door = open_door(settings)
        self._finishing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close files and connections. Claims stay held: leave their blocks first. Releases in progress
        (`AsyncLock.release()`) are finished first."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._finishing if task.get_loop() is loop]
        if tasks:
            await shielded(lambda: asyncio.wait(tasks))
        self._closed = True
        self._door.close()

    def _finish(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Release something in a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(ending)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _run(self, flow: Flow[T]) -> T:
        return await drive(self._door, flow, self._timeout_ms)

    def _begin(self, request: PendingClaim, on_lost: OnLost | None, *, fail_on_error: bool) -> AsyncClaim:
        return AsyncClaim(self._door, request, self._timeout_ms, on_lost, fail_on_error=fail_on_error)

    def _common(self, ttl: Duration | None, owner: str | None) -> dict[str, Any]:
        return {**super()._common(ttl, owner), "slice_seconds": self._door.slice_seconds}

    def _new_session(
        self, owner: str, ttl: Duration | None, metadata: str | None, on_lost: OnLost | None
    ) -> AsyncSession:
        session = AsyncSession(self._door, self._timeout_ms, owner, ttl, metadata, on_lost)
        session._names = self._names
        return session

    def _new_leader(self, request: PendingClaim, on_lost: OnLost | None) -> AsyncLeader:
        return AsyncLeader(self._door, request, self._timeout_ms, on_lost, fail_on_error=False)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> AsyncEvents:
        return AsyncEvents(self._door, self._timeout_ms, self._one_name, prefix, name, *where)

    @given(ClientFace._to_acquire)
    async def acquire(self, request: PendingClaim) -> Lease:
        try:
            return (await self._run(operations.acquire(request)))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request.own_key:  # a caller with its own key can repeat the request
                await shielded(lambda: given_up(self._door, request))
            raise

    renew = awaits("renew", operations.renew)
    release = awaits_end("release", operations.release)
    fail = awaits_end("fail", operations.fail)
    transfer = awaits("transfer", operations.transfer)
    owner = awaits("owner", operations.inspect)
    list = awaits("list", operations.list_jobs)
    history = awaits("history", operations.history)
    break_claim = awaits("break_claim", operations.break_claim)
    free = awaits("free", operations.free)
