"""Events of jobs as they happen: the iterator for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dibs.core.limits import STREAM_RETRY_MS
from dibs.sdk.answers import JobEvent
from dibs.sdk.async_transport import WAITING, AsyncTransport, ServerStream, StoreNews
from dibs.sdk.events import EventReading

RETRY_S = STREAM_RETRY_MS / 1000


class AsyncEvents(EventReading):
    """An asynchronous iterator of events, for one task at a time. It never ends by itself. An error or a cancellation
    does not end it, either: the next call continues after the last event that was handed out."""

    def __init__(self, transport: AsyncTransport, spelled: Callable[[str], str], *wanted: Any) -> None:
        super().__init__(*wanted)
        self._transport = transport
        self._spelled: Callable[[str], str] | None = spelled  # it may run git, so it is called in a thread, once
        self._stream: ServerStream | StoreNews | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_busy = False

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> JobEvent:
        if self._is_busy:
            raise RuntimeError("Another task waits for the next event of this iterator already.")
        loop = asyncio.get_running_loop()
        if self._is_forked() or loop is not self._loop:  # a stream belongs to its loop and its process
            self._hang_up()
        self._loop = loop
        self._is_busy = True
        try:
            while not self._is_closed:
                document = self._cursor.pop()
                if document is not None:
                    return self._event(document)
                await (self._await_news() if self._cursor.is_current else self._ask())
        except BaseException:
            self._hang_up()
            raise
        finally:
            self._is_busy = False
        raise StopAsyncIteration

    async def close(self) -> None:
        """Hang up. A second call does nothing."""
        self._is_closed = True
        self._hang_up()

    async def _ask(self) -> None:
        if self._spelled is not None and self._cursor.name is not None:
            self._cursor.name = await asyncio.to_thread(self._spelled, self._cursor.name)
        self._spelled = None
        reply = await self._transport.ask(self._cursor.question(), self._transport.timeout_ms, WAITING)
        self._heed(reply)
        if reply.status == 200:
            self._cursor.take_page(reply.body or {})
        else:
            await asyncio.sleep(RETRY_S)

    async def _await_news(self) -> None:
        if self._stream is None:
            if self._cursor.is_refused:  # a server that begins no stream is asked for pages instead
                await asyncio.sleep(RETRY_S)
            self._stream = self._transport.awaited_events(self._cursor.stream())
        found = await self._stream.next()
        for streamed in found or ():
            self._cursor.take_streamed(streamed)
        if found is None:
            self._hang_up()

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            self._cursor.end_stream()

    async def __aenter__(self) -> AsyncEvents:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
