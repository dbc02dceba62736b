"""uvicorn's HTTP connection with bounds on how long and how much a client may keep the server waiting.

This bounds what uvicorn does not: a head without end, a request that never finishes, a silent connection, a client that
asks and does not read the answers. Requests are parsed a few at a time, and nothing is read while one of them waits for
its turn, so the memory for a connection does not grow with what the client sends.

uvicorn's plain-text errors become JSON, sent so that the client can read them: the answer, then the end of our side,
then a short time in which further input is discarded (closing at once would reset the connection, and the answer might
be lost).
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dibs.core.limits import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    KEEP_ALIVE_MS,
    PARSE_BYTES_MAX,
    REQUEST_MS_MAX,
    SLOW_READER_BYTES_MIN,
)
from dibs.engine.metrics import OTHER, Metrics
from dibs.server.http.admission import Admission, client_of, peer_uid
from dibs.server.http.proxies import forwarded_scheme
from dibs.server.http.response import UNSUPPORTED, HttpError, HttpResponse, answer_for_error
from dibs.server.http.tls import lacks_certificate

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable

    from dibs.server.http.admission import Waiting
    from dibs.server.http.proxies import TrustedProxies

LINGER_S = 1.0
PEER = b":peer"  # no header of a request can be called so
REQUEST_S = REQUEST_MS_MAX / 1000
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux only


class _Flow(FlowControl):
    """uvicorn resumes reading with every answer, and whenever a body is asked for. This one does so only if no request
    waits for its turn."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    keep_alive_s = KEEP_ALIVE_MS / 1000
    cycle: Any  # the request that is being answered, if any; its class depends on the way it takes

    def __init__(
        self,
        *args: Any,
        admission: Admission | None = None,
        knows_peers: bool = False,
        proxies: TrustedProxies | None = None,
        closes: Callable[[], bool] = lambda: False,
        metrics: Metrics | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._metrics = metrics or Metrics()
        self._closes = closes  # whether every answer is the last on its connection
        self._knows_peers = knows_peers
        self._admission = admission
        self._proxies = proxies
        self._proxy = ""  # the trusted proxy at the other end, if it is one
        self._client = ""  # as the admission counts it; empty if it was turned away
        self._unread = b""  # read and not yet parsed; there is some only while the pipeline holds a request
        self._parsing = False
        self._unsent_bytes = 0  # unread bytes of answers at the last look
        self._unsent_since_s = 0.0
        self.access_log = self.config.access_log  # not whether somebody added a handler to its logger
        self._receiving = False  # a request has begun and is incomplete
        self._in_head = False  # and its headers are incomplete
        self._head_bytes = 0  # parsed since the request began, whole parts only, without its body
        self._part_bytes = 0  # of what is being parsed
        self._since_s = 0.0  # when the client's turn began: to send a request, or the rest of one
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: HttpError | None = None
        self._deaf = False
        self.peer = b""  # the user at the other end of a Unix socket, if that identifies the caller
        self.waiting: Waiting | None = None  # the caller that waits in line for its answer, if one does

    def is_admitted_as(self, client: str) -> None:
        """The connection was counted when it was accepted. If `is_connected`, it is uncounted when it is lost."""
        self._client = client

    @property
    def is_connected(self) -> bool:
        """Whether there was a connection; under TLS, whether the handshake succeeded."""
        return self._timer is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._metrics.connections += 1
        self._metrics.connections_open += 1
        self._since_s = self.loop.time()
        self._timer = self.loop.call_later(min(REQUEST_S, self.keep_alive_s), self._look)
        if self._knows_peers:
            uid = peer_uid(transport.get_extra_info("socket"))
            self.peer = b"" if uid is None else b"%d" % uid
        if self._admission is not None and not self._client:
            self._be_admitted(self._admission, client_of(transport))
        if self._proxies is not None and self._proxies.trusts(client_of(transport)):
            self._proxy = client_of(transport)
        if lacks_certificate(transport):
            self._refuse(HttpError("This server wants a client certificate.", 403, code="forbidden"))

    def _be_admitted(self, admission: Admission, client: str) -> None:
        refusal = admission.enter(client)
        if refusal is None:
            self._client = client
            return
        self._metrics.turned_away += 1
        if admission.may_be_told():
            admission.leaving += 1
            self.loop.call_later(LINGER_S, self._turned_away, admission)
            self._refuse(refusal)
        else:
            self.transport.abort()

    @staticmethod
    def _turned_away(admission: Admission) -> None:
        admission.leaving -= 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._metrics.connections_open -= 1
        if self._client and self._admission is not None:
            self._admission.leave(self._client)
        if self._timer is not None:
            self._timer.cancel()
        self._unread = b""
        self.pipeline.clear()
        super().connection_lost(exc)
        if self.waiting is not None:
            self.waiting.cancel()

    @property
    def is_gone(self) -> bool:
        """Whether the client is gone."""
        return bool(self.transport.is_closing())

    @property
    def has_hung_up(self) -> bool:
        """Whether the client has closed its side, even if that was not read yet. It may still listen: only a client
        that is known to close both sides at once is gone then."""
        if self.transport.is_closing():
            return True
        found = self.transport.get_extra_info("socket")
        if found is None or not _HUNG_UP:
            return False
        end = select.poll()
        try:  # where a batch is decided, the loop may close the connection at the same moment
            end.register(found.fileno(), _HUNG_UP)
            return bool(end.poll(0))
        except (OSError, ValueError):
            return True

    def _look(self) -> None:
        """One timer per connection, set again only when it fires: setting it for each request would cost more than
        parsing the request."""
        now_s = self.loop.time()
        if self._is_slow_reader(now_s):
            self.transport.abort()  # closing would wait until it has read what is left
            return
        patience_s = REQUEST_S if self._receiving else self.keep_alive_s
        if self.transport.is_closing() or self.flow.write_paused:
            left_s = REQUEST_S  # it is the client's turn to read
        elif self.flow.read_paused or (self._busy() and not self._receiving):
            left_s = patience_s  # it is our turn
        else:
            left_s = self._since_s + patience_s - now_s
        if left_s <= 0:
            self.transport.close()
            left_s = REQUEST_S
        self._timer = self.loop.call_later(max(min(left_s, REQUEST_S), 0.001), self._look)

    def _is_slow_reader(self, now_s: float) -> bool:
        """Whether answers have waited for the client for REQUEST_MS_MAX, and it read almost nothing."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or self._unsent_bytes - unsent >= SLOW_READER_BYTES_MIN or not self._unsent_bytes:
            self._unsent_bytes, self._unsent_since_s = unsent, now_s
            return False
        return now_s - self._unsent_since_s >= REQUEST_S

    def resume_writing(self) -> None:
        self._unsent_bytes = 0
        super().resume_writing()

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unread += data
        self._parse()

    def _parse(self) -> None:
        """Parse requests from the input, until one has to wait for its turn."""
        if self._parsing:  # the answer came at once; the outer call continues parsing
            return
        self._parsing = True
        try:
            while self._unread and not self.pipeline and not self._deaf:
                part, self._unread = self._unread[:PARSE_BYTES_MAX], self._unread[PARSE_BYTES_MAX:]
                self._parse_part(part)
        finally:
            self._parsing = False
        if self._deaf:
            self._unread = b""
        elif self._unread:
            self.flow.pause_reading()

    def _parse_part(self, data: bytes) -> None:
        self._part_bytes = len(data)
        if self._receiving:
            self._head_bytes += self._part_bytes
        else:
            self._since_s = self.loop.time()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or HttpError("This is not an HTTP request.", 400))
        except httptools.HttpParserUpgrade as upgrade:
            # No upgrade is served, and the parser skips the body of a request that asks for one. So it is parsed again
            # as a plain request.
            self._unread = self._plain_head() + data[upgrade.args[0] :] + self._unread
            self.parser = _new_parser(self)
        else:
            # Also behind the head: trailers, and what stands between the chunks of a body.
            if self._receiving and self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["dibs.connection"] = self  # type: ignore[typeddict-unknown-key]  # for our own application only

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field behind the body is no header: whoever filters headers on the way would not see it."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._head_bytes -= len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._end_waiting()
        self._check_head()
        self._in_head = False  # not before: a refused request has no place among the requests to be answered
        if self.peer:
            self.headers.append((PEER, self.peer))
        if self._proxies is not None and self._proxy:
            client = self._proxies.client(self._proxy, self.headers)
            self.scope["client"] = (client, 0)
            self.scope["dibs.client"] = client  # type: ignore[typeddict-unknown-key]  # for our own application only
            self.scope["scheme"] = forwarded_scheme(self.headers, self.scheme or "http")
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            if self._closes() and self.cycle is not None and not self.pipeline:
                self.cycle.keep_alive = False

    def _plain_head(self) -> bytes:
        """The head of the last request, without the headers that ask for an upgrade."""
        lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name not in (b"upgrade", b"http2-settings", PEER):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _end_waiting(self) -> None:
        """More input came after a request that waits. Reading stops until that request is answered, and meanwhile we
        would not see the client hang up. So it is answered now."""
        if self.waiting is not None:
            self.waiting.hurry()

    def _check_head(self) -> None:
        size = sum([len(name) + len(value) for name, value in self.headers]) + len(self.url)
        if size > HEAD_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self._refusal = _head_too_large()
        elif self.parser.get_method() == b"CONNECT":
            # What the client sends after it is not HTTP, so the connection cannot be used any more.
            self._refusal = HttpError(UNSUPPORTED, 405)
        else:
            self._refusal = self._check_host()
        if self._refusal is not None:
            raise self._refusal  # ends the parsing; `_parse_part` handles it

    def _check_host(self) -> HttpError | None:
        hosts = sum([name == b"host" for name, _ in self.headers])
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            return HttpError("A request has one Host header.", 400)
        return None

    def on_message_complete(self) -> None:
        self._receiving = False
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._unsent_bytes = 0  # answers to a slow reader do not get this far
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            task = self.loop.create_task(cycle.run_asgi(app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        elif self._deaf and self._refusal is not None:
            self._write_refusal(self._refusal)
        else:
            self._since_s = self.loop.time()
        if self._unread:
            self._parse()
        if self.flow.read_paused:
            self.flow.resume_reading()

    def _refuse(self, refusal: HttpError) -> None:
        """Answer an unreadable request, after the answers that are still under way, and read no more."""
        self._deaf = True
        self._refusal = refusal
        self._end_waiting()
        if self._receiving and not self._in_head:
            # Its body is invalid, so it has a place among the requests and will never be complete. The refusal takes
            # its place, unless it was answered before its body had come.
            if self.pipeline:
                self.pipeline.popleft()
            elif self._busy():
                self._write_refusal(refusal)
            else:
                self._hang_up()
        elif not self._busy():
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: HttpError) -> None:
        answer = answer_for_error(refusal)
        self._metrics.requests[OTHER].add(answer.status, 0.0)
        self.transport.write(self.head_of(answer, close=True) + answer.body)
        if self._busy():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._hang_up()

    def _hang_up(self) -> None:
        """End our side. What the client still sends is not read."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def head_of(self, answer: HttpResponse, *, close: bool = False) -> bytes:
        """Status line and headers as uvicorn would write them."""
        lines = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers()):
            lines += (name, b": ", value, b"\r\n")
        if close:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


def _new_parser(protocol: BoundedProtocol) -> httptools.HttpRequestParser:
    """As uvicorn makes them."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _head_too_large() -> HttpError:
    return HttpError(
        f"A request head may have {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers at most.", 431
    )
