"""A connection that minds its manners: uvicorn's own, with bounds on what a client may keep us waiting for.

What uvicorn leaves open and this closes: a head without end, a request that never finishes, a connection that says
nothing. What it says in plain text, this says in JSON, and so that the client can read it: the answer, then the end of
our side, then a short while in which what the client still sends is thrown away (closing at once would reset the
connection, and the answer might be lost with it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dibs.core.limits import HEAD_BYTES_MAX, HEADERS_MAX, KEEP_ALIVE_MS, REQUEST_MS_MAX
from dibs.server.answers import Answer, Refused, answer_for_error

if TYPE_CHECKING:
    import asyncio

    from dibs.server.polls import Waiting

LINGER_S = 1.0
REQUEST_S = REQUEST_MS_MAX / 1000


class CarefulProtocol(HttpToolsProtocol):
    keep_alive_s = KEEP_ALIVE_MS / 1000
    cycle: Any  # the request that is being answered, if any; its class differs by the way it takes

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.access_log = self.config.access_log  # not whether somebody else put a handler on its logger
        self._receiving = False  # a request has begun and is not complete
        self._in_head = False  # and its headers are not
        self._head_bytes = 0  # received while in the head, whole reads only
        self._read_bytes = 0  # of the latest read
        self._since_s = 0.0  # when the client's turn began: to send a request, or the rest of one
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: Refused | None = None
        self._deaf = False
        self.waiting: Waiting | None = None  # the caller that waits in line for its answer, if one does

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since_s = self.loop.time()
        self._timer = self.loop.call_later(min(REQUEST_S, self.keep_alive_s), self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        if self.waiting is not None:
            self.waiting.cancel()

    def _look(self) -> None:
        """One timer a connection, set again only when it fires: setting it with each request would cost more than the
        request's parsing."""
        now_s = self.loop.time()
        patience_s = REQUEST_S if self._receiving else self.keep_alive_s
        if self.flow.read_paused or (self._busy() and not self._receiving):
            left_s = patience_s  # it is our turn
        else:
            left_s = self._since_s + patience_s - now_s
        if left_s <= 0:
            self.transport.close()
            return
        self._timer = self.loop.call_later(max(min(left_s, REQUEST_S), 0.001), self._look)

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._read_bytes = len(data)
        if self._in_head:
            self._head_bytes += self._read_bytes
        elif not self._receiving:
            self._since_s = self.loop.time()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or Refused("This is not an HTTP request.", 400))
        except httptools.HttpParserUpgrade:
            pass  # no upgrade is served; the request was answered as the plain one it also is
        else:
            if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["dibs.seat"] = self  # type: ignore[typeddict-unknown-key]  # for our own application only

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._end_waiting()
        self._check_head()
        super().on_headers_complete()

    def _end_waiting(self) -> None:
        """Something came behind a request that waits. Reading is about to stop until that is answered, and then we
        would not see the client hang up: so it is answered now."""
        if self.waiting is not None:
            self.waiting.hurry()

    def _check_head(self) -> None:
        size = sum([len(name) + len(value) for name, value in self.headers]) + len(self.url)
        if size > HEAD_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self._refusal = _head_too_large()
            raise self._refusal  # ends the parsing; `data_received` takes it from there

    def on_message_complete(self) -> None:
        self._receiving = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            task = self.loop.create_task(cycle.run_asgi(app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        elif self._deaf and self._refusal is not None:
            self._write_refusal(self._refusal)
        else:
            self._since_s = self.loop.time()

    def _refuse(self, refusal: Refused) -> None:
        """Answer what cannot be read, after the answers that are still under way, and listen no more."""
        self._deaf = True
        self._refusal = refusal
        self._end_waiting()
        if self._receiving and not self._in_head:
            # Its body went wrong, so it has a place in the line, and will never be complete: this takes its place.
            if self.pipeline:
                self.pipeline.popleft()
            else:
                self._write_refusal(refusal)
        elif not self._busy():
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: Refused) -> None:
        answer = answer_for_error(refusal)
        self.transport.write(self.head_of(answer, close=True) + answer.body)
        if self._busy():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def head_of(self, answer: Answer, *, close: bool = False) -> bytes:
        """Status line and headers as uvicorn would write them."""
        lines = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers()):
            lines += (name, b": ", value, b"\r\n")
        if close:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


def _head_too_large() -> Refused:
    return Refused(f"A request head may have {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers at most.", 431)
