"""Threads that keep what is held: a heart for each hold, and one watchdog for the whole process.

A heart renews. It may be stuck in a call when the deadline comes, so it is not the one that tells: the watchdog is,
which talks to nobody and only looks at the clock.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from dibs.client.places import drive
from dibs.clock import steady_ms
from dibs.errors import DibsError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.pool import Doors
    from dibs.sdk.hold import Hold

log = logging.getLogger("dibs")
NAP_MS_MAX = 1_000  # sleep does not count suspend, the clock does: look at it this often


class Heart(threading.Thread):
    """Renews a hold until it is over or `stop` is called. Knows the hold, not the claim that the program has: when a
    program drops its claim without leaving the block, its hold must not be kept for ever."""

    def __init__(self, hold: Hold, doors: Doors) -> None:
        super().__init__(name=f"dibs heart of {hold.name[:40]}", daemon=True)
        self._hold = hold
        self._doors = doors
        self._wake = threading.Event()
        self._beating = threading.Lock()

    def run(self) -> None:
        while self._hold.left_ms() > 0:
            self._wake.wait(min(NAP_MS_MAX, self._hold.nap_ms()) / 1000)
            if self._hold.left_ms() > 0 and self._hold.is_due():
                self.beat()

    def beat(self) -> None:
        """Renew now, in the calling thread."""
        with self._beating:
            beat_once(self._hold, self._doors)

    def stop(self) -> None:
        """No renewal after this. One that is under way may still arrive; it does no harm."""
        self._wake.set()


def beat_once(hold: Hold, doors: Doors) -> None:
    if hold.lost() is not None:
        return  # let go, or its time passed while we waited for our turn
    try:
        with doors.one(hold.call_ms()) as door:
            drive(door, hold.beating())
    except DibsError as error:  # no way to ask at all: the next attempt may have one
        hold.trouble = error.details
        hold.plan.failed(steady_ms())
    except Exception as error:  # a fault of ours is no reason to go silent
        log.exception("A renewal of %s failed in a way it should not.", hold.name)
        hold.trouble = f"{type(error).__name__}: {error}"
        hold.plan.failed(steady_ms())


class Watchdog:
    """Tells when a deadline has passed, whatever a heart is stuck in."""

    def __init__(self) -> None:
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def watch(self, hold: Hold) -> None:
        if os.getpid() != self._pid:  # a thread does not survive a fork, nor is its lock to be trusted
            self.__init__()  # type: ignore[misc]
        with self._lock:
            self._holds.add(hold)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dibs watchdog", daemon=True)
                self._thread.start()
        self._news.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                live = [hold for hold in self._holds if not hold.is_over]
                if not live:
                    self._thread = None
                    return
            nap_ms = min(NAP_MS_MAX, *(hold.left_ms() for hold in live), NAP_MS_MAX)
            del live  # a hold that nobody has any more must be free to go
            self._news.wait(nap_ms / 1000)
            self._news.clear()
            with self._lock:
                held = [hold for hold in self._holds if not hold.is_over]
            for hold in held:
                try:
                    hold.lost()
                except Exception:  # somebody's listener; the others must hear of theirs
                    log.exception("Telling of the loss of %s failed.", hold.name)
            del held


WATCHDOG = Watchdog()


def telling(on_lost: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], None]:
    """`on_lost` as a listener: in a thread of its own, because a program's callback may take its time. A program that
    ends waits for it, as for every thread."""

    def tell(error: LeaseLost) -> None:
        def call() -> None:
            try:
                on_lost(error)
            except Exception:
                log.exception("on_lost failed for %s.", error.name)

        try:
            threading.Thread(target=call, name="dibs on_lost").start()
        except RuntimeError:  # no more threads, or the program is ending
            call()

    return tell
