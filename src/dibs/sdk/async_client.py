"""The client for event loops. The same names as `client.Client`; calls to the store are awaited.

One client serves any number of tasks, and loops one after another or at once: each has connections of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, NotClaimed
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim, AsyncLeader, BlockGuard, given_up
from dibs.sdk.async_doors import LEAVING, AsyncDoor, drive, open_door, shielded
from dibs.sdk.claims import ClientFace, SessionClaims
from dibs.sdk.events import AsyncEvents
from dibs.sdk.heart import Grip
from dibs.sdk.hold import SessionHold
from dibs.sdk.methods import awaits, awaits_end, given

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from dibs.client.queueing import Flow, PendingClaim
    from dibs.client.settings import Settings
    from dibs.sdk.answers import Lease


# A session as an `async with` block. The same names as `client.Session`.

log = logging.getLogger("dibs")
T = TypeVar("T")


class AsyncSession(SessionClaims[AsyncClaim, AsyncDoor]):
    """Claims made through it need no heartbeats of their own. When it is lost, the block is cancelled."""

    _claim_type = AsyncClaim
    _joins: Callable[[], str] | None = None  # gives the id of a session that others use, too: it is not ended here
    _guard: BlockGuard | None = None
    _grip: Grip | None = None

    async def __aenter__(self) -> AsyncSession:
        self._check_first()
        try:
            hold = await shielded(self._open)
            self._guard = BlockGuard(hold, self._on_lost)
            self._grip = Grip(hold, self._doors.doors, asyncio.get_running_loop())
        except BaseException:  # cancelled; or no thread, or an interrupt: nothing would renew it
            await self._undo()
            raise
        return self

    async def _open(self) -> SessionHold:
        if self._joins is None:
            hold = self._held = await drive(self._doors, self._opening())
            return hold
        sent_ms = steady_ms()
        session_id = await asyncio.to_thread(self._joins)
        found = await drive(self._doors, operations.join_session(session_id))
        self._owner = self._owner or found.owner
        hold = self._held = SessionHold(found, sent_ms)
        return hold

    async def _undo(self) -> None:
        """If the session is open, end it."""
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
            await drive(self._doors, operations.end_session(hold.session_id), LEAVING)
        except DibsError as trouble:
            log.warning("A session could not be ended and will expire: %s", trouble.details)


class AsyncClient(ClientFace[AsyncClaim, AsyncSession, AsyncLeader, AsyncEvents, AsyncDoor]):
    """`Client` for asyncio. Requests to a server use the event loop; a store is called in threads."""

    _claim_type = AsyncClaim
    _session_type = AsyncSession
    _leader_type = AsyncLeader

    def _open(self, settings: Settings) -> None:
        self._doors = open_door(settings, self._timeout_ms)
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
        self._doors.close()

    def _finish(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Release something in a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(ending)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _run(self, flow: Flow[T]) -> T:
        return await drive(self._doors, flow)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> AsyncEvents:
        return AsyncEvents(self._doors, self._one_name, prefix, name, *where)

    @given(ClientFace._to_acquire)
    async def acquire(self, request: PendingClaim) -> Lease:
        try:
            return (await self._run(operations.acquire(request)))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request.own_key:  # a caller with its own key can repeat the request
                await shielded(lambda: given_up(self._doors, request))
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
