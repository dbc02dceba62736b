"""The client for event loops. The same names as `client.Client`; calls to the store are awaited.

One client serves any number of tasks, and loops one after another or at once: each has connections of its own.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.checkout import current_folder
from dibs.base.errors import InvalidInput, NotClaimed
from dibs.client.naming import Naming
from dibs.client.settings import place_of
from dibs.core.durations import duration_ms
from dibs.core.names import election_job
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim, given_up
from dibs.sdk.async_doors import drive, open_door
from dibs.sdk.async_guard import shielded
from dibs.sdk.async_session import AsyncSession
from dibs.sdk.claims import TTL_SECONDS, Claims
from dibs.sdk.client import TIMEOUT_SECONDS, settings_of
from dibs.sdk.events import AsyncEvents
from dibs.sdk.leader import TTL_SECONDS as LEADER_TTL_SECONDS
from dibs.sdk.leader import AsyncLeader
from dibs.sdk.methods import awaits, awaits_end
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
    """`Client` for asyncio. Requests to a server use the event loop; a store is called in threads."""

    _names_later = True

    @explained
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        owner: str | None = None,
        namespace: str | None = None,
        *,
        timeout: Duration = TIMEOUT_SECONDS,
        exact: bool = False,
    ) -> None:
        settings = settings_of(url, token, owner, namespace)
        self._names = Naming(settings.env, current_folder(), exact=exact)
        self._tracker = self._names
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
        """`async with client.session() as session:` and then `session.claim(…)`. One heartbeat for all its claims."""
        owner = owner or self.owner_name
        session = AsyncSession(self._door, self._timeout_ms, owner, ttl, metadata, on_lost)
        session._names, session._tracker = self._names, self._tracker
        return session

    @explained
    def leader(
        self,
        name: str,
        *,
        ttl: Duration = LEADER_TTL_SECONDS,
        wait: Duration | None = math.inf,
        metadata: str | None = None,
        on_lost: OnLost | None = None,
        owner: str | None = None,
    ) -> AsyncLeader:
        """`async with client.leader("scheduler") as leader:` campaigns, waits in line until the election is won, and
        leads while the block runs. Raises JobHeld if somebody else still leads after `wait`. A block that raises
        resigns, too."""
        job = election_job(name)
        request = self._request(
            "acquire", [job], ttl, owner, wait=wait, metadata=metadata, fail_on_error=False
        )
        return AsyncLeader(self._door, request, self._timeout_ms, on_lost)

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
        """Take a job without a block and without heartbeats. Call `renew` yourself, well before `remaining_ms` is
        over."""
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
            if request_key is None:  # a caller with its own key can repeat the request
                await shielded(lambda: given_up(self._door, request))
            raise

    @explained
    async def watch(
        self, name: str, *, poll: Duration = 1.0, since: int | None = None
    ) -> AsyncIterator[JobEvent]:
        """The events of a job as they happen, for ever. `since`: after that `seq`; else only what is new."""
        watching = operations.JobWatch(await asyncio.to_thread(self._one_name, name), since)
        while True:
            for event in await self._run(watching.poll()):
                yield event
            await asyncio.sleep(duration_ms(poll, "poll") / 1000)

    @explained
    def events(
        self,
        prefix: str = "",
        *,
        name: str | None = None,
        after: int | None = None,
        since: Duration | None = None,
        patience: Duration | None = None,
    ) -> AsyncEvents:
        """What happens to jobs, as it happens, each event once and in order: of all jobs, of those whose name begins
        with `prefix`, or of one. It begins after the event number `after`, or with the events of the last `since`
        seconds, or now. After a failure it continues at whichever server answers. It tries for ever, or for `patience`
        seconds."""
        return AsyncEvents(self._door, self._timeout_ms, self._one_name, prefix, name, after, since, patience)

    renew = awaits("renew", operations.renew, "Heartbeat by hand.")
    release = awaits_end(
        "release",
        operations.release,
        "Release by hand; with `done`, the job is marked as done for that many seconds.",
    )
    fail = awaits_end("fail", operations.fail, "Release by hand as failed. See `AsyncClaim.fail`.")
    transfer = awaits(
        "transfer", operations.transfer, "Hand a job to another owner. Returns the new owner's lease."
    )
    owner = awaits("owner", operations.inspect, "The state of a job, and who has it.")
    list = awaits("list", operations.list_jobs, "All jobs with that prefix that are held.")
    history = awaits("history", operations.history, "The newest events of a job, oldest first.")
    break_claim = awaits(
        "break_claim",
        operations.break_claim,
        "Take a job away from its owner, who is told why. For operators.",
    )
    free = awaits("free", operations.free, "Let a parked job be claimed again. For operators.")
