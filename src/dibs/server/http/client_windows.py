"""Counts requests of each client by the minute, for what needs no token. Clients that nobody counts apart share one
count, so that many addresses cannot fill the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.core.limits import PUBLIC_CLIENTS_MAX, PUBLIC_REQUESTS_MS
from dibs.engine.rate import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

_OTHERS = ""


class ClientWindows:
    """For one event loop. A client is named as for its connections."""

    def __init__(self, most: int, what: str, steady: Callable[[], int] = steady_ms) -> None:
        self._most = most
        self._what = what
        self._steady = steady
        self._windows: dict[str, tuple[int, int]] = {}  # since when, and how many

    def __len__(self) -> int:
        return len(self._windows)

    def check(self, client: str) -> None:
        """Raises RateLimited if one more is too many."""
        now_ms = self._steady()
        since_ms, count = self._windows.get(self._counted_as(client, now_ms), (now_ms, 0))
        if count >= self._most and now_ms - since_ms < PUBLIC_REQUESTS_MS:
            raise RateLimited(
                f"One client may send {self._most} {self._what} a minute here. Ask again later.",
                since_ms + PUBLIC_REQUESTS_MS - now_ms,
            )

    def charge(self, client: str) -> None:
        """Count one; raises RateLimited, and counts nothing, if it is one too many."""
        self.check(client)
        now_ms = self._steady()
        client = self._counted_as(client, now_ms)
        since_ms, count = self._windows.get(client, (now_ms, 0))
        if now_ms - since_ms >= PUBLIC_REQUESTS_MS:
            since_ms, count = now_ms, 0
        self._windows[client] = since_ms, count + 1

    def _counted_as(self, client: str, now_ms: int) -> str:
        if client in self._windows or len(self._windows) < PUBLIC_CLIENTS_MAX:
            return client
        self._windows = {
            each: window for each, window in self._windows.items() if now_ms - window[0] < PUBLIC_REQUESTS_MS
        }
        return client if len(self._windows) < PUBLIC_CLIENTS_MAX else _OTHERS
