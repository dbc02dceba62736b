"""A claim as an `async with` block. The same names as `claim.Claim`; calls to the store are awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dibs.base.errors import DibsError, InvalidInput, NotClaimed
from dibs.sdk import operations, spans
from dibs.sdk.async_doors import LEAVING, drive
from dibs.sdk.async_guard import BlockGuard, shielded
from dibs.sdk.claim_state import (
    GIVE_UP_MS,
    ClaimState,
    confirm_hold,
    finish_hold,
    raise_if_lost_at_exit,
    release_at_exit,
)
from dibs.sdk.hold import LeaseHold, hold_in
from dibs.sdk.methods import given
from dibs.sdk.parameters import explained

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from dibs.base.errors import LeaseLost
    from dibs.sdk.answers import Lease
    from dibs.sdk.async_doors import AsyncDoor
    from dibs.sdk.claim_state import Ending
    from dibs.sdk.hold import SessionHold
    from dibs.sdk.operations import ClaimRequest

T = TypeVar("T")


async def taken(door: AsyncDoor, request: ClaimRequest, timeout_ms: int, session: SessionHold | None) -> LeaseHold:
    """Take the job. If anything fails, including a cancellation at any moment, nothing is left behind."""
    await drive(door, request.named(), timeout_ms)
    if session is not None:
        session.reserve(request.reserved)
    try:
        if session is not None and session.owes:
            await drive(door, session.settle_debts(request.pending.names), timeout_ms)
        leases = await drive(door, operations.acquire(request), timeout_ms)
        sent_ms = request.pending.sent_ms
        if session is None:
            hold = LeaseHold(leases, sent_ms)
        else:
            hold = await drive(door, hold_in(session, leases, sent_ms), timeout_ms)
        if hold.is_due():
            await drive(door, confirm_hold(hold), timeout_ms)
        return hold
    except BaseException as error:
        if not isinstance(error, NotClaimed | InvalidInput):
            await shielded(lambda: given_up(door, request, session))
        raise
    finally:
        if session is not None:
            session.answered(request.reserved)


async def given_up(door: AsyncDoor, request: ClaimRequest, session: SessionHold | None = None) -> None:
    """Give the claim back. If that fails now, its session does it later; without a session it expires."""
    settled = False
    try:
        settled = await drive(door, request.pending.give_up(), GIVE_UP_MS, LEAVING)
    except DibsError:
        pass
    finally:
        if session is not None and not settled:
            session.owe(request.pending)


class AsyncClaim(ClaimState):
    """`async with client.claim(name) as claim:`. When it is lost, the block is cancelled and raises LeaseLost."""

    _block = "async with"

    def __init__(
        self,
        door: AsyncDoor,
        request: ClaimRequest,
        timeout_ms: int,
        on_lost: Callable[[LeaseLost], object] | None = None,
        session: SessionHold | None = None,
    ) -> None:
        super().__init__(request)
        self._door = door
        self._request: ClaimRequest | None = request
        self._fail_on_error = request.fail_on_error
        self._timeout_ms = timeout_ms
        self._on_lost = on_lost
        self._session = session
        self._guard: BlockGuard | None = None

    @property
    def lost(self) -> asyncio.Event:
        """Set when the claim is lost."""
        hold = self._hold
        assert self._guard is not None, f"{hold.name} is held, so its block began"
        return self._guard.lost

    async def __aenter__(self) -> AsyncClaim:
        request, self._request = self._request, None
        if request is None:
            raise InvalidInput(self._used_text())
        span = spans.begin_claim()
        try:
            hold = self._held = await taken(self._door, request, self._timeout_ms, self._session)
        except BaseException as error:
            spans.end_claim(span, None, error)
            raise
        self._guard = BlockGuard(hold, self._door, self._on_lost, beats=self._session is None)
        spans.end_claim(span, hold)
        self._span = spans.begin_hold(hold)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._leave(error)
        finally:
            spans.end_hold(self._span, self._hold, error)

    async def _leave(self, error: BaseException | None) -> None:
        hold, guard = self._hold, self._guard
        ours_alone = guard.leave(error) if guard is not None else False
        if not hold.is_ours:
            return
        if not hold.was_lost and hold.let_go():
            lost = await shielded(lambda: self._released(hold, error))
            if lost is not None and error is None:
                raise lost
        if ours_alone:
            hold.check()
        raise_if_lost_at_exit(hold, error)

    async def _released(self, hold: LeaseHold, error: BaseException | None) -> LeaseLost | None:
        flow = release_at_exit(hold, error, fail_on_error=self._fail_on_error)
        return await drive(self._door, flow, self._timeout_ms, LEAVING)

    @explained
    async def checkpoint(self, text: str, *, metadata: str | None = None) -> None:
        """Store progress for the next owner, now. If that fails, it is sent with the next heartbeat."""
        self.check()
        self._hold.note(text, metadata)
        if self._guard is not None:
            await self._guard.beat()
        self.check()

    @given(ClaimState._done)
    async def done(self, ending: Ending[None]) -> None:
        await self._finish(ending)

    @given(ClaimState._release)
    async def release(self, ending: Ending[None]) -> None:
        await self._finish(ending)

    @given(ClaimState._fail)
    async def fail(self, ending: Ending[None]) -> None:
        await self._finish(ending)

    @given(ClaimState._transfer)
    async def transfer(self, ending: Ending[Lease]) -> Lease:
        return (await self._finish(ending))[0]

    async def _finish(self, ending: Ending[T]) -> list[T]:
        hold = self._hold
        return await shielded(lambda: drive(self._door, finish_hold(hold, ending), self._timeout_ms, LEAVING))
