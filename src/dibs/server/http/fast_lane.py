"""The fast way through HTTP for acquire (one, any, all), renew, release and the state of a job.

An ordinary request of these kinds goes from the parser to the handlers and back, without ASGI, a task or a coroutine.
Everything else takes the general way: another address, a query, a pipelined request behind one that is not answered,
HTTP/1.0, `Expect`, a cookie, chunks, a large body, a client that does not read. Both ways call the same
handlers and write the same bytes; `tests/server/test_lane.py` checks that.

A request of the lane whose headers are known (`head.py`) does not even go through the parser, if it is all that came in
one read. Its headers are, byte for byte, some that the parser has accepted; the request line and the length are checked
here; anything else goes to the parser as if it had not been looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from dibs.base.clock import stopwatch_s
from dibs.core.commands import Acquire, AcquireAll
from dibs.core.limits import HEAD_BYTES_MAX, HEADERS_MAX, PARSE_BYTES_MAX
from dibs.engine.metrics import WAIT
from dibs.server.handlers import FOR_THE_CALLER, may_be_elsewhere
from dibs.server.http.admission import client_of
from dibs.server.http.head import END, LINE_END, RequestHead, block_of
from dibs.server.http.protocol import BoundedProtocol
from dibs.server.http.response import NO_STORE, answer_for

if TYPE_CHECKING:
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome
    from dibs.server.handlers import Api
    from dibs.server.http.response import HttpResponse

_PLACE = b"/locks/"
# Numbers, because CPython looks for a text of one byte by first raising and catching an exception.
_QUERY, _FRAGMENT, _SLASH = b"?#/"
_VERBS = {b"acquire": "acquire", b"renew": "renew", b"release": "release"}
_SEVERAL = {b"/locks/acquire-any": "acquire-any", b"/locks/acquire-all": "acquire-all"}
# With a cookie: the general way finds out whether it is a credential.
_UNUSUAL = frozenset((b"expect", b"transfer-encoding", b"upgrade", b"cookie", b"origin"))
_BODY_BYTES_MAX = HIGH_WATER_LIMIT
_END = b"\r\n%b: %b\r\n\r\n" % NO_STORE


class _Turn:
    """What uvicorn needs to know about the request that is being answered."""

    __slots__ = ("disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self) -> None:
        self.response_complete = True
        self.disconnected = False
        self.keep_alive = True
        self.message_event = _NoEvent()


class _NoEvent:
    def set(self) -> None:
        """Nobody waits."""


class FastLaneProtocol(BoundedProtocol):
    def __init__(self, *args: Any, api: Api, **named: Any) -> None:
        super().__init__(*args, **named)
        self._api = api
        self._turn = _Turn()
        self._in_lane = False
        self._verb = ""
        self._raw_name = b""
        self._found: dict[bytes, bytes] = {}
        self._body = b""
        self._known = api.heads.known
        self._names = api.names if api.checks_names else None
        self._whole = b""  # the read that is being parsed, if it began when nothing else was under way
        self._command: Command | None = None  # the one that is being decided, if it does not wait
        self._began_s = 0.0
        self._head: RequestHead | None = None  # of the request that is being answered
        self._moves = False  # whether its client may have gone on to another server

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if (
            self._receiving
            or self._unread
            or self._deaf
            or self.flow.write_paused
            or (cycle is not None and not cycle.response_complete)
        ):
            super().data_received(data)
        elif not self._take(data):
            self._whole = data
            super().data_received(data)
            self._whole = b""

    def _take(self, data: bytes) -> bool:
        """Ask what `data` asks for, if it is exactly one request for a hot verb with known headers."""
        line_end = data.find(LINE_END)
        end = data.find(END, line_end)
        known = self._known.get(data[line_end:end])
        if known is None or end < 0:
            return False
        length, head = known
        if len(data) != end + len(END) + length or end > PARSE_BYTES_MAX or self.peer or self.access_log:
            return False
        line = data[:line_end]
        parts = line.split(b" ")
        if (
            len(parts) != 3
            or parts[2] != b"HTTP/1.1"
            or not line.isascii()
            or not line.decode().isprintable()
            or _QUERY in line
            or _FRAGMENT in line
            or not self.route(parts[0], parts[1])
            or (length and self._verb == "inspect")
        ):
            return False
        self._in_lane = True
        self.begin_turn()
        self._ask(head, data[end + len(END) :])
        return True

    # Parsing. uvicorn's preparations for ASGI are made only if the request takes the general way.

    def on_message_begin(self) -> None:
        self._receiving = self._in_head = True
        self._head_bytes = 0
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not behind the body
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_lane = self._recognise()
        if self._in_lane:
            self._in_head = False
            self._body = b""
            self.begin_turn()
        else:
            self._use_asgi()

    def begin_turn(self) -> None:
        """From here on it is the server's turn to send."""
        turn = self._turn
        turn.response_complete = False
        turn.keep_alive = not self._api.is_draining
        self.cycle = turn
        self._began_s = stopwatch_s()

    def _recognise(self) -> bool:
        """Whether this is an ordinary request for a hot verb. If so, keeps what its handler needs."""
        url = self.url
        if (
            _QUERY in url
            or _FRAGMENT in url
            or not url.isascii()
            or not self.route(self.parser.get_method(), url)
        ):
            return False
        headers = dict(self.headers)
        if (
            len(headers) != len(self.headers)
            or not _UNUSUAL.isdisjoint(headers)
            or b"host" not in headers
            or (self._names is not None and not self._names.knows(headers[b"host"]))
            or self.peer
        ):
            return False
        length = headers.get(b"content-length", b"0")
        if len(length) > 6 or int(length) > (0 if self._verb == "inspect" else _BODY_BYTES_MAX):
            return False
        self._found = headers
        return self._is_plain(headers.get(b"connection"))

    def route(self, method: bytes, url: bytes) -> bool:
        """Whether this is the address of a hot verb. If so, keeps verb and name."""
        if not url.startswith(_PLACE):
            return False
        verb: str | None = "inspect"
        name = url[len(_PLACE) :]
        if method == b"POST":
            name, slash, word = name.rpartition(b"/")
            verb = _VERBS.get(word) if slash else _SEVERAL.get(url)
        elif method != b"GET":
            return False
        if verb is None or _SLASH in name:
            return False
        self._verb, self._raw_name = verb, name
        return True

    def _is_plain(self, connection: bytes | None) -> bool:
        """All requests before it are answered, the head came in one piece, and the connection stays open."""
        return (
            not self._busy()
            and not self._head_bytes
            and self._part_bytes <= HEAD_BYTES_MAX
            and len(self.headers) <= HEADERS_MAX
            and not self.flow.write_paused
            and not self.access_log
            and self.parser.should_keep_alive()
            and (connection is None or self._is_keep_alive(connection))
        )

    def _is_keep_alive(self, connection: bytes) -> bool:
        return connection.lower() == b"keep-alive" and self.parser.get_http_version() == "1.1"

    def _use_asgi(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._in_lane:
            super().on_body(body)
        else:
            self._head_bytes -= len(body)
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        if not self._in_lane:
            super().on_message_complete()
            return
        self._receiving = False
        self._ask(RequestHead(self._found), self._body)

    def _ask(self, head: RequestHead, body: bytes) -> None:
        self._head = head
        self._moves = head.may_move and may_be_elsewhere(self._verb, head)
        try:
            command, wait_ms = self._api.command(self._verb, self._raw_name, b"", head, body)
            if self._whole:  # a caller that is known
                self._api.heads.learn(
                    block_of(self._whole, self.parser.get_method(), self.url, body), len(body), head
                )
            if wait_ms and isinstance(command, Acquire | AcquireAll):
                self._verb = WAIT
                self._command = None  # `Waiters` handles a caller that hangs up while it waits
                self.waiting = self._api.wait(
                    command, wait_ms, self._finish_waiting, has_hung_up=self._is_away if self._moves else None
                )
            else:
                self._command = command
                self._api.post(command, self._finish, self._is_away if self._verb in FOR_THE_CALLER else None)
        except Exception as error:
            self._finish(error)

    # Answering

    def _is_away(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.transport.is_closing() or (self._moves and self.has_hung_up)

    def _finish(self, result: Outcome | BaseException) -> None:
        if not self._write(result) and self._command is not None:
            self._api.undelivered(self._command, result)

    def _finish_waiting(self, result: Outcome | BaseException) -> bool:
        """Write the answer for a waiter. False if its client is gone."""
        self.waiting = None
        return self._write(result)

    def _write(self, result: Outcome | BaseException) -> bool:
        """Write the answer, if the client is still there."""
        turn = self._turn
        turn.response_complete = True
        transport = self.transport
        if self._is_away():
            transport.close()
            self._metrics.requests[self._verb].add(0, stopwatch_s() - self._began_s)
            return False
        answer = answer_for(result)
        self._metrics.requests[self._verb].add(answer.status, stopwatch_s() - self._began_s)
        if answer.status in (401, 403) and self._head is not None:
            client = client_of(transport)
            if self._proxies is not None and self._proxy:
                client = self._proxies.client(self._proxy, self._head.headers.items())
            self._api.answered(answer.status, self._verb, client, self._head.digest, None)
        if turn.keep_alive:
            transport.write(self._text_of(answer))
        else:
            transport.write(self.head_of(answer, close=True) + answer.body)
            transport.close()
        self.on_response_complete()
        return True

    def _text_of(self, answer: HttpResponse) -> bytes:
        status, body, request_id, more, _ = answer  # its kind is JSON
        if more:
            return self.head_of(answer) + body
        start = _starts.of(status, self.server_state.default_headers)
        return b"%b%d\r\nx-request-id: %b%b%b" % (start, len(body), request_id, _END, body)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that closed its sending side may still read the answer, if that comes soon. A client that waits in
        line and did so looks like one that hung up, and must not be given a job that it will not use. TLS has no
        half-closed connections."""
        if self.scheme == "https":
            return None
        if self.waiting is None and self.cycle is self._turn and self._busy() and not self._receiving:
            self._turn.keep_alive = False
            return True
        return None


class _Starts:
    """How answers begin, by status: up to the number in `content-length`. uvicorn makes a new list of its default
    headers (with the date) once a second, and so does this."""

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._starts: dict[int, bytes] = {}

    def of(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._headers:
            self._headers = headers
            self._starts = {}
        start = self._starts.get(status)
        if start is None:
            lines = b"".join([b"%b: %b\r\n" % header for header in headers])
            start = b"%b%bcontent-type: application/json\r\ncontent-length: " % (STATUS_LINE[status], lines)
            self._starts[status] = start
        return start


_starts = _Starts()
