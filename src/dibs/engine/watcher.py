"""Reports news of other servers at once, on a thread of its own, while callers wait here.

Most stores can report news. Waiting for it blocks, and the writing thread must not be blocked; so another thread
waits, and hurries the first. Regular looks continue as well, so a lost message costs only a moment. A store that can
only be polled (`watch` "polling") is left to the sweeper.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from dibs.core.limits import SWEEP_LATE_MS_MAX, WATCH_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.port import Store

log = logging.getLogger("dibs")


class StoreWatcher:
    """`known_seq` returns the last event known here, `is_wanted` whether anybody waits. `tell` is called on this thread
    when there is news; `looked` must be called after the news was read."""

    def __init__(
        self,
        store: Store,
        known_seq: Callable[[], int],
        is_wanted: Callable[[], bool],
        tell: Callable[[], None],
    ) -> None:
        self._store = store
        self._known_seq = known_seq
        self._is_wanted = is_wanted
        self._tell = tell
        self._wake = threading.Event()
        self._looked = threading.Event()
        self._stop = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="dibs-watcher", daemon=True)

    def start(self) -> None:
        if self._store.capabilities.watch != "polling":
            self._thread.start()

    def stop(self) -> None:
        """The thread may still sleep in the store for a moment. Nobody waits for it."""
        self._stop.set()
        self._wake.set()
        self._looked.set()

    def wake(self) -> None:
        """Somebody begins to wait."""
        self._wake.set()

    def looked(self) -> None:
        self._looked.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(WATCH_MS / 1000)
            self._wake.clear()
            while self._is_wanted() and not self._stop.is_set():
                self.watch()

    def watch(self) -> None:
        """One wait at the store."""
        known_seq = self._known_seq()
        self._looked.clear()
        try:
            news = self._store.watch(known_seq, WATCH_MS)
        except Exception as error:
            if not self._failed and not self._stop.is_set():
                log.warning("the store does not report news, so it is polled instead: %s", error)
            self._failed = True
            self._stop.wait(SWEEP_LATE_MS_MAX / 1000)
            return
        self._failed = False
        if news and self._known_seq() == known_seq and not self._stop.is_set():
            self._tell()
            # Do not ask again before the news was read: the store would answer at once.
            self._looked.wait(SWEEP_LATE_MS_MAX / 1000)
