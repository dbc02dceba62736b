"""Threads that renew holds: one watchdog for the process, and a heart for each hold that lasts long enough.

A heart renews a hold. It may be stuck in a call at the deadline, so the watchdog reports the loss: it makes no calls
and only looks at the clock. The watchdog also starts a heart at the first renewal: most blocks have ended by then, and
starting a thread takes as long as claiming a job.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, LeaseLost
from dibs.client.queueing import drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.pool import Doors
    from dibs.sdk.hold import Hold


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


log = logging.getLogger("dibs")
NAP_MS_MAX = 1_000  # sleep does not count suspend, the clock does: look at it this often
LINGER_MS = 2_000


class Heart:
    """Renews a hold until it ends or `stop` is called. It refers to the hold, not to the program's claim: if a program
    drops its claim without leaving the block, the hold must not be renewed for ever."""

    def __init__(self, hold: Hold, doors: Doors) -> None:
        self.hold = hold
        self._doors = doors
        self._wake = Waker()
        self._stopped = False
        self._beating = threading.Lock()
        self._thread: threading.Thread | None = None

    def check_deadline(self) -> None:
        """Called by the watchdog: reports a loss at the deadline, and starts renewing when that is due."""
        if self.hold.lost() is not None or self._thread is not None or not self.hold.is_due():
            return
        thread = threading.Thread(target=self._run, name=f"dibs heart of {self.hold.name[:40]}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads to be had: perhaps later
            self.hold.failed(str(error))
        else:
            self._thread = thread

    def nap_ms(self) -> int:
        """Until the watchdog must look again."""
        return self.hold.nap_ms() if self._thread is None else self.hold.left_ms()

    def _run(self) -> None:
        while self.hold.left_ms() > 0 and not self._stopped:
            if self.hold.is_due():
                self.beat()
            self._wake.wait(min(NAP_MS_MAX, self.hold.nap_ms()) / 1000)

    def beat(self) -> None:
        """Renew now, in the calling thread."""
        with self._beating:
            beat_once(self.hold, self._doors)

    def stop(self) -> None:
        """Stop renewing. A renewal in progress may still arrive, which is harmless."""
        self._stopped = True
        self._wake.wake()


class Grip:
    """The program's end of a hold: only its claim or its session refers to it. If the program drops that without
    leaving the block, nobody works on the job, so it is not renewed any more."""

    __slots__ = ("_heart",)

    def __init__(self, heart: Heart) -> None:
        self._heart = heart

    def __del__(self) -> None:
        heart = getattr(self, "_heart", None)
        if heart is None:
            return  # an interrupt came before it had one
        hold = heart.hold
        # In a forked child there is no heart, and its locks may be held for ever.
        if not hold.is_over and hold.is_ours:
            hold.let_go()
            heart.stop()


def beat_once(hold: Hold, doors: Doors) -> None:
    if hold.lost() is not None:
        return  # released, or expired while we waited for the lock
    try:
        with doors.one(hold.call_ms()) as door:
            drive(door, hold.heartbeat())
    except DibsError as error:  # no connection: the next attempt may have one
        hold.failed(error.details)
    except Exception as error:  # after an unexpected error, keep trying
        log.exception("A renewal of %s failed in a way it should not.", hold.name)
        hold.failed(f"{type(error).__name__}: {error}")


class Watchdog:
    """Watches all deadlines of the process, even if a heart is stuck. Its thread ends after a while without holds, and
    starts again when there is one."""

    def __init__(self) -> None:
        self._hearts: list[Heart] = []
        self._hearts_max = 1  # with more, it looks which of them are over
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
                if len(self._hearts) > self._hearts_max:
                    self._hearts = [each for each in self._hearts if not each.hold.is_over]
                    self._hearts_max = 2 * len(self._hearts) + 1
                self._hearts.append(heart)
                begins, self._runs = not self._runs, True
            if begins:
                start_thread(self._run, "dibs watchdog", daemon=True)
            elif heart.hold.plan.look_ms < self._looks_ms:
                self._news.wake()
        except BaseException:  # no thread to be had, or an interrupt. The next one starts another; two do no harm
            self._runs = False
            raise

    def _run(self) -> None:
        idle = False
        while True:
            with self._lock:
                self._hearts = hearts = [each for each in self._hearts if not each.hold.is_over]
                if not hearts and idle:
                    self._runs = False
                    return
                nap_ms = min([LINGER_MS if not hearts else NAP_MS_MAX, *(heart.nap_ms() for heart in hearts)])
                self._looks_ms = steady_ms() + nap_ms
            idle = not self._news.wait(nap_ms / 1000) and not hearts
            for heart in hearts:
                try:
                    heart.check_deadline()
                except Exception:  # a listener failed; the others must still be called
                    log.exception("Looking after %s failed.", heart.hold.name)
            del hearts


WATCHDOG = Watchdog()


def in_own_thread(on_lost: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], None]:
    """`on_lost` as a listener that runs in its own thread, because a callback may be slow. At its end the program
    waits for it, as for every thread."""

    def tell(error: LeaseLost) -> None:
        def call() -> None:
            try:
                on_lost(error)
            except Exception:
                log.exception("on_lost failed for %s.", error.name)

        try:
            start_thread(call, "dibs on_lost", daemon=False)
        except RuntimeError:  # no more threads, or the program is ending
            call()

    return tell
