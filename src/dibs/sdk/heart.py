"""Threads that keep what is held: one watchdog for the whole process, and a heart for each hold that lasts.

A heart renews. It may be stuck in a call when the deadline comes, so it is not the one that tells: the watchdog is,
which talks to nobody and only looks at the clock. It also starts the hearts, when there is something to renew for the
first time: most blocks are over by then, and starting a thread takes as long as claiming a job.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from dibs.client.queueing import drive
from dibs.clock import steady_ms
from dibs.errors import DibsError, LeaseLost
from dibs.sdk.threads import Waker, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.pool import Doors
    from dibs.sdk.hold import Hold

log = logging.getLogger("dibs")
NAP_MS_MAX = 1_000  # sleep does not count suspend, the clock does: look at it this often
LINGER_MS = 2_000


class Heart:
    """Renews a hold until it is over or `stop` is called. Knows the hold, not the claim that the program has: when a
    program drops its claim without leaving the block, its hold must not be kept for ever."""

    def __init__(self, hold: Hold, doors: Doors) -> None:
        self.hold = hold
        self._doors = doors
        self._wake = Waker()
        self._stopped = False
        self._beating = threading.Lock()
        self._thread: threading.Thread | None = None

    def check_deadline(self) -> None:
        """What the watchdog does: tell of the deadline, begin to renew when that is due."""
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
        """No renewal after this. One that is under way may still arrive; it does no harm."""
        self._stopped = True
        self._wake.wake()


def beat_once(hold: Hold, doors: Doors) -> None:
    if hold.lost() is not None:
        return  # let go, or its time passed while we waited for our turn
    try:
        with doors.one(hold.call_ms()) as door:
            drive(door, hold.heartbeat())
    except DibsError as error:  # no way to ask at all: the next attempt may have one
        hold.failed(error.details)
    except Exception as error:  # a fault of ours is no reason to go silent
        log.exception("A renewal of %s failed in a way it should not.", hold.name)
        hold.failed(f"{type(error).__name__}: {error}")


class Watchdog:
    """Looks at every deadline of the process, whatever a heart is stuck in. Ends when it had nothing to look at for a
    while, and begins again when there is."""

    def __init__(self) -> None:
        self._hearts: list[Heart] = []
        self._lock = threading.Lock()
        self._news = Waker()
        self._looks_ms = 0  # when it will look next, if there are no news
        self._runs = False
        self._pid = os.getpid()

    def watch(self, heart: Heart) -> None:
        if os.getpid() != self._pid:  # a thread does not survive a fork, nor is its lock to be trusted
            self.__init__()  # type: ignore[misc]
        try:
            with self._lock:
                self._hearts = [each for each in self._hearts if not each.hold.is_over] + [heart]
                begins, self._runs = not self._runs, True
            if begins:
                start_thread(self._run, "dibs watchdog", daemon=True)
            elif steady_ms() + heart.nap_ms() < self._looks_ms:
                self._news.wake()
        except (
            BaseException
        ):  # no thread to be had, or an interrupt. The next one starts another; two do no harm
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
                except Exception:  # somebody's listener; the others must hear of theirs
                    log.exception("Looking after %s failed.", heart.hold.name)
            del hearts


WATCHDOG = Watchdog()


def in_own_thread(on_lost: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], None]:
    """`on_lost` as a listener: in a thread of its own, because a program's callback may take its time. A program that
    ends waits for it, as for every thread."""

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
