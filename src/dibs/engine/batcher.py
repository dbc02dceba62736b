"""Group commit: the next batch gathers during a commit, and one write answers all its commands.

A batch is decided and committed (`engine/decider.py`) in one of two places. **At once**, on the event loop: it reads
all sockets that are ready, decides, commits, answers all. This costs no hand-over between threads, and it is possible
while commits and decisions are quick (`engine/pace.py`). **On a thread**, if they are slow, if the store has to be
waited for, or if the thread is at work. The loop reads on meanwhile, and gets the answers with one call per batch. A
lock keeps the two places apart; the loop never waits for it. Results for other callers (`after`) reach the loop after
the answers of the batch under way, whoever they come from: a caller that waits must be parked before its turn is
reported.

**Under load**, what keeps something alive or frees it goes before what begins something or only looks. A claim whose
caller has hung up is not decided. And claims are refused, with a time to come back, as soon as they would wait longer
than their callers do: otherwise all of them would be answered when nobody listens any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dibs.base.clock import steady_ms
from dibs.base.errors import Overloaded, StoreUnavailable, Unavailable
from dibs.base.logger import log
from dibs.core.commands import Acquire, AcquireAll, AcquireAny, Command, Inspect, InspectSession, OpenSession
from dibs.core.durations import format_duration
from dibs.core.limits import COMMIT_BATCH_MAX, COMMIT_QUEUE_MAX, OVERLOAD_RETRY_MS, QUEUE_MS_MAX
from dibs.core.outcomes import Outcome
from dibs.engine.metrics import Metrics
from dibs.engine.thread import EngineThread
from dibs.stores.port import Busy

Result = Outcome | BaseException
Callback = Callable[[Result], object]
IsGone = Callable[[], bool]
Asked = tuple[Command, Callback, IsGone | None, int]  # since when it waits

GATHER_TURNS_MAX = 32
# These can wait, and be refused. All others keep something alive or free it.
_LATER = frozenset((Acquire, AcquireAny, AcquireAll, Inspect, InspectSession, OpenSession))
_LATERS_SHARE = COMMIT_BATCH_MAX // 4  # of a batch, however many heartbeats there are


def resolve(future: asyncio.Future[Any], result: object) -> bool:
    """Give a task what it waits for. False if the task was ended."""
    if future.done():
        return False
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
    return True


class Batcher(EngineThread):
    """Commands come and answers go on the event loop's thread. The batcher starts the other thread.

    `run` decides a batch on that other thread. `run_at_once` decides a batch on the loop, while `is_quick` says so; a
    command that would have to wait has the result Busy, and `run` decides it. `deliver` brings a call onto the loop
    (`call_soon_threadsafe`), `soon` postpones one until the loop has handled everything that is ready (`call_soon`).

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
        run_at_once: Callable[[Sequence[Command]], list[Result]] | None = None,
        is_quick: Callable[[], bool] = lambda: True,
        steady: Callable[[], int] = steady_ms,
        metrics: Metrics | None = None,
        queue_max: int = COMMIT_QUEUE_MAX,
    ) -> None:
        super().__init__("dibs-batcher")
        self.queue_max = queue_max
        self._run = run
        self._run_at_once = run_at_once
        self._is_quick = is_quick
        self.metrics = metrics or Metrics()
        self._deciding = threading.Lock()  # whoever decides has it
        self._deliver = deliver
        self._soon = soon
        self._steady = steady
        self._first: deque[Asked] = deque()
        self._later: deque[Asked] = deque()
        self._callers: dict[int, IsGone] = {}  # of the batch that is being decided, by the id of the command
        # Calls that wait until the batch under way is answered.
        self._after: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._silent_since_ms: int | None = None  # since when the store was asked and has answered nothing
        self._is_running = False  # a batch is with the thread
        self._is_gathering = False  # the next is about to be handed over
        self._gathered = self._turns = 0  # how many commands the loop had at the last look, and how often it looked

    def post(self, command: Command, callback: Callback, is_gone: IsGone | None = None) -> None:
        """Decide `command`; `callback` gets its outcome or the error. If `is_gone`, its caller waits no more, and it
        need not be decided; it is asked where the batch is decided."""
        if self._stopping:
            raise Unavailable("The server is shutting down. Try again in a moment.")
        now_ms = self._steady()
        queue = self._later if type(command) in _LATER else self._first
        if len(queue) >= self.queue_max or (queue is self._later and queue and now_ms - queue[0][3] > QUEUE_MS_MAX):
            raise self._refusal(now_ms)
        queue.append((command, callback, is_gone, now_ms))
        if not (self._is_gathering or self._is_running):
            self._gather()

    def _refusal(self, now_ms: int) -> Unavailable:
        """Return the refusal of a full queue. It says whether too much is asked, or the store does not answer at
        all."""
        silent_ms = 0 if self._silent_since_ms is None else now_ms - self._silent_since_ms
        if silent_ms > QUEUE_MS_MAX:
            says = f"The server's store has not answered for {format_duration(silent_ms)}. Nothing was changed."
            return Unavailable(f"{says} Try again later.", retry_after_ms=OVERLOAD_RETRY_MS)
        self.metrics.overloaded += 1
        says = "More is asked of the server than its store takes now. Try again later."
        return Overloaded(says, retry_after_ms=OVERLOAD_RETRY_MS)

    def is_gone(self, command: Command) -> bool:
        """Return whether the caller of a command that is being decided has gone. For `run`, where it runs."""
        is_gone = self._callers.get(id(command))
        return is_gone is not None and is_gone()

    def after(self, call: Callable[..., object], *args: object) -> None:
        """For any thread: call this on the loop, after the answers of the batch under way."""
        try:
            self._deliver(self._call_after, call, args)
        except RuntimeError:  # the loop is closed
            return

    def _call_after(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if self._is_running:
            self._after.append((call, args))
        else:
            call(*args)

    def _gather(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self._gathered = 1
            self._turns = 0
            self._soon(self._hand_over)

    def _hand_over(self) -> None:
        count = len(self._first) + len(self._later)
        if self._gathered < count < COMMIT_BATCH_MAX and self._turns < GATHER_TURNS_MAX:
            # The last turn of the loop brought more, so the next one may, too. libuv accepts one connection per turn:
            # without this, a crowd of new clients would wait for one commit each.
            self._gathered = count
            self._turns += 1
            self._soon(self._hand_over)
            return
        self._is_gathering = False
        if not count:
            return  # the thread took them
        run = self._run_at_once
        if run is None or self._stopping or not self._is_quick() or not self._deciding.acquire(blocking=False):
            self._wake_thread()
        else:
            self._answer_at_once(run)

    def _wake_thread(self) -> None:
        self._is_running = True
        self._wake.set()

    def _answer_at_once(self, run: Callable[[Sequence[Command]], list[Result]]) -> None:
        try:
            batch = self._take()
            results = self._results(run, batch)
            is_late = False
            for asked, result in zip(reversed(batch), reversed(results), strict=True):
                if type(result) is Busy:
                    is_late = True
                    (self._later if type(asked[0]) in _LATER else self._first).appendleft(asked)
        finally:
            self._deciding.release()
        if is_late:
            self._wake_thread()
        self._report(batch, results)
        if self._has_more() and not self._is_running:
            self._gather()

    def _hand_out(self, batch: list[Asked], results: list[Result]) -> None:
        self._is_running = False
        self._report(batch, results)
        if self._has_more():
            self._gather()

    def _report(self, batch: list[Asked], results: list[Result]) -> None:
        for (_, callback, _, _), result in zip(batch, results, strict=True):
            if type(result) is Busy:
                continue  # it is decided again
            try:
                callback(result)
            except Exception:  # an error with one caller must not cost the others their answers
                log.exception("an answer could not be delivered")
        after, self._after = self._after, []
        for call, args in after:
            call(*args)

    async def submit(self, command: Command, is_gone: IsGone | None = None) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.post(command, lambda result: resolve(future, result), is_gone)
        return await future

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            self._answer()
        while self._answer():  # the loop may be at work, and leave something to the thread
            pass

    def _has_more(self) -> bool:
        return bool(self._first or self._later)

    def _take(self) -> list[Asked]:
        first, later = self._first, self._later
        count = min(len(first), COMMIT_BATCH_MAX - min(len(later), _LATERS_SHARE))
        batch = [first.popleft() for _ in range(count)]
        batch += [later.popleft() for _ in range(min(len(later), COMMIT_BATCH_MAX - count))]
        return batch

    def _answer(self) -> bool:
        """Answer a batch on the thread. True if there is more to do."""
        with self._deciding:
            batch = self._take()
            if batch:
                results = self._results(self._run, batch)
                try:
                    self._deliver(self._hand_out, batch, results)
                except RuntimeError:  # the loop is closed: nobody is left to answer
                    log.warning("%d answers could not be delivered", len(batch))
            return self._has_more()

    def _results(self, run: Callable[[Sequence[Command]], list[Result]], batch: list[Asked]) -> list[Result]:
        commands = [asked[0] for asked in batch]
        self._callers = {id(asked[0]): asked[2] for asked in batch if asked[2] is not None}
        if self._silent_since_ms is None:
            self._silent_since_ms = self._steady()
        try:
            results = run(commands)
        except (KeyboardInterrupt, SystemExit):  # a signal, while the main thread decides: it is nobody's answer
            raise
        except BaseException as error:
            results = [error] * len(batch)
        if not all(isinstance(result, StoreUnavailable) for result in results):
            self._silent_since_ms = None
        self._callers = {}
        self.metrics.decided(commands, results)
        return results
