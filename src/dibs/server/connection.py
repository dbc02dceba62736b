"""One connection of a client: the only way of a request through HTTP.

httptools parses. When a head is complete, its request is routed and its handler called. A handler answers at once, or
later from a callback (all that the engine decides: no task, no coroutine), or is a coroutine. Requests of a client are
answered in their order; one that has to wait for its turn is queued, and nothing more is read meanwhile.

A request whose headers are known (`KnownHeads`) does not go through the parser, if it is all that came in one read. Its
headers are, byte for byte, some that the parser has accepted; the request line and the length are checked here;
anything else goes to the parser as if it had not been looked at. Through the parser, an acquire takes 76,000
instructions more with curl's headers, 84,000 with the SDK's and 105,000 with those of fetch in Node: 10 to 14 % of one
that is committed to SQLite. A look (GET) takes 73,000 more, 20 %.

How long and how much a client may keep the server waiting is bounded: a head without end, a request that never
finishes, a silent connection, a client that asks and does not read the answers. Requests are parsed a few at a time, so
the memory for a connection does not grow with what the client sends.

What is no request is refused in JSON, so that the client can read it: the answer, then the end of our side, then a time
in which further input is discarded (closing at once would reset the connection, and perhaps lose the answer).

**The states of its input**, and what moves it from one to the next. `-` cannot happen.

| state     | what comes                        | begins | head | last head | whole | unreadable | refused   |
| READY     | the next request                  | HEAD   | -    | -         | -     | REFUSING   | -         |
| HEAD      | the head of a request             | -      | BODY | LAST_BODY | -     | REFUSING   | -         |
| BODY      | its body, if it has one           | -      | -    | -         | READY | REFUSING   | -         |
| LAST_BODY | the body of the last request      | -      | -    | -         | LAST  | REFUSING   | -         |
| LAST      | nothing that is read              | LAST   | LAST | LAST      | LAST  | LAST       | -         |
| REFUSING  | nothing; the refusal has its turn | -      | -    | -         | -     | REFUSING   | LINGERING |
| LINGERING | nothing; our side has ended       | -      | -    | -         | -     | LINGERING  | -         |

A request begins, its head is complete, it is whole: so says the parser. It is the last if the client wants no answer
after it. Input may be unreadable at any time; that is refused after the answers that are still under way.

**Its output** has no state of its own. There is a request that is answered (`call`), whose caller may wait in line
(`waiting`), or whose long answer is partly sent (`_rest`); and there are requests that wait for their turn (`_queue`).
Without any it is the client's turn. A request begins when the answer before it has left (`is_write_paused`).
"""

from __future__ import annotations

import asyncio
import http
import select
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from typing import Any, ClassVar, Protocol

import httptools

from dibs.base.http1 import header_lines
from dibs.base.logger import log
from dibs.base.reply import Reply
from dibs.base.terminal import plain
from dibs.core import limits
from dibs.engine.metrics import OTHER
from dibs.server.event_stream import EventStream
from dibs.server.handlers import Api
from dibs.server.http.admission import Admission, TrustedProxies, Waiting, client_of, peer_uid
from dibs.server.http.browser import Cors
from dibs.server.http.request import PEER, Answer, HttpRequest, KnownHeads, RequestHead, block_of
from dibs.server.http.response import UNSUPPORTED, ClientGone, Header, HttpError, answer_for_error, current, headers_of
from dibs.server.http.tls import lacks_certificate
from dibs.server.routes.table import Router


class InputState:
    """An expectation of a connection about its client: a row of the table above."""

    __slots__ = ("after", "is_read", "is_receiving", "name")

    def __init__(self, name: str, *, is_receiving: bool = False, is_read: bool = True) -> None:
        self.name = name
        self.is_receiving = is_receiving  # a request has begun and is incomplete
        self.is_read = is_read  # what comes is parsed; else it is discarded
        self.after: dict[str, InputState] = {}  # by event

    def __repr__(self) -> str:
        return self.name


BEGINS, HAS_HEAD, HAS_LAST_HEAD, IS_WHOLE = "begins", "head", "last head", "whole"
UNREADABLE, REFUSED = "unreadable", "refused"

READY = InputState("READY")
HEAD = InputState("HEAD", is_receiving=True)
BODY = InputState("BODY", is_receiving=True)
LAST_BODY = InputState("LAST_BODY", is_receiving=True)
LAST = InputState("LAST", is_read=False)
REFUSING = InputState("REFUSING", is_read=False)
LINGERING = InputState("LINGERING", is_read=False)

READY.after = {BEGINS: HEAD, UNREADABLE: REFUSING}
HEAD.after = {HAS_HEAD: BODY, HAS_LAST_HEAD: LAST_BODY, UNREADABLE: REFUSING}
BODY.after = {IS_WHOLE: READY, UNREADABLE: REFUSING}
LAST_BODY.after = {IS_WHOLE: LAST, UNREADABLE: REFUSING}
# The parser may find more requests in what it was given together with the last one.
LAST.after = dict.fromkeys((BEGINS, HAS_HEAD, HAS_LAST_HEAD, IS_WHOLE, UNREADABLE), LAST)
REFUSING.after = {UNREADABLE: REFUSING, REFUSED: LINGERING}
LINGERING.after = {UNREADABLE: LINGERING}


class RequestObserver(Protocol):
    """Notified of each request: when its turn begins, and when it is answered."""

    def begin(self, call: HttpRequest) -> None: ...

    def end(self, call: HttpRequest) -> None: ...


LINGER_S = 1.0
REQUEST_S = limits.REQUEST_MS_MAX / 1000
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux only
_LINE_END, _END = b"\r\n", b"\r\n\r\n"
_VERSION = b"HTTP/1.1"
_NAME_BYTES = bytes(range(0x21, 0x7F)).translate(None, b"?#")  # of an address without a query and a fragment
# Numbers, because CPython looks for a text of one byte by first raising and catching an exception.
_QUERY, _FRAGMENT, _SLASH = b"?#/"


class ServerState:
    def __init__(
        self,
        api: Api,
        router: Router,
        headers: Callable[[], Sequence[Header]],
        admission: Admission | None,
        observers: Sequence[RequestObserver],
    ) -> None:
        settings = api.settings
        self.api = api
        self.metrics = api.engine.metrics
        self.router = router
        self.admission = admission
        self.knows_peers = settings.system
        self.proxies = TrustedProxies(settings.trusted_proxies) if settings.trusted_proxies else None
        self.cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self.observers = observers
        self.heads = KnownHeads()
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.total_requests = 0  # that were answered
        self._headers = headers
        self._has_noted_forwarded = False
        self.starts: dict[int, bytes] = {}
        self.set_headers()

    def note_forwarded(self, peer: str) -> None:
        """Say once that a proxy may stand before the server that nobody named: all behind it count as one client."""
        if not self._has_noted_forwarded:
            self._has_noted_forwarded = True
            log.warning(
                "a request from %s had X-Forwarded-For, which is ignored: all clients behind a proxy count as one, "
                "unless the server is started with --trusted-proxy and the proxy's address",
                plain(peer),
            )

    def set_headers(self) -> None:
        """To be called once a second, because of the date, and when the store has another name."""
        date = (b"date", formatdate(usegmt=True).encode())
        self._own = b"".join([b"%b: %b\r\n" % header for header in (date, *self._headers())])
        self.starts.clear()

    def start(self, status: int) -> bytes:
        """Return how answers with this status begin: the status line, and the headers of every answer."""
        start = self.starts.get(status)
        if start is None:
            phrase = http.HTTPStatus(status).phrase if status in _STATUSES else ""
            start = self.starts[status] = b"HTTP/1.1 %d %b\r\n%b" % (status, phrase.encode(), self._own)
        return start


_STATUSES = frozenset(http.HTTPStatus)


class HttpConnection:
    """An `asyncio.Protocol` by its methods; with that base it could not be compiled."""

    # Slots, because CPython finds more than 30 attributes of an object more slowly.
    __slots__ = (
        "_drained",
        "_head_bytes",
        "_headers",
        "_incoming",
        "_input",
        "_is_going_on",
        "_is_read_paused",
        "_known",
        "_lost",
        "_queue",
        "_refusal",
        "_rest",
        "_since_s",
        "_timer",
        "_unread",
        "_unsent_since_s",
        "_url",
        "call",
        "client",
        "handshake",
        "is_stranger",
        "is_write_paused",
        "loop",
        "parser",
        "peer",
        "proxy",
        "scheme",
        "state",
        "transport",
        "waiting",
        "whole",
    )
    keep_alive_s: ClassVar[float] = limits.KEEP_ALIVE_MS / 1000
    transport: asyncio.Transport

    def __init__(self, state: ServerState, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.state = state
        self.loop = loop or asyncio.get_running_loop()
        self.parser = _new_parser(self)
        self.call: HttpRequest | None = None  # the request that is being answered
        self.waiting: Waiting | None = None  # the caller that waits in line for its answer, if one does
        self.is_write_paused = False  # some of what was written has not left
        self._input = READY
        self.scheme = "http"
        self.proxy = ""  # the trusted proxy at the other end, if it is one
        self.peer = b""  # the user at the other end of a Unix socket, if that identifies the caller
        self._known = state.heads.known
        self._queue: deque[HttpRequest] = deque()  # those that wait for their turn
        self._incoming: HttpRequest | None = None  # the one whose body comes now
        self.client = ""  # for the admission: whose it is, while it counts
        self.is_stranger = state.admission is not None  # until it shows a valid token
        self.handshake: asyncio.Task[None] | None = None  # of TLS, until it is connected
        self._unread = b""  # read and not yet parsed; there is some only while a request is queued
        self.whole = b""  # the read that is being parsed, if it began when nothing else was under way
        self._url = b""
        self._headers: list[Header] = []
        self._is_going_on = False  # `_go_on` is at work
        self._is_read_paused = False
        self._head_bytes = 0  # parsed since the request began, whole parts only, without its body
        self._since_s = 0.0  # when the client's turn began: to send a request, or the rest of one
        self._rest = memoryview(b"")  # of the answer that is being sent, what was not written yet
        self._unsent_since_s = 0.0  # when what was written last did not leave at once; 0: all has left
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: HttpError | None = None  # of what was unreadable
        self._drained = asyncio.Event()
        self._lost = asyncio.Event()

    # The connection: its beginning, its end, and its patience.

    @property
    def is_connected(self) -> bool:
        """Tell whether there was a connection; under TLS, whether the handshake succeeded."""
        return self._timer is not None

    def connection_made(self, transport: asyncio.Transport) -> None:
        state = self.state
        self.transport = transport
        state.connections.add(self)
        state.metrics.connections += 1
        state.metrics.connections_open += 1
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = "https"
        # A byte that cannot be sent at once pauses writing: until it is sent, nothing is written, no request begun.
        transport.set_write_buffer_limits(high=1, low=0)
        self._since_s = self.loop.time()
        self._timer = self.loop.call_later(min(REQUEST_S, self.keep_alive_s), self._look)
        if state.knows_peers:
            uid = peer_uid(transport.get_extra_info("socket"))
            self.peer = b"" if uid is None else b"%d" % uid
        if state.admission is not None and not self.client:
            self._be_admitted(state.admission, client_of(transport))
        if state.proxies is not None and state.proxies.trusts(client_of(transport)):
            self.proxy = client_of(transport)
        if lacks_certificate(transport):
            self._refuse(HttpError("This server wants a client certificate.", 403, code="forbidden"))

    def _be_admitted(self, admission: Admission, client: str) -> None:
        refusal = admission.enter(self, client)
        if refusal is None:
            return
        self.state.metrics.turned_away += 1
        if admission.leaving >= limits.CONNECTIONS_TURNED_AWAY_MAX:
            self.transport.abort()  # enough others are being sent the reason
            return

        def turned_away() -> None:
            admission.leaving -= 1

        admission.leaving += 1
        self.loop.call_later(LINGER_S, turned_away)
        self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        state = self.state
        state.connections.discard(self)
        state.metrics.connections_open -= 1
        if state.admission is not None:
            state.admission.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        self._unread = b""
        self._queue.clear()
        self._lost.set()
        self._drained.set()
        if self.call is not None:
            self.call.drop()
            if self._rest:  # nobody else ends it
                self._rest = self._rest[:0]
                self.finish(self.call)
        if self.waiting is not None:
            self.waiting.cancel()

    def turn_out(self) -> None:
        """End the connection at once, to make room for another client."""
        self.state.metrics.turned_away += 1
        if self.is_connected:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def show_standing(self) -> None:
        """It has shown a valid token, key or secret: it does not go to make room for strangers."""
        if self.is_stranger and self.state.admission is not None:
            self.is_stranger = False
            self.state.admission.prove(self)

    async def lost(self) -> None:
        await self._lost.wait()

    def shutdown(self) -> None:
        """Close the connection if it is idle. If not, the answer under way is its last one."""
        if self.call is None:
            self.transport.close()
        else:
            self.call.keep_alive = False

    @property
    def is_gone(self) -> bool:
        return self.transport.is_closing()

    @property
    def has_hung_up(self) -> bool:
        """Tell whether the client has closed its side, even if that was not read yet. It may still listen: only a
        client that is known to close both sides at once is gone then."""
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

    def eof_received(self) -> bool | None:
        """A client that closed its sending side may still read an answer that comes without a task: soon. One that
        waits in line looks like one that hung up, and is given no job. TLS has no half-closed connections."""
        call = self.call
        if self.scheme == "https" or call is None or self.waiting is not None or self._input.is_receiving:
            return None
        if call.has_task and not self._rest:
            return None
        call.keep_alive = False
        return True

    def _look(self) -> None:
        """One timer per connection, set again when it fires: for each request that costs more than parsing it."""
        now_s = self.loop.time()
        is_receiving = self._input.is_receiving
        patience_s = REQUEST_S if is_receiving else self.keep_alive_s
        if self.transport.is_closing() or self.is_write_paused:  # it is the client's turn to read
            self._unsent_since_s = self._unsent_since_s or now_s
            left_s = self._unsent_since_s + REQUEST_S - now_s
            if left_s <= 0:
                self.transport.abort()  # closing would wait until it has read what is left
                return
        elif self._is_read_paused or (self.call is not None and not is_receiving):
            left_s = patience_s  # it is our turn
        else:
            left_s = self._since_s + patience_s - now_s
        if left_s <= 0:
            self.transport.close()
            self._unsent_since_s, left_s = now_s, REQUEST_S
        self._timer = self.loop.call_later(max(min(left_s, REQUEST_S), 0.001), self._look)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._unsent_since_s = self.loop.time()
        self._drained.clear()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._unsent_since_s = 0.0
        self._drained.set()
        if self._rest:
            self._send_rest()
        else:
            if self.call is None:
                self._since_s = self.loop.time()
            self._go_on()

    async def drain(self) -> None:
        if self.is_write_paused:
            await self._drained.wait()

    def set_reading(self) -> None:
        """Read, unless a request waits for its turn or its body for a reader."""
        pause = bool(self._queue or self._unread) or (self.call is not None and self.call.is_full)
        if pause is not self._is_read_paused and not self.transport.is_closing():
            self._is_read_paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # Requests in.

    def data_received(self, data: bytes) -> None:
        expected = self._input
        if not expected.is_read:
            return
        if expected.is_receiving or self._unread or self.call is not None or self.is_write_paused:
            self._unread += data
            self._go_on()
        elif not self._take(data):
            self.whole = self._unread = data
            self._go_on()
            self.whole = b""

    def _take(self, data: bytes) -> bool:
        """Begin the request in `data`, if that is exactly one with known headers, for an address that exists."""
        head, end, body = data.partition(_END)
        line, _, block = head.partition(_LINE_END)
        known = self._known.get(block)
        if known is None or not end or len(head) > limits.PARSE_BYTES_MAX or known[0] != len(body):
            return False
        words = line.split(b" ")
        if len(words) != 3 or words[2] != _VERSION:
            return False
        call = HttpRequest(self, words[0], words[1], b"", known[1], body)
        if call.route is None or call.raw_name.strip(_NAME_BYTES):
            return False
        self._begin(call)
        return True

    def keep_head(self, call: HttpRequest, body: bytes) -> None:
        """The caller of this request is known: keep its headers, if they are ordinary and came in one piece."""
        # Two users of a Unix socket may send the same headers.
        if call.head.is_plain and call.keep_alive and not self.state.knows_peers:
            block = block_of(self.whole, call.raw_method, self._url, body)
            self.state.heads.learn(block, len(body), call.head)

    def _move(self, event: str) -> InputState:
        """Note what came. Returns the state before."""
        before = self._input
        self._input = before.after[event]
        return before

    def _go_on(self) -> None:
        """Begin requests that wait for their turn, and parse more while none does. In between answers may be finished,
        which calls this again: the first call does it all."""
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while not self.transport.is_closing():
                if self._queue:
                    if self.call is not None or self.is_write_paused:
                        break
                    self._begin(self._queue.popleft())
                elif self._unread and self._input.is_read:
                    part, self._unread = self._unread[: limits.PARSE_BYTES_MAX], self._unread[limits.PARSE_BYTES_MAX :]
                    self._parse_part(part)
                else:
                    break
        finally:
            self._is_going_on = False
        if self.transport.is_closing():
            return
        if not self._input.is_read:
            self._unread = b""
        if self._input is REFUSING and self._refusal is not None and self.call is None and not self._queue:
            self._write_refusal(self._refusal)
        self.set_reading()

    def _parse_part(self, data: bytes) -> None:
        if self._input.is_receiving:
            self._head_bytes += len(data)
        else:
            self._since_s = self.loop.time()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or HttpError("This is not an HTTP request.", 400))
        except httptools.HttpParserUpgrade as upgrade:
            # No upgrade is served, and the parser skips such a request's body: so it is parsed again as a plain one.
            self._unread = self._plain_head() + data[upgrade.args[0] :] + self._unread
            self.parser = _new_parser(self)
        else:
            # Also behind the head: trailers, and what stands between the chunks of a body.
            if self._input.is_receiving and self._head_bytes > limits.HEAD_BYTES_MAX:
                self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        if self._move(BEGINS) is not LAST:
            self._head_bytes = 0
            self._url = b""
            self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A field behind the body is no header: whoever filters headers on the way would not see it.
        if self._input is HEAD:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, sent = self.parser, self._headers
        version = parser.get_http_version()
        is_upgrade = parser.should_upgrade()  # it comes once more, as a plain request
        keep_alive = is_upgrade or (version != "1.0" and parser.should_keep_alive())
        if self._move(HAS_HEAD if keep_alive else HAS_LAST_HEAD) is LAST:
            return
        if self.waiting is not None:
            # Reading stops until the request that waits is answered, which hides a client that hangs up: so answer now.
            self.waiting.hurry()
        self._refusal = self._head_refusal(version)
        if self._refusal is not None:
            raise self._refusal  # ends the parsing; `_parse_part` handles it
        path, query = _target(self._url)
        if is_upgrade:
            return
        if self.peer:
            sent.append((PEER, self.peer))
        call = HttpRequest(self, parser.get_method(), path, query, RequestHead(sent), None)
        if b"cookie" in call.headers:
            call.take_cookie()
        if b"x-forwarded-for" in call.headers and not self.proxy:
            self.state.note_forwarded(client_of(self.transport))
        call.keep_alive = keep_alive
        self._incoming = call
        if self.call is None and not (self._queue or self.is_write_paused or self.transport.is_closing()):
            self._begin(call)
        else:
            self._queue.append(call)

    def _head_refusal(self, version: str) -> HttpError | None:
        sent = self._headers
        size = sum([len(name) + len(value) for name, value in sent]) + len(self._url)
        if size > limits.HEAD_BYTES_MAX or len(sent) > limits.HEADERS_MAX:
            return _head_too_large()
        if self.parser.get_method() == b"CONNECT":
            # What the client sends after it is not HTTP, so the connection cannot be used any more.
            return HttpError(UNSUPPORTED, 405)
        hosts = sum([name == b"host" for name, _ in sent])
        if hosts > 1 or (not hosts and version == "1.1"):
            return HttpError("A request has one Host header.", 400)
        return None

    def _plain_head(self) -> bytes:
        """The head of the last request, without the headers that ask for an upgrade."""
        lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self._url)]
        for name, value in self._headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        self._head_bytes -= len(body)
        if self._incoming is not None:
            self._incoming.receive(body)

    def on_message_complete(self) -> None:
        self._move(IS_WHOLE)
        call, self._incoming = self._incoming, None
        if call is not None:
            call.receive_end()

    # Answers out.

    def _begin(self, call: HttpRequest) -> None:
        self.call = call
        for observer in self.state.observers:
            observer.begin(call)
        guard = self.state.api.guard
        if guard.signed is None or not guard.learn(call.head.digest, call.head.headers, lambda: self._handle(call)):
            self._handle(call)

    def _handle(self, call: HttpRequest) -> None:
        if call is not self.call or call.is_over:
            self.finish(call)  # its client went away while the issuer of its token was asked
            return
        state, head = self.state, call.head
        api = state.api
        if api.is_draining:
            call.keep_alive = False
        if self.is_stranger and api.guard.knows(head.digest, head.headers.get(PEER)):
            self.show_standing()
        is_usual = not api.checks_names or (head.is_plain and api.names.knows(head.host))
        if call.route is not None and is_usual and state.cors is None:
            call.verb, handler = call.route
            self.step(call, handler, call)
        else:
            self.step(call, self._answer_browser, call)

    def _answer_browser(self, call: HttpRequest) -> Answer:
        """Call the handler, if there is one, and if a browser may ask this server so."""
        state = self.state
        if state.cors is not None and call.raw_method == b"OPTIONS":
            allow = state.router.refusal(call.path).headers.get("allow")  # the methods that there are
            call.start(200, state.cors.preflight() | ({} if allow is None else {"allow": allow}))
            call.finish()
            return None
        state.api.check_names(call.head.sent)
        if call.route is None:
            return state.router.refusal(call.path)
        call.verb, handler = call.route
        answer: Answer = handler(call)
        return answer

    def step(self, call: HttpRequest, work: Callable[[Any], Answer], given: object) -> None:
        """Do some of the work for a request. An answer, or an error, is sent; a coroutine goes on in a task."""
        noted = current.set(call) if self.state.observers else None
        try:
            answer = work(given)
            if answer is not None and not isinstance(answer, Reply):
                call.has_task = True
                task = self.loop.create_task(self._run(call, answer))
                self.state.tasks.add(task)
                task.add_done_callback(self.state.tasks.discard)
                return
        except ClientGone:
            self.finish(call)
            return
        except Exception as error:
            answer = answer_for_error(error)
        finally:
            if noted is not None:
                current.reset(noted)
        if answer is not None:
            call.respond(answer)

    async def _run(self, call: HttpRequest, work: Awaitable[Reply | EventStream | None]) -> None:
        try:
            answer = await work
            if isinstance(answer, EventStream):
                await answer.run(call)
            elif answer is not None:
                call.respond(answer)
        except ClientGone:
            self.finish(call)
        except asyncio.CancelledError:
            self.transport.close()
            raise
        except Exception as error:
            answer = answer_for_error(error)
            if call.status:  # the answer has begun
                self.transport.close()
            else:
                call.respond(answer)

    def send(self, body: bytes) -> None:
        """Write a long body, a part at a time, and then finish the request."""
        self._rest = memoryview(body)
        self._send_rest()

    def _send_rest(self) -> None:
        while self._rest and not self.is_write_paused and not self.transport.is_closing():
            part, self._rest = self._rest[: limits.WRITE_BYTES_MAX], self._rest[limits.WRITE_BYTES_MAX :]
            self.transport.write(part)
        if not self._rest and self.call is not None:
            self.finish(self.call)

    def finish(self, call: HttpRequest) -> None:
        if call is not self.call:
            return
        self.call = None
        state = self.state
        state.total_requests += 1
        call.is_over = True
        if not call.status:
            call.begins(0)
        if state.observers:
            for observer in reversed(state.observers):
                observer.end(call)
        if not call.keep_alive:
            self.transport.close()
        else:
            self._since_s = self.loop.time()
            if self._queue or self._unread or self._is_read_paused or not self._input.is_read:
                self._go_on()

    def _refuse(self, refusal: HttpError) -> None:
        """Answer what is unreadable, after the answers that are still under way, and read no more."""
        if not self._move(UNREADABLE).is_read:
            return  # it is skipped, or something was refused before
        self._refusal = refusal
        if self.waiting is not None:
            self.waiting.hurry()
        if self._incoming is not None:
            # Its body is invalid: it has a place among the requests, and will never be whole. The refusal takes its
            # place, unless it was answered before its body had come.
            if self._queue:
                self._queue.pop()
            elif self.call is not None and self.call.status:
                self.call.keep_alive = False  # its answer has begun
            elif self.call is not None:
                self._write_refusal(refusal)
            else:
                self._hang_up()
        elif self.call is None and not self._queue:
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: HttpError) -> None:
        answer = answer_for_error(refusal)
        self.state.metrics.requests[OTHER].add(answer.status, 0.0)
        headers = headers_of(answer, b"") | {"connection": "close"}
        self.transport.write(
            b"%b%b\r\n%b" % (self.state.start(answer.status), header_lines(headers).encode(), answer.content)
        )
        self._hang_up()  # before the next line, which may end the request, and with it look for more to do
        if self.call is not None:
            self.call.drop()

    def _hang_up(self) -> None:
        """End our side. What the client still sends is discarded for a while."""
        self._move(REFUSED)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def _new_parser(connection: HttpConnection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    # What follows a request with `Connection: close` is not read. It must not spoil the answer to that request.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of the address. Raises what the parser raises if it is none."""
    if url[0] == _SLASH and _QUERY not in url and _FRAGMENT not in url and url[1:2] != b"/":
        return url, b""
    parsed: Any = httptools.parse_url(url)  # its types say that a part is never None
    return parsed.path or b"", parsed.query or b""


def _head_too_large() -> HttpError:
    return HttpError(
        f"A request head may have {limits.HEAD_BYTES_MAX} bytes and {limits.HEADERS_MAX} headers at most.", 431
    )
