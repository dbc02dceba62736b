"""One reader of a stream of events, from the first byte to the last.

The stream reads what the reader has missed from the store, at the reader's pace, then joins the feed. While it is up to
date it costs no query and no thread. A reader that falls behind by STREAM_BYTES_MAX leaves the feed and is served from
the store again. A reader that takes nothing for STREAM_STALL_MS is cut off, however little it was sent; `event:
dropped` with the position to go on from is the last thing in its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from dibs.base.errors import DibsError, ServerDraining
from dibs.core import limits
from dibs.core.events import Event
from dibs.engine.event_log import EventFilter
from dibs.engine.feed import EventFeed
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import NO_STORE, TOO_MANY, HttpError
from dibs.wire.lease_documents import frame, gap_document, position_frame, retry_frame
from dibs.wire.parts import DROPPED, GAP

HttpConnection = Any  # dibs.server.connection.HttpConnection, which knows these
# The streams of events that are open here: how many there may be, their signs of life, and their end.


class StreamRegistry:
    """For one event loop. A client is counted as for its connections (`admission.client_of`)."""

    def __init__(self) -> None:
        self.most = limits.STREAMS_MAX
        self.most_per_client = limits.STREAMS_PER_CLIENT_MAX
        self.keepalive_s = limits.STREAM_KEEPALIVE_MS / 1000
        self._streams: dict[EventStream, str] = {}
        self._by_client: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.dropped = 0  # how many were ended because nobody read them

    def __len__(self) -> int:
        return len(self._streams)

    def check_room(self, client: str) -> None:
        if self._is_closed:
            raise ServerDraining(
                "This server is about to end and begins no streams. Ask another one, or again in a moment.",
                retry_after_ms=limits.OVERLOAD_RETRY_MS,
            )
        if len(self._streams) >= self.most:
            says = f"This server has {len(self._streams)} streams of events, which is its limit."
        elif self._by_client[client] >= self.most_per_client:
            says = f"You have {self._by_client[client]} streams of events here, which is the limit for one client."
        else:
            return
        raise HttpError(says, TOO_MANY, code="rate_limited", retry_after_ms=limits.OVERLOAD_RETRY_MS)

    def add(self, stream: EventStream, client: str) -> None:
        self.check_room(client)
        self._streams[stream] = client
        self._by_client[client] += 1
        stream.on_end = lambda: self._remove(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.keepalive_s, self._tick)

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

    def _tick(self) -> None:
        for stream in list(self._streams):
            stream.keep_alive()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.keepalive_s, self._tick) if self._streams else None


STALL_S = limits.STREAM_STALL_MS / 1000
_QUEUED = getattr(termios, "TIOCOUTQ", 0)  # of a socket: bytes that are not acknowledged yet
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    **NO_STORE,
    "x-accel-buffering": "no",  # else a proxy may keep events back until it has many
}


class EventStream:
    """`framed` is how this stream shows an event; None if it does not show it. `at` is where it begins."""

    def __init__(
        self,
        feed: EventFeed,
        wanted: EventFilter,
        at: int,
        framed: Callable[[Event], bytes | None],
        *,
        first: bytes = b"",
    ) -> None:
        self.wanted = wanted
        self.at = at  # everything up to here was put into the queue
        self.is_allowed: Callable[[], bool] = lambda: True  # asked again at every keepalive
        self.on_end: Callable[[], None] = lambda: None
        self.is_dropped = False
        self._feed = feed
        self._framed = framed
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0
        self._written_at = at
        self._written_bytes = 0
        self._taken_bytes: int | None = None  # of what was written, at the last look; and since when
        self._taken_at_s = 0.0
        self._news = asyncio.Event()
        self._is_ending = False
        self._is_gone = False
        self._connection: HttpConnection | None = None
        self._put(at, retry_frame(limits.STREAM_RETRY_MS) + (first or position_frame(at, "events")))

    # For the feed.

    def take(self, event: Event) -> None:
        shown = self._framed(event)
        if shown is not None:
            self._put(event.seq, shown)
        self.at = event.seq
        if self._queued_bytes > limits.STREAM_BYTES_MAX:  # it is read again once the reader has taken what was written
            self._feed.leave(self)
            self._queue.clear()
            self._queued_bytes = 0
            self.at = self._written_at

    def report_gap(self, after: int, oldest: int) -> None:
        self._put(oldest - 1, frame(gap_document(after, oldest), oldest - 1, GAP))
        self.at = oldest - 1

    # For the connection: see `admission.Waiting`.

    def cancel(self) -> None:
        self._is_gone = True
        self._news.set()

    def hurry(self) -> None:
        """The client sent another request, or the server is about to end: finish the stream."""
        self._is_ending = True
        self._news.set()

    def keep_alive(self) -> None:
        """A sign of life for a reader that has nothing to read, and the position that it has reached."""
        if not self.is_allowed():
            self.hurry()
        elif self._is_stalled():
            self._drop()
        elif not self._queue and self in self._feed:
            self._put(self._feed.position_of(self), position_frame(self._feed.position_of(self), "keepalive"))

    def finish(self) -> None:
        if self._connection is not None and self._connection.is_write_paused:
            self._drop()
        self.hurry()

    async def run(self, call: HttpRequest) -> None:
        connection = self._connection = call.connection
        connection.waiting = self
        if call.method == "HEAD":
            self.hurry()
        try:
            call.start(200, HEADERS)
            await self._serve(call)
            if self._is_gone:
                with contextlib.suppress(asyncio.CancelledError):  # the server ends, and does not wait for it
                    await connection.lost()  # cut off: what was written before may still be on its way
        finally:
            connection.waiting = None
            self._feed.leave(self)
            self.on_end()
            connection.finish(call)

    async def _serve(self, call: HttpRequest) -> None:
        while not (self._is_gone or self._is_ending):
            await self._flush(call)
            if self in self._feed:
                await self._news.wait()
                self._news.clear()
            elif not self._is_gone:
                await self._catch_up()
        await self._flush(call)
        if not self._is_gone:
            await call.connection.drain()
            call.write(retry_frame(limits.STREAM_RETRY_MS))
            call.finish()

    async def _catch_up(self) -> None:
        """One page from the store; after the last one, join the feed."""
        try:
            page = await self._feed.replay(self.at, self.wanted)
        except (DibsError, RuntimeError):  # no store, or the server ends: the reader comes back, and gets the reason
            self.hurry()
            return
        if page.oldest is not None:
            self.report_gap(self.at, page.oldest)
        for event in page.events:
            shown = self._framed(event)
            if shown is not None:
                self._put(event.seq, shown)
        self.at = page.upto
        if page.is_last:
            self._feed.join(self)

    async def _flush(self, call: HttpRequest) -> None:
        while self._queue and not self._is_gone:
            try:
                async with asyncio.timeout(STALL_S):
                    await call.connection.drain()
            except TimeoutError:
                self._drop()
                return
            parts, size = [], 0
            while self._queue and size < limits.WRITE_BYTES_MAX and not self._is_gone:
                self._written_at, part = self._queue.popleft()
                parts.append(part)
                size += len(part)
            self._queued_bytes -= size
            self._written_bytes += size
            if parts and not self._is_gone:
                call.write(b"".join(parts))

    def _drop(self) -> None:
        """Tell the reader behind what it has not read yet, and close. The connection cuts off who does not read."""
        shown = frame({"event": DROPPED, "after": self._written_at}, self._written_at, DROPPED)
        self._queue.clear()
        self.is_dropped = True
        assert self._connection is not None
        transport = self._connection.transport
        transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(shown), shown))
        transport.close()
        self.cancel()

    def _is_stalled(self) -> bool:
        """Tell whether something was written, and the client's side has taken none of it for STALL_S. A little is never
        waited for in `_flush`, so it is looked for here, also in the buffer of the system."""
        if self._connection is None:
            return False
        now_s: float = self._connection.loop.time()
        unsent = unsent_bytes(self._connection.transport)
        taken = self._written_bytes - unsent
        if not unsent or self._taken_bytes is None or taken > self._taken_bytes:
            self._taken_bytes, self._taken_at_s = taken, now_s
        return now_s - self._taken_at_s >= STALL_S

    def _put(self, seq: int, part: bytes) -> None:
        self._queue.append((seq, part))
        self._queued_bytes += len(part)
        self._news.set()


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return how much of what was written the other side has not acknowledged: in our buffer, and in the system's."""
    unsent = transport.get_write_buffer_size()
    end = transport.get_extra_info("socket")
    if end is None or not _QUEUED:
        return unsent
    try:
        queued = fcntl.ioctl(end.fileno(), _QUEUED, b"\0" * 4)
    except OSError:  # it is closed
        return unsent
    return unsent + int.from_bytes(queued, sys.byteorder)
