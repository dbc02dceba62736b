"""The client for event loops. The same names as `client.Client`; what talks to the store is awaited.

One client serves any number of tasks, and loops one after another or at once: each has connections of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.core.durations import duration_ms
from dibs.core.limits import HISTORY_PAGE_DEFAULT
from dibs.errors import InvalidInput, NotClaimed
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim, given_up
from dibs.sdk.async_doors import drive, open_door
from dibs.sdk.async_guard import shielded
from dibs.sdk.async_session import AsyncSession
from dibs.sdk.claims import TTL_SECONDS, Claims
from dibs.sdk.client import TIMEOUT_SECONDS, place_of, settings_of
from dibs.sdk.operations import ClaimRequest
from dibs.sdk.parameters import explained

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from types import TracebackType

    from dibs.client.queueing import Flow
    from dibs.core.durations import Duration
    from dibs.sdk.answers import JobEvent, JobStatus, Lease
    from dibs.sdk.claims import OnLost

    # Inside the class `list` is a method.
    Statuses = list[JobStatus]
    Events = list[JobEvent]

T = TypeVar("T")


class AsyncClient(Claims[AsyncClaim]):
    """As `Client`, for asyncio. To a server it speaks through the loop; a store is asked from threads."""

    @explained
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        owner: str | None = None,
        namespace: str | None = None,
        *,
        timeout: Duration = TIMEOUT_SECONDS,
    ) -> None:
        settings = settings_of(url, token, owner, namespace)
        self.owner_name = settings.owner
        self._shown = place_of(settings)
        self._closed = False
        self._timeout_ms = max(1, duration_ms(timeout, "timeout"))
        self._door = open_door(settings)
        self._finishing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<AsyncClient of {self.owner_name} at {self._shown}{closed}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close files and connections. What is held stays held: leave its block first. What is being let go
        (`AsyncLock.release()`) is let go first."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._finishing if task.get_loop() is loop]
        if tasks:
            await shielded(lambda: asyncio.wait(tasks))
        self._closed = True
        self._door.close()

    def _finish(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something go in a task of its own, which `close` waits for."""
        task = asyncio.get_running_loop().create_task(ending)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _run(self, flow: Flow[T]) -> T:
        return await drive(self._door, flow, self._timeout_ms)

    def _begin(self, request: ClaimRequest, on_lost: OnLost | None) -> AsyncClaim:
        return AsyncClaim(self._door, request, self._timeout_ms, on_lost)

    def _common(self, ttl: Duration | None, owner: str | None) -> dict[str, Any]:
        return {
            "owner": owner or self.owner_name,
            "ttl": TTL_SECONDS if ttl is None else ttl,
            "slice_seconds": self._door.slice_seconds,
        }

    @explained
    def session(
        self,
        *,
        owner: str | None = None,
        ttl: Duration | None = None,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
    ) -> AsyncSession:
        """`async with client.session() as session:` and then `session.claim(…)`. One heartbeat for all it holds."""
        return AsyncSession(self._door, self._timeout_ms, owner or self.owner_name, ttl, metadata, on_lost)

    @explained
    async def acquire(
        self,
        name: str,
        *,
        ttl: Duration = TTL_SECONDS,
        wait: Duration | None = None,
        metadata: str | None = None,
        owner: str | None = None,
        shared: bool = False,
        slots: int | None = None,
        again: bool = False,
        request_key: str | None = None,
    ) -> Lease:
        """Take a job without a block: no heartbeats. Call `renew` yourself, well before `remaining_ms` is over."""
        request = self._request(
            "acquire",
            [name],
            ttl,
            owner,
            shared=shared,
            wait=wait,
            metadata=metadata,
            slots=slots,
            again=again,
            request_key=request_key,
        )
        try:
            return (await self._run(operations.acquire(request)))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request_key is None:  # with a key of their own, whoever asked can ask again
                await shielded(lambda: given_up(self._door, request))
            raise

    @explained
    async def renew(
        self,
        name: str,
        lease_id: str,
        *,
        ttl: Duration | None = None,
        checkpoint: str | None = None,
        metadata: str | None = None,
    ) -> Lease:
        """Heartbeat by hand."""
        return await self._run(
            operations.renew(name, lease_id, ttl=ttl, checkpoint=checkpoint, metadata=metadata)
        )

    @explained
    async def release(
        self,
        name: str,
        lease_id: str,
        *,
        done: Duration | bool | None = None,
        result: str | None = None,
        checkpoint: str | None = None,
    ) -> None:
        """Let go by hand; with `done`, the job counts as done for that many seconds."""
        await shielded(
            lambda: self._run(
                operations.release(name, lease_id, done=done, result=result, checkpoint=checkpoint)
            )
        )

    @explained
    async def fail(
        self,
        name: str,
        lease_id: str,
        reason: str | None = None,
        *,
        retry_after: Duration | None = None,
        checkpoint: str | None = None,
    ) -> None:
        """Let go by hand, as failed. See `AsyncClaim.fail`."""
        await shielded(
            lambda: self._run(
                operations.fail(name, lease_id, reason, retry_after=retry_after, checkpoint=checkpoint)
            )
        )

    @explained
    async def transfer(
        self,
        name: str,
        lease_id: str,
        *,
        to_owner: str | None = None,
        to_session: str | None = None,
        ttl: Duration | None = None,
        checkpoint: str | None = None,
    ) -> Lease:
        """Hand a job on. The lease that comes back is the new owner's."""
        flow = operations.transfer(
            name, lease_id, to_owner=to_owner, to_session=to_session, ttl=ttl, checkpoint=checkpoint
        )
        return await self._run(flow)

    @explained
    async def owner(self, name: str) -> JobStatus:
        """How a job stands, and who has it."""
        return await self._run(operations.inspect(name))

    @explained
    async def list(self, prefix: str | None = None) -> Statuses:
        """Every job that somebody has, with that prefix."""
        return await self._run(operations.list_jobs(prefix))

    @explained
    async def history(self, name: str, limit: int = HISTORY_PAGE_DEFAULT) -> Events:
        """The newest events of a job, oldest first."""
        return await self._run(operations.history(name, limit))

    @explained
    async def watch(
        self, name: str, *, poll: Duration = 1.0, since: int | None = None
    ) -> AsyncIterator[JobEvent]:
        """The events of a job as they happen, for ever. `since`: after that `seq`; else only what is new."""
        watching = operations.JobWatch(name, since)
        while True:
            for event in await self._run(watching.poll()):
                yield event
            await asyncio.sleep(duration_ms(poll, "poll") / 1000)

    @explained
    async def break_claim(self, name: str, reason: str) -> None:
        """Take a job away from its owner, who is told why. For operators."""
        await self._run(operations.break_claim(name, reason))

    @explained
    async def free(self, name: str) -> bool:
        """Let a parked job be claimed again. For operators."""
        return await self._run(operations.free(name))
