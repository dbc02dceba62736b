"""A claim as an `async with` block. The same names as `claim.Claim`; calls to the store are awaited."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from dibs.base.errors import DibsError, LeaseLost
from dibs.sdk.async_doors import KEEPING, LEAVING, drive, shielded
from dibs.sdk.claim_state import (
    GIVE_UP_MS,
    ClaimState,
    LeaderState,
    begin_claim,
    begin_hold,
    end_claim,
    end_hold,
    finish_hold,
    is_refusal,
    raise_if_lost_at_exit,
    release_at_exit,
    take,
)
from dibs.sdk.hold import LeaseHold
from dibs.sdk.methods import explained, given

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from dibs.base.errors import LeaseLost
    from dibs.client.queueing import PendingClaim
    from dibs.sdk.answers import Lease
    from dibs.sdk.async_doors import AsyncDoor
    from dibs.sdk.claim_state import Ending
    from dibs.sdk.hold import Hold, SessionHold


# Renews a hold while an `async with` block runs, and cancels the block when the hold is lost.
#
# It works like `asyncio.timeout`: the task is cancelled, and at the end of the block the cancellation becomes
# LeaseLost, unless the task was also cancelled by others.

log = logging.getLogger("dibs")
T = TypeVar("T")
NAP_MS_MAX = 1_000  # a loop's clock does not count suspend: look at ours this often


class BlockGuard:
    """The guard of one block. `beats`: it renews the hold; otherwise it only reports the loss."""

    def __init__(
        self, hold: Hold, door: AsyncDoor, on_lost: Callable[[LeaseLost], object] | None, *, beats: bool
    ) -> None:
        self._hold = hold
        self._door = door
        self._on_lost = on_lost
        self._beating = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # a coroutine of ours runs in one
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._inside = True
        self.lost = asyncio.Event()
        hold.listen(self._learned)
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None  # most blocks end before the first renewal is due
        if beats:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(min(NAP_MS_MAX, self._hold.nap_ms()) / 1000, self._look)

    def _look(self) -> None:
        hold = self._hold
        if hold.left_ms() <= 0:
            hold.lost()
        elif hold.is_due():
            self._keeper = self._loop.create_task(self.beat(), name=f"dibs heart of {hold.name[:40]}")
            self._keeper.add_done_callback(self._look_after)
        else:
            self._look_later()

    def _look_after(self, _: asyncio.Task[None]) -> None:
        """Also after a program cancelled all its tasks: as long as its block goes on, so does this."""
        if self._inside:
            self._look_later()

    async def beat(self) -> None:
        """Renew now, within the time left."""
        hold = self._hold
        async with self._beating:
            if hold.lost() is not None:
                return  # it expired while we waited for the lock
            call_ms = hold.call_ms()
            try:
                async with asyncio.timeout(call_ms / 1000):
                    await drive(self._door, hold.heartbeat(), KEEPING, call_ms)
            except TimeoutError:
                hold.failed(f"no answer within {call_ms / 1000:g} s")
            except Exception as error:  # after an unexpected error, the next attempt may succeed
                log.exception("A renewal of %s failed in a way it should not.", hold.name)
                hold.failed(f"{type(error).__name__}: {error}")

    def _learned(self, error: LeaseLost) -> None:
        """Called once, by the first to notice the loss: our loop, or a thread that called `check()`."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._tell(error)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, error)

    def _tell(self, error: LeaseLost) -> None:
        self.lost.set()
        if self._on_lost is not None:
            try:
                self._on_lost(error)
            except Exception:
                log.exception("on_lost failed for %s.", error.name)
        # In the block's own task, the call itself raises it.
        if self._inside and asyncio.current_task() is not self._task:
            self._cancelled = True
            self._task.cancel()

    def leave(self, error: BaseException | None) -> bool:
        """The block has ended. True if only this guard cancelled it."""
        self._inside = False
        if self._timer is not None:
            self._timer.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
        if not self._cancelled:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)


async def taken(door: AsyncDoor, request: PendingClaim, session: SessionHold | None) -> LeaseHold:
    """Take the job. If anything fails, including a cancellation at any moment, nothing is left behind."""
    try:
        return await drive(door, take(request, session))
    except BaseException as error:
        if not is_refusal(error):
            await shielded(lambda: given_up(door, request, session))
        raise
    finally:
        if session is not None:
            session.answered(request)


async def given_up(door: AsyncDoor, request: PendingClaim, session: SessionHold | None = None) -> None:
    """Give the claim back. If that fails now, its session does it later; without a session it expires."""
    settled = False
    try:
        settled = await drive(door, request.give_up(), LEAVING, GIVE_UP_MS)
    except DibsError:
        pass
    finally:
        if session is not None and not settled:
            session.owe(request)


class AsyncClaim(ClaimState["AsyncDoor"]):
    """`async with client.claim(name) as claim:`. When it is lost, the block is cancelled and raises LeaseLost."""

    _block = "async with"

    _guard: BlockGuard | None = None

    @property
    def lost(self) -> asyncio.Event:
        """Set when the claim is lost."""
        hold = self._hold
        assert self._guard is not None, f"{hold.name} is held, so its block began"
        return self._guard.lost

    async def __aenter__(self) -> AsyncClaim:
        request = self._begun()
        span = begin_claim()
        try:
            hold = self._held = await taken(self._doors, request, self._session)
        except BaseException as error:
            end_claim(span, None, error)
            raise
        self._guard = BlockGuard(hold, self._doors, self._on_lost, beats=self._session is None)
        end_claim(span, hold)
        self._span = begin_hold(hold)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._leave(error)
        finally:
            end_hold(self._span, self._hold, error)

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
        return await drive(self._doors, flow, LEAVING)

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
        return await shielded(lambda: drive(self._doors, finish_hold(hold, ending), LEAVING))


class AsyncLeader(LeaderState["AsyncDoor"], AsyncClaim):
    """`async with client.leader(name) as leader:`. When the leadership is lost, the block is cancelled and raises
    LeaseLost."""

    async def __aenter__(self) -> AsyncLeader:
        await super().__aenter__()
        return self

    async def resign(self) -> None:
        """Lead no more, before the block ends."""
        await self.release()
