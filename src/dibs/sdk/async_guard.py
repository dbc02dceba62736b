"""Renews a hold while an `async with` block runs, and cancels the block when the hold is lost.

It works like `asyncio.timeout`: the task is cancelled, and at the end of the block the cancellation becomes LeaseLost,
unless the task was also cancelled by others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from dibs.base.errors import LeaseLost
from dibs.sdk.async_doors import KEEPING, drive

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from dibs.sdk.async_doors import AsyncDoor
    from dibs.sdk.hold import Hold

log = logging.getLogger("dibs")
T = TypeVar("T")
NAP_MS_MAX = 1_000  # a loop's clock does not count suspend: look at ours this often
TRIES = 3


async def shielded(begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `begin()` to its end, despite cancellations; they take effect afterwards. It takes a bounded time, like
    every request. A loop that shuts down cancels all tasks, including the one that does the work: then the work is
    started again."""
    cancelled: asyncio.CancelledError | None = None
    left = TRIES
    while True:
        task = asyncio.ensure_future(begin())
        left -= 1
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if left == 0 or not task.cancelled():
            break
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # its result does not matter to a cancelled task
    raise cancelled


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
                    await drive(self._door, hold.heartbeat(), call_ms, KEEPING)
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
