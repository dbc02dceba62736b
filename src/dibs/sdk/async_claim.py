"""A claim as an `async with` block: `claim.py` for event loops."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any, Self, TypeVar

from dibs.base.errors import DibsError, LeaseLost
from dibs.base.logger import log
from dibs.client.pending import PendingClaim
from dibs.client.pool import TransportPool
from dibs.sdk import async_transport, claim_state
from dibs.sdk.answers import Effect, Lease
from dibs.sdk.async_transport import LEAVING, AsyncTransport, shielded
from dibs.sdk.claim_state import ClaimEnd, Join
from dibs.sdk.effects import Step, Unsure
from dibs.sdk.heart import WATCHDOG, Grip, beat_once
from dibs.sdk.hold import Hold, LeaseHold, SessionHold
from dibs.sdk.methods import explained, given

T = TypeVar("T")


def on_loop(listener: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], None]:
    """`listener`, called on the loop that runs now, whichever thread notices the loss."""
    loop = asyncio.get_running_loop()

    def notify(error: LeaseLost) -> None:
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            listener(error)
        else:
            with suppress(RuntimeError):  # it was closed: nobody works on the job
                loop.call_soon_threadsafe(listener, error)

    return notify


async def renewed_now(transports: TransportPool, beat: Callable[[], None]) -> None:
    """Wait until a thread that renews holds of `transports` has called `beat`."""
    done: Future[None] = Future()
    context = copy_context()  # the trace that the request belongs to

    def renew() -> None:
        if done.set_running_or_notify_cancel():
            context.run(beat)
            done.set_result(None)

    WATCHDOG.renew_soon(transports, renew)
    await asyncio.wrap_future(done)


class BlockGuard:
    """Cancels an `async with` block when its hold is lost.

    It works like `asyncio.timeout`: the task is cancelled, and at the end of the block the cancellation becomes
    LeaseLost, unless the task was also cancelled by others."""

    def __init__(self, hold: Hold, on_lost: Callable[[LeaseLost], object] | None) -> None:
        self._hold = hold
        self._on_lost = on_lost
        task = asyncio.current_task()
        assert task is not None  # a coroutine of ours runs in one
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._inside = True
        self.lost = asyncio.Event()
        weak = weakref.ref(self)  # the hold outlives a claim that was dropped

        def learned(error: LeaseLost) -> None:
            guard = weak()
            if guard is not None:
                guard._notify(error)

        hold.listen(on_loop(learned))

    def _notify(self, error: LeaseLost) -> None:
        if self.lost.is_set():
            return
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
        lost = self._hold.lost() if self._hold.is_ours and self._hold.was_lost else None
        if lost is not None:  # a loop that was blocked has not been told yet
            self._notify(lost)
        if not self._cancelled:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)


async def taken(
    transport: AsyncTransport, request: PendingClaim, session: SessionHold | None, join: Join | None = None
) -> LeaseHold:
    """Take the job. If anything fails, including a cancellation at any moment, nothing is left behind."""
    try:
        return await async_transport.drive(transport, claim_state.take(request, session, join))
    except BaseException as error:
        if not claim_state.is_refusal(error):
            await shielded(lambda: given_up_async(transport, request, session))
        raise
    finally:
        if session is not None:
            session.answered(request)


async def given_up_async(transport: AsyncTransport, request: PendingClaim, session: SessionHold | None = None) -> None:
    """Withdraw the claim. If nobody answers now, its session does it later; without a session it expires."""
    withdrawn = False
    try:
        withdrawn = await async_transport.drive(transport, request.withdraw(), LEAVING, claim_state.GIVE_UP_MS)
    except DibsError:
        pass
    finally:
        if session is not None and not withdrawn:
            session.say_later(request.withdraw)


class AsyncClaim(claim_state.ClaimState["AsyncTransport"]):
    """`async with client.claim(name) as claim:`. When it is lost, the block is cancelled and raises LeaseLost."""

    _block = "async with"
    _guard: BlockGuard | None = None

    @property
    def _renewed_by(self) -> TransportPool:
        return self._transports.transports

    @property
    def lost(self) -> asyncio.Event:
        """Set when the claim is lost."""
        hold = self._hold
        assert self._guard is not None, f"{hold.name} is held, so its block began"
        return self._guard.lost

    async def __aenter__(self) -> Self:
        request = self._begun()
        span = claim_state.begin_claim()
        try:
            hold = self._held = await taken(
                self._transports, request, self._session, self._join if self._nested else None
            )
        except BaseException as error:
            if self._held is not None:
                self._held.leave(self, self.leases)
            claim_state.end_claim(span, None, error)
            raise
        claim_state.end_claim(span, hold)
        try:
            self._enter(hold)
            self._guard = BlockGuard(hold, self._on_lost)
            if self._session is None and self._grip is None:
                self._grip = Grip(hold, self._transports.transports, asyncio.get_running_loop())
        except BaseException:  # no thread, or an interrupt: nothing would renew it
            if left := hold.leave(self, self.leases):
                hold.let_go_of(left)
                await shielded(lambda: given_up_async(self._transports, request, self._session))
            raise
        self._span = claim_state.begin_hold(hold)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._leave(error)
        finally:
            claim_state.end_hold(self._span, self._hold, error)

    async def _leave(self, error: BaseException | None) -> None:
        hold, guard = self._hold, self._guard
        ours_alone = guard.leave(error) if guard is not None else False
        if not hold.is_ours:
            return
        left = hold.leave(self, self.leases)
        if not hold.has(self.leases) or (not left and not hold.was_lost):
            return  # it was ended before, or another block has it, too
        lost = None
        if ended := hold.give_up(left):
            lost = await shielded(lambda: self._released(hold, ended, error))
        if ours_alone:
            hold.check()
        claim_state.raise_if_lost_at_exit(hold, error, lost)

    async def _released(
        self, hold: LeaseHold, leases: tuple[Lease, ...], error: BaseException | None
    ) -> LeaseLost | None:
        flow = claim_state.release_at_exit(hold, leases, error, fail_on_error=self._fail_on_error)
        return await async_transport.drive(self._transports, flow, LEAVING)

    @explained
    async def checkpoint(self, text: str, *, metadata: str | None = None) -> None:
        """Store progress for the next owner, now. If that fails, it is sent with the next heartbeat. What cannot be
        stored raises InvalidInput, and the claim goes on."""
        self.check()
        self._hold.note(self.leases, text, metadata)
        hold, transports, grip = self._hold, self._transports.transports, self._grip
        await renewed_now(transports, grip.heart.beat if grip is not None else lambda: beat_once(hold, transports))
        self.check()
        hold.check_noted()

    @asynccontextmanager
    async def once(self, key: str, *, unsure: Unsure | None = None) -> AsyncIterator[Effect]:
        """A step that changes something outside, and must not be repeated blindly: see `Claim.once`. `key` names the
        step; an exception of `unsure`, or a cancellation, leaves it in doubt."""
        step, transports = Step(self._hold, self.leases, key, unsure), self._transports
        try:
            effect = await async_transport.drive(transports, step.begin())
        except BaseException as trouble:
            step.broken(trouble)
            raise
        failure: BaseException | None = None
        try:
            yield effect
        except BaseException as error:
            failure = error
            raise
        finally:
            if (noting := step.end(failure)) is not None:
                try:
                    await shielded(lambda: async_transport.drive(transports, noting, LEAVING))
                except BaseException as trouble:
                    step.broken(trouble, failure)

    async def _ended(self, ending: ClaimEnd[None]) -> None:
        await self._finish(ending)

    async def _handed_over(self, ending: ClaimEnd[Lease]) -> Lease:
        return (await self._finish(ending))[0]

    done = given(claim_state.ClaimState._done)(_ended)
    release = given(claim_state.ClaimState._release)(_ended)
    fail = given(claim_state.ClaimState._fail)(_ended)
    transfer = given(claim_state.ClaimState._transfer)(_handed_over)

    async def share(self) -> None:
        """Share the job from now on, in one step: who waits to share it gets it at once, and nobody has it alone in
        between. A shared claim never becomes exclusive."""
        hold, leases = self._hold, self.leases
        await shielded(lambda: async_transport.drive(self._transports, claim_state.share_hold(hold, leases)))

    async def _finish(self, ending: ClaimEnd[T]) -> list[T]:
        hold, leases = self._hold, self.leases

        def finish() -> Coroutine[Any, Any, list[T]]:  # perhaps more than once
            return async_transport.drive(self._transports, claim_state.finish_hold(hold, leases, ending), LEAVING)

        return await shielded(finish)


class AsyncLeader(claim_state.LeaderState["AsyncTransport"], AsyncClaim):
    """`async with client.leader(name) as leader:`. When the leadership is lost, the block is cancelled and raises
    LeaseLost."""

    async def resign(self) -> None:
        """Lead no more, before the block ends."""
        await self.release()
