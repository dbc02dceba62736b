"""The streams of events that are open here: how many there may be, their signs of life, and their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from dibs.base.errors import ServerDraining
from dibs.core.limits import (
    OVERLOAD_RETRY_MS,
    STREAM_KEEPALIVE_MS,
    STREAMS_MAX,
    STREAMS_PER_CLIENT_MAX,
)
from dibs.server.http.response import TOO_MANY, HttpError

if TYPE_CHECKING:
    from dibs.server.events.stream import EventStream


class TooManyStreams(HttpError):
    """There are too many streams already."""

    def __init__(self, details: str) -> None:
        super().__init__(details, TOO_MANY, code="rate_limited")
        self.retry_after_ms = OVERLOAD_RETRY_MS


class StreamRegistry:
    """For one event loop. A client is counted as for its connections (`admission.client_of`)."""

    def __init__(self, most: int = STREAMS_MAX, most_per_client: int = STREAMS_PER_CLIENT_MAX) -> None:
        self.most = most
        self.most_per_client = most_per_client
        self.keepalive_s = STREAM_KEEPALIVE_MS / 1000
        self._streams: dict[EventStream, str] = {}
        self._by_client: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.dropped = 0  # how many were ended because nobody read them

    def __len__(self) -> int:
        return len(self._streams)

    def check_room(self, client: str) -> None:
        """Raises if this client may not open one more stream."""
        if self._is_closed:
            raise ServerDraining(
                "This server is about to end and begins no streams. Ask another one, or again in a moment.",
                retry_after_ms=OVERLOAD_RETRY_MS,
            )
        if len(self._streams) >= self.most:
            raise TooManyStreams(
                f"This server has {len(self._streams)} streams of events, which is its limit."
            )
        if self._by_client[client] >= self.most_per_client:
            raise TooManyStreams(
                f"You have {self._by_client[client]} streams of events here, which is the limit for one client."
            )

    def add(self, stream: EventStream, client: str) -> None:
        """Count a stream until its end."""
        self.check_room(client)
        self._streams[stream] = client
        self._by_client[client] += 1
        stream.on_end = lambda: self._remove(stream)
        if self._timer is None:
            self._tick_later()

    def close(self) -> None:
        """End all streams. Their readers go on at another server, or here after a restart."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.finish()

    def _remove(self, stream: EventStream) -> None:
        client = self._streams.pop(stream)
        self.dropped += stream.is_dropped
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _tick_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.keepalive_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for stream in list(self._streams):
            stream.keep_alive()
        if self._streams:
            self._tick_later()
