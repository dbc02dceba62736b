"""Threads that renew holds, for programs with threads and for event loops.

One watchdog for the process looks at the clock. It makes no calls, so it reports every loss at its deadline. What is
due it hands to the threads of a client, which renew its holds. One thread renews them all; others are added only while
it hangs in a call. Nothing here needs an event loop, so a program that blocks its loop keeps its leases.
"""

from __future__ import annotations

import _thread
import os
import threading
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from weakref import WeakKeyDictionary, WeakSet, ref

from dibs.base.cheap import Callable
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, LeaseLost
from dibs.base.logger import log
from dibs.client.flow import drive
from dibs.client.pool import TransportPool
from dibs.sdk.hold import Hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

# Threads and events that an interrupt cannot break.
#
# Ctrl-C and alarms raise in the main thread, between any two steps. `threading.Event` and `Thread.start` take a lock
# inside functions written in Python. An interrupt can come after the lock was taken and before it is released; the next
# thread then waits for ever. The classes here do each such step in one call that cannot be interrupted half-way.

START_SECONDS_MAX = 1.0


class Waker:
    """Wakes one thread. A ring that comes before the thread waits is not lost."""

    def __init__(self) -> None:
        self._silent = _thread.allocate_lock()
        self._silent.acquire()

    def wake(self) -> None:
        try:
            self._silent.release()
        except RuntimeError:  # it was rung already, and nobody has waited since
            pass

    def wait(self, seconds: float) -> bool:
        """Tell whether it was rung."""
        return self._silent.acquire(timeout=max(0.0, seconds))


class SafeEvent(threading.Event):
    """An event that stays usable if the thread that sets it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._wakers: list[Waker] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for waker in list(self._wakers):
            waker.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        waker = Waker()
        self._wakers.append(waker)
        try:
            if not self.is_set():
                waker.wait(threading.TIMEOUT_MAX if timeout is None else timeout)
            return self.is_set()
        finally:
            self._wakers.remove(waker)


def start_thread(target: Callable[[], None], name: str, *, daemon: bool) -> None:
    """Start a thread from any thread, including the main one. Raises RuntimeError if no more threads can be started."""
    begun = Waker()
    failed: list[RuntimeError] = []

    def begin() -> None:  # not in the main thread: no interrupt comes here
        try:
            threading.Thread(target=target, name=name, daemon=daemon).start()
        except RuntimeError as error:
            failed.append(error)
        begun.wake()

    _thread.start_new_thread(begin, ())
    begun.wait(START_SECONDS_MAX)
    if failed:
        raise failed[0]


NAP_MS_MAX = 1_000  # sleep does not count suspend, the clock does: look at it this often
LINGER_MS = 2_000
THREADS_MAX = 32  # of one client
THREAD_LINGER_S = 10.0
_NUMBERS = count()  # two hearts may be due at the same time
STUCK_MS = 250  # nothing was taken for so long: all threads hang in a call


class HeartThreads:
    """The threads that renew a client's holds. Only the watchdog starts them: the main thread may be interrupted."""

    def __init__(self) -> None:
        self._due: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.Lock()
        self._running = 0
        self._moved_ms = 0  # when something was last added to an empty queue, or taken

    def add(self, renew: Callable[[], object]) -> None:
        if self._due.empty():
            self._moved_ms = steady_ms()
        self._due.put(renew)

    def tend(self) -> None:
        """Start a thread if something is due and nobody takes it."""
        with self._lock:
            moves = self._running and steady_ms() - self._moved_ms < STUCK_MS
            if self._due.empty() or moves or self._running >= THREADS_MAX:
                return
            self._running += 1
            self._moved_ms = steady_ms()
        try:
            threading.Thread(target=self._run, name="dibs heart", daemon=True).start()
        except RuntimeError as error:  # no more threads to be had: perhaps later
            log.warning("Heartbeats wait for a thread: %s", error)
            with self._lock:
                self._running -= 1

    def _run(self) -> None:
        while (renew := self._taken()) is not None:
            try:
                renew()
            except Exception:
                log.exception("A heartbeat failed in a way it should not.")
            renew = None  # it refers to the hold

    def _taken(self) -> Callable[[], object] | None:
        """The next renewal. None: there was none for a while, and this thread ends."""
        try:
            return self._due.get(timeout=THREAD_LINGER_S)
        except Empty:
            with self._lock:
                self._running -= 1
            return None
        finally:
            self._moved_ms = steady_ms()


class Heart:
    """Renews a hold until it ends. It refers to the hold, not to the program's claim: if a program drops its claim
    without leaving the block, the hold must not be renewed for ever. Nor after its `loop` was closed."""

    grip: ref[Grip]

    def __init__(self, hold: Hold, transports: TransportPool, loop: AbstractEventLoop | None) -> None:
        self.hold = hold
        self.transports = transports
        self._loop = loop
        self._is_queued = False

    def look(self, threads: HeartThreads) -> None:
        """Called by the watchdog: reports a loss at the deadline, and has the hold renewed when that is due."""
        if self._loop is not None and self._loop.is_closed():
            self.hold.let_go()
        if self.hold.lost() is None and self.hold.is_due() and not self._is_queued:
            self._is_queued = True
            threads.add(self._renew)

    def nap_ms(self) -> int:
        """Until the watchdog must look again."""
        due_ms = STUCK_MS if self._is_queued else self.hold.nap_ms()
        return max(1, min(NAP_MS_MAX, due_ms, self.hold.left_ms()))

    def _renew(self) -> None:
        try:
            self.beat()
        finally:
            self._is_queued = False

    def pass_time(self, ms: int) -> None:
        """Bring its deadline nearer, as time does. For tests whose clock was moved (`dibs.testing`)."""
        with self.hold.beating:
            self.hold.pass_time(ms)
        self.hold.lost()

    def beat(self) -> None:
        """Renew now, in the calling thread."""
        beat_once(self.hold, self.transports)


class Grip:
    """The program's end of a hold that is renewed: only its claim or its session refers to it. If the program drops
    that without leaving the block, nobody works on the job, so it is not renewed any more."""

    __slots__ = ("__weakref__", "_hold", "heart")

    def __init__(self, hold: Hold, transports: TransportPool, loop: AbstractEventLoop | None = None) -> None:
        self._hold = hold
        self.heart = Heart(hold, transports, loop)
        self.heart.grip = ref(self)
        WATCHDOG.watch(self.heart)

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)  # an interrupt may come before it has one
        # In a forked child nothing is renewed, and the locks of the parent's hold may be held for ever.
        if hold is not None and not hold.is_over and hold.is_ours:
            hold.let_go()


def beat_once(hold: Hold, transports: TransportPool) -> None:
    """Renew now, in the calling thread."""
    with hold.beating:
        if hold.lost() is not None:
            return  # released, or expired while we waited for the lock
        try:
            with transports.one(hold.call_ms()) as transport:
                drive(transport, hold.heartbeat())
        except DibsError as error:  # no connection: the next attempt may have one
            hold.failed(error.details)
        except Exception as error:  # after an unexpected error, keep trying
            log.exception("A renewal of %s failed in a way it should not.", hold.name)
            hold.failed(f"{type(error).__name__}: {error}")


class Watchdog:
    """Watches all deadlines of the process, even if all other threads are stuck. Its thread ends when it is idle."""

    def __init__(self) -> None:
        self._hearts: WeakSet[Heart] = WeakSet()
        self._new: list[Heart] = []  # those that its thread has not seen yet
        self._new_max = 1  # with more, it looks which of them are over
        self._threads: WeakKeyDictionary[TransportPool, HeartThreads] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._news = Waker()
        self._looks_ms = 0  # when it will look next, if there are no news
        self._runs = False
        self._pid = os.getpid()

    def watch(self, heart: Heart) -> None:
        if os.getpid() != self._pid:  # a thread does not survive a fork, and its lock may be held for ever
            self.__init__()  # type: ignore[misc]
        try:
            with self._lock:
                if len(self._new) > self._new_max:
                    self._new = [each for each in self._new if not each.hold.is_over]
                    self._new_max = 2 * len(self._new) + 1
                self._new.append(heart)
                self._hearts.add(heart)
                begins, self._runs = not self._runs, True
            if begins:
                start_thread(self._run, "dibs watchdog", daemon=True)
            elif heart.hold.plan.look_ms < self._looks_ms:
                self._news.wake()
        except BaseException:  # no thread to be had, or an interrupt. The next one starts another; two do no harm
            self._runs = False
            raise

    def hearts_of(self, transports: TransportPool) -> list[Heart]:
        with self._lock:
            return [heart for heart in self._hearts if heart.transports is transports and not heart.hold.is_over]

    def renew_soon(self, transports: TransportPool, renew: Callable[[], object]) -> None:
        """Have a thread of a client call `renew`. The client has a hold that is watched."""
        self._threads_of(transports).add(renew)
        self._news.wake()

    def _threads_of(self, transports: TransportPool) -> HeartThreads:
        with self._lock:
            return self._threads.setdefault(transports, HeartThreads())

    def _run(self) -> None:
        due: list[tuple[int, int, Heart]] = []
        idle = False
        while True:
            with self._lock:
                if not self._new and not due and idle:
                    self._runs = False
                    return
            idle = not self._news.wait(self._look(due) / 1000) and not due

    def _look(self, due: list[tuple[int, int, Heart]]) -> int:
        """Look after the hearts that are due, of the heap of all. Returns for how long there is nothing to do."""
        with self._lock:
            new, self._new = self._new, []
        for heart in new:
            heappush(due, (0, next(_NUMBERS), heart))
        now_ms = steady_ms()
        while due and due[0][0] <= now_ms:
            heart = heappop(due)[2]
            try:
                if not heart.hold.is_over:
                    heart.look(self._threads_of(heart.transports))
            except Exception:  # a listener failed; the others must still be called
                log.exception("Looking after %s failed.", heart.hold.name)
            if not heart.hold.is_over:
                heappush(due, (now_ms + heart.nap_ms(), next(_NUMBERS), heart))
        for threads in list(self._threads.values()):
            threads.tend()
        nap_ms = max(0, due[0][0] - steady_ms()) if due else LINGER_MS
        self._looks_ms = steady_ms() + nap_ms
        return nap_ms


WATCHDOG = Watchdog()


def in_own_thread(on_lost: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], None]:
    """`on_lost` as a listener in a thread of its own, which may be slow. At its end the program waits for it."""

    def notify(error: LeaseLost) -> None:
        def call() -> None:
            try:
                on_lost(error)
            except Exception:
                log.exception("on_lost failed for %s.", error.name)

        try:
            start_thread(call, "dibs on_lost", daemon=False)
        except RuntimeError:  # no more threads, or the program is ending
            call()

    return notify
