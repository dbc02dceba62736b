"""Fetches again and again on a thread of its own, so that keys are answered while a server is slow or away."""

from __future__ import annotations

import threading

from dibs.base.clock import steady_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SHARE = 20  # a fetch takes at most one part in so many of the time
END_S = 0.2


class Refresher:
    """`latest` is what was fetched last, and `latest_ms` when. `tell` is called after each fetch, on the thread."""

    def __init__(self, fetch: Callable[[], Any], interval_ms: int, tell: Callable[[], None]) -> None:
        self._fetch = fetch
        self._interval_ms = interval_ms
        self._tell = tell
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dibs-refresh", daemon=True)
        self.latest: Any = None
        self.latest_ms = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Whether it has ended. If a server keeps it waiting, nobody waits for it."""
        self._is_over.set()
        self._thread.join(END_S)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                began_ms = steady_ms()
                found = self._fetch()
                self.latest_ms = steady_ms()
                self.latest = found
                self._tell()
                took_ms = self.latest_ms - began_ms
                self._is_over.wait(max(self._interval_ms, SHARE * took_ms) / 1000)
        except BaseException as error:  # for the main thread, which reports it
            self.error = error
            self._tell()
