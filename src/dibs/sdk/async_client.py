"""The client for event loops. The same names as `client.Client`; calls to the store are awaited.

One client serves any number of tasks, and loops one after another or at once: each has connections of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.errors import InvalidInput, NotClaimed
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim, given_up
from dibs.sdk.async_doors import drive, open_door
from dibs.sdk.async_guard import shielded
from dibs.sdk.async_session import AsyncSession
from dibs.sdk.claims import ClientFace
from dibs.sdk.events import AsyncEvents
from dibs.sdk.leader import AsyncLeader
from dibs.sdk.methods import awaits, awaits_end, given

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from dibs.client.queueing import Flow
    from dibs.client.settings import Settings
    from dibs.core.durations import Duration
    from dibs.sdk.answers import Lease
    from dibs.sdk.claims import OnLost
    from dibs.sdk.operations import ClaimRequest

T = TypeVar("T")


class AsyncClient(ClientFace[AsyncClaim, AsyncSession, AsyncLeader, AsyncEvents]):
    """`Client` for asyncio. Requests to a server use the event loop; a store is called in threads."""

    _names_later = True

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

    def _begin(self, request: ClaimRequest, on_lost: OnLost | None) -> AsyncClaim:
        return AsyncClaim(self._door, request, self._timeout_ms, on_lost)

    def _common(self, ttl: Duration | None, owner: str | None) -> dict[str, Any]:
        return {**super()._common(ttl, owner), "slice_seconds": self._door.slice_seconds}

    def _new_session(
        self, owner: str, ttl: Duration | None, metadata: str | None, on_lost: OnLost | None
    ) -> AsyncSession:
        session = AsyncSession(self._door, self._timeout_ms, owner, ttl, metadata, on_lost)
        session._names, session._tracker = self._names, self._tracker
        return session

    def _new_leader(self, request: ClaimRequest, on_lost: OnLost | None) -> AsyncLeader:
        return AsyncLeader(self._door, request, self._timeout_ms, on_lost)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> AsyncEvents:
        return AsyncEvents(self._door, self._timeout_ms, self._one_name, prefix, name, *where)

    @given(ClientFace._to_acquire)
    async def acquire(self, request: ClaimRequest) -> Lease:
        try:
            return (await self._run(operations.acquire(request)))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request.has_own_key:  # a caller with its own key can repeat the request
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
