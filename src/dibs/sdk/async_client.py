"""The client for event loops, with the names of `client.py`. One may be shared by all tasks of a program, survives a
fork, and serves any number of loops: each has connections of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError
from dibs.base.logger import log
from dibs.client.flow import Flow
from dibs.client.pending import PendingClaim
from dibs.client.settings import Settings
from dibs.sdk import async_transport, operations
from dibs.sdk.answers import Lease
from dibs.sdk.async_claim import AsyncClaim, AsyncLeader, BlockGuard, given_up_async
from dibs.sdk.async_events import AsyncEvents
from dibs.sdk.async_transport import LEAVING, AsyncTransport, open_transport, shielded
from dibs.sdk.claim_state import is_refusal
from dibs.sdk.claims import ClientFace, SessionClaims
from dibs.sdk.client import NOT_ENDED
from dibs.sdk.heart import Grip
from dibs.sdk.hold import SessionHold
from dibs.sdk.methods import described_as, given, named

P = ParamSpec("P")
T = TypeVar("T")


def awaits(
    name: str, flow: Callable[P, Flow[T]], *, to_end: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of `AsyncClient`. `to_end`: it is carried out although its caller is cancelled."""
    named_flow = named(flow)

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def begin() -> Coroutine[Any, Any, T]:
            asked: Coroutine[Any, Any, T] = self._run(named_flow(self, *args, **kwargs))
            return asked

        return await (shielded(begin) if to_end else begin())

    return described_as(method, name, flow)


class AsyncSession(SessionClaims[AsyncClaim, AsyncTransport]):
    """Claims made through it need no heartbeats of their own. When it is lost, the block is cancelled."""

    _claim_type = AsyncClaim
    _guard: BlockGuard | None = None
    _grip: Grip | None = None

    async def __aenter__(self) -> AsyncSession:
        self._check_first()
        try:
            hold = await shielded(self._open)
            self._guard = BlockGuard(hold, self._on_lost)
            self._grip = Grip(hold, self._transports.transports, asyncio.get_running_loop())
        except BaseException:  # cancelled; or no thread, or an interrupt: nothing would renew it
            held = self._held
            if held is not None and held.let_go():
                await shielded(lambda: self._ended(held))
            raise
        return self

    async def _open(self) -> SessionHold:
        self._held = await async_transport.drive(self._transports, self._opening())
        return self._held

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        hold = self._hold
        ours_alone = self._guard.leave(error) if self._guard is not None else False
        if not hold.is_ours:
            return
        if not hold.was_lost and hold.let_go():
            await shielded(lambda: self._ended(hold))
        elif ours_alone or (hold.was_lost and error is None):
            hold.check()

    async def _ended(self, hold: SessionHold) -> None:
        try:
            await async_transport.drive(self._transports, operations.end_session(hold.session_id), LEAVING)
        except DibsError as trouble:
            log.warning(NOT_ENDED, trouble.details)


class JoinableSession(AsyncSession):
    """A session of one's own, or one that others use, too: `joins` gives its id, and it is not ended here. For whoever
    makes claims in it by other means than its methods, as the tools of an agent do."""

    def __init__(
        self, transports: AsyncTransport, owner: str | None, metadata: str, joins: Callable[[], str] | None
    ) -> None:
        super().__init__(transports, owner, None, metadata, None)
        self.joins = joins

    @property
    def owner(self) -> str | None:
        return self._owner

    @property
    def hold(self) -> SessionHold:
        return self._hold

    async def _open(self) -> SessionHold:
        if self.joins is None:
            return await super()._open()
        sent_ms = steady_ms()
        session_id = await asyncio.to_thread(self.joins)
        found = await async_transport.drive(self._transports, operations.join_session(session_id))
        self._owner = self._owner or found["owner"]
        self._held = SessionHold(found, sent_ms)
        return self._held

    async def _ended(self, hold: SessionHold) -> None:
        if self.joins is None:
            await super()._ended(hold)


class AsyncClient(ClientFace[AsyncClaim, AsyncSession, AsyncLeader, AsyncEvents, AsyncTransport]):
    """`Client` for asyncio. Requests to a server use the event loop; a store is called in threads."""

    _claim_type = AsyncClaim
    _session_type = AsyncSession
    _leader_type = AsyncLeader

    def _open(self, settings: Settings) -> None:
        self._transports = open_transport(settings, self._timeout_ms)
        self._finishing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close files and connections. Claims stay held: leave their blocks first. Releases in progress
        (`AsyncLock.release()`) are finished first."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._finishing if task.get_loop() is loop]
        if tasks:
            await shielded(lambda: asyncio.wait(tasks))
        self._closed = True
        self._transports.close()

    def _finish(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Release something in a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(ending)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _run(self, flow: Flow[T]) -> T:
        return await async_transport.drive(self._transports, flow)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> AsyncEvents:
        return AsyncEvents(self._transports, self._one_name, prefix, name, *where)

    @given(ClientFace._acquire)
    async def acquire(self, request: PendingClaim) -> Lease:
        try:
            return (await self._run(operations.acquire(request)))[0]
        except BaseException as error:
            if request.own_key and not is_refusal(error):  # a caller with its own key can repeat the request
                await shielded(lambda: given_up_async(self._transports, request))
            raise

    renew = awaits("renew", operations.renew)
    release = awaits("release", operations.release, to_end=True)
    fail = awaits("fail", operations.fail, to_end=True)
    transfer = awaits("transfer", operations.transfer)
    owner = awaits("owner", operations.inspect)
    list = awaits("list", operations.list_jobs)
    history = awaits("history", operations.history)
    overdue = awaits("overdue", operations.overdue)
    break_claim = awaits("break_claim", operations.break_claim)
    free = awaits("free", operations.free)
    close_job = awaits("close_job", operations.close_job)
    open_job = awaits("open_job", operations.open_job)
    set_pool = awaits("set_pool", operations.set_pool)
    next_number = awaits("next_number", operations.next_number)
    return_number = awaits("return_number", operations.return_number)
    pools = awaits("pools", operations.list_pools)
