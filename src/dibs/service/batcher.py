"""Group commit: the next batch gathers during a commit, and one write answers all its commands.

One thread does all writing. It takes the gathered commands, decides and commits them (`service/liveness.py`), and
returns the answers with one call into the event loop per batch. Between batches it does its chores
(`service/sweeper.py`), so only this thread waits for the store's writes. Results for other callers (`after`) reach the
loop after the answers of the batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from dibs.clock import steady_ms
from dibs.core.limits import COMMIT_BATCH_MAX, COMMIT_QUEUE_MAX, OVERLOAD_RETRY_MS, SWEEP_LATE_MS_MAX
from dibs.errors import DibsError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome

    Result = Outcome | BaseException
    Callback = Callable[[Result], None]

log = logging.getLogger("dibs")


_NEVER_MS = 2**62


class Overloaded(Unavailable):
    """There are far more requests than the store can write. Nothing was done; `retry_after_ms` says when to try
    again."""

    code = "capacity_exceeded"
    retry_after_ms = OVERLOAD_RETRY_MS


class Batcher:
    """Commands and answers are on the event loop's thread; the writing is on another thread, which this starts.

    `run` decides a batch on that other thread, and `chore` is called there between batches: it returns in how many
    milliseconds it wants to be called again. `deliver` brings a call onto the loop (`call_soon_threadsafe`), `soon`
    postpones one until the loop has handled everything that is ready (`call_soon`).

    The loop decides when the next batch begins: after it has delivered the last answers and read new requests. A
    thread that took the next batch at once would take twice as many batches of half the size, and compete with the
    loop for the interpreter (measured: a quarter more time per command).
    """

    def __init__(
        self,
        run: Callable[[Sequence[Command]], list[Result]],
        *,
        deliver: Callable[..., object],
        soon: Callable[[Callable[[], None]], object] = lambda call: call(),
        chore: Callable[[], int] | None = None,
        steady: Callable[[], int] = steady_ms,
    ) -> None:
        self._run = run
        self._deliver = deliver
        self._soon = soon
        self._chore = chore
        self._steady = steady
        self._queue: deque[tuple[Command, Callback]] = deque()
        self._after: list[tuple[Callable[..., object], tuple[object, ...]]] = []  # the thread's own
        self._chore_at_ms = steady()
        self._wake = threading.Event()
        self._is_running = False  # a batch is with the thread
        self._is_gathering = False  # the next is about to be handed over
        self._stopping = False
        self._chore_failed = False
        # A daemon: a store that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="dibs-batcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_ms: int) -> bool:
        """Accept no more commands, and answer the accepted ones. False if that was not finished in time."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_ms / 1000)
        return not self._thread.is_alive()

    def post(self, command: Command, callback: Callback) -> None:
        """Decide `command`; `callback` gets its outcome or the error."""
        if self._stopping:
            raise Unavailable("The server is shutting down. Try again in a moment.")
        if len(self._queue) >= COMMIT_QUEUE_MAX:
            raise Overloaded("The server is overloaded. Try again later.")
        self._queue.append((command, callback))
        if not self._is_running:
            self._gather()

    def after(self, call: Callable[..., object], *args: object) -> None:
        """For `run` and `chore`, on their thread: call this on the loop after the answers were delivered."""
        self._after.append((call, args))

    def hurry(self, within_ms: int) -> None:
        """Do the next chore soon, even if one is running now. For any thread."""
        at_ms = self._steady() + within_ms
        if at_ms < self._chore_at_ms:
            self._chore_at_ms = at_ms
            self._wake.set()

    def _gather(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self._soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_gathering = False
        self._is_running = True
        self._wake.set()

    def _hand_out(self, batch: list[tuple[Command, Callback]], results: list[Result]) -> None:
        self._is_running = False
        for (_, callback), result in zip(batch, results, strict=True):
            try:
                callback(result)
            except Exception:  # an error with one caller must not cost the others their answers
                log.exception("an answer could not be delivered")
        if self._queue:
            self._gather()

    async def submit(self, command: Command) -> Outcome:
        """The outcome of `command`; raises its error."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def settle(result: Result) -> None:
            if future.done():  # the caller is gone
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.post(command, settle)
        return await future

    def _work(self) -> None:
        while not self._stopping:
            wait_ms = min(max(self._chore_at_ms - self._steady(), 0), SWEEP_LATE_MS_MAX)
            if self._wake.wait(wait_ms / 1000):
                self._wake.clear()
                self._answer()
            if self._chore is not None and self._steady() >= self._chore_at_ms and not self._stopping:
                self._chore_at_ms = _NEVER_MS  # a call of `hurry` meanwhile is not lost
                rest_ms = self._do_chore(self._chore)
                self._chore_at_ms = min(self._chore_at_ms, self._steady() + rest_ms)
                self._tell_after()
        while self._queue:
            self._answer()

    def _answer(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), COMMIT_BATCH_MAX))]
        results: list[Result] = []
        try:
            if batch:
                results = self._run([command for command, _ in batch])
        except BaseException as error:
            results = [error] * len(batch)
        try:
            self._deliver(self._hand_out, batch, results)
        except RuntimeError:  # the loop is closed: nobody is left to answer
            log.warning("%d answers could not be delivered", len(batch))
        self._tell_after()

    def _tell_after(self) -> None:
        if self._after:
            after, self._after = self._after, []
            for call, args in after:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._deliver(call, *args)

    def _do_chore(self, chore: Callable[[], int]) -> int:
        try:
            wait_ms = chore()
        except Exception as error:
            if not self._chore_failed:
                # Errors of the store need no traceback; any other error is a bug.
                ours = None if isinstance(error, DibsError) else error
                log.error("sweeping failed and will be tried again: %s", error, exc_info=ours)
            self._chore_failed = True
            return SWEEP_LATE_MS_MAX
        if self._chore_failed:
            log.warning("sweeping works again")
        self._chore_failed = False
        return wait_ms
