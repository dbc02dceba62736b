"""One request, as the handlers see it: what its headers mean, its body as it comes, and the way back for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dibs.base.clock import stopwatch_s
from dibs.base.http1 import header_lines
from dibs.base.ids import new_request_id
from dibs.base.reply import Reply
from dibs.core.commands import Command
from dibs.core.limits import BODY_BYTES_MAX, STRANGERS_BODY_BYTES_MAX, WRITE_BYTES_MAX
from dibs.core.outcomes import Outcome
from dibs.engine.auth import digest_of
from dibs.engine.batcher import resolve
from dibs.engine.metrics import OTHER, outcome_word
from dibs.server.http import parse
from dibs.server.http.admission import client_of, counted_as, forwarded_scheme
from dibs.server.http.browser import with_credential
from dibs.server.http.response import NO_CONTENT, ClientGone, Header, answer_for, current, headers_of

HttpConnection = Any  # dibs.server.connection.HttpConnection, which knows these
# What a handler returns: an answer, a coroutine that makes one, or None if the request is answered by a callback.
Answer = Reply | Awaitable[Any] | None
Headers = Mapping[bytes, bytes]
Known = Callable[[Headers], object]  # raises for an unknown caller
Done = Callable[[bytes | BaseException], None]

PEER = b":peer"  # no header of a request can be called so
SERVERS_HEADER = b"x-dibs-servers"  # from a client that can ask other servers
_TERMS = frozenset((parse.STORE_HEADER, parse.KEY_HEADER, parse.NAMESPACE_HEADER, parse.NAMES_HEADER))
_UNUSUAL = frozenset((b"expect", b"transfer-encoding", b"upgrade", b"cookie", b"origin"))
KEPT_MAX = 512  # a few for each kind of client: the length of the body is one of the headers
KEPT_BYTES_MAX = 4096  # a signed token has 1 to 3 KB
_LINE_END, _END = b"\r\n", b"\r\n\r\n"
_USUAL = (
    b"%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\ncache-control: no-store\r\n\r\n%b"
)


class RequestHead:
    """The meaning of a request's headers, worked out once: a client sends the same ones with every request, and a
    connection keeps them (`KnownHeads`). So it does not depend on the server's state: a credential is kept as
    its hash, and looked up with every request, because it may be revoked. Nothing changes it."""

    __slots__ = ("digest", "has_terms", "headers", "host", "is_acceptable", "is_plain", "may_move", "sent")

    def __init__(self, sent: Sequence[Header], headers: Headers | None = None) -> None:
        self.sent = sent
        self.headers: Headers = dict(reversed(sent)) if headers is None else headers  # if it is repeated, the first
        headers = self.headers
        self.digest = digest_of(headers.get(b"authorization"))  # not whether it is valid: that may change
        # The type and length of its body. If not, `check_head` says what is wrong.
        self.is_acceptable = parse.is_acceptable(headers)
        self.has_terms = not _TERMS.isdisjoint(headers)  # some header is an argument of the operation
        self.may_move = SERVERS_HEADER in headers
        self.host = headers.get(b"host", b"")
        # Nothing in it asks for more than an answer to this request.
        stays_open = headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        self.is_plain = stays_open and len(headers) == len(sent) and _UNUSUAL.isdisjoint(headers)


class KnownHeads:
    """Headers of requests, as they came after the request line, with the length of the body. For one server. Only those
    of accepted callers are kept, so strangers cannot fill the memory. They hold credentials, and are never shown."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, RequestHead]] = {}

    def learn(self, block: bytes | None, length: int, head: RequestHead) -> None:
        if block is None or len(block) > KEPT_BYTES_MAX or parse.KEY_HEADER in head.headers:
            return  # a key is new with every claim
        if len(self.known) >= KEPT_MAX:
            self.known.clear()  # whoever is still there is learnt again
        self.known[block] = (length, head)


def block_of(data: bytes, method: bytes, url: bytes, body: bytes) -> bytes | None:
    """The headers in `data`, if it is the request with this method, address and body and nothing else: no line before
    it, no line end that only a parser accepts, no second request."""
    line = b"%b %b HTTP/1.1" % (method, url)
    end = data.find(_END, len(line))
    if not data.startswith(line + _LINE_END) or data[end + len(_END) :] != body or end < 0:
        return None
    block = data[len(line) + len(_LINE_END) : end]
    return block if block.count(b"\n") == block.count(_LINE_END) else None


class HttpRequest:
    has_task = False
    # For the log and the spans.
    principal = ""
    outcome = ""
    trace: tuple[str, str, bool] | None = None
    span: Any = None
    # Of the body, and of an answer in parts.
    _done: Done | None = None
    _has_sent_continue = False
    _is_chunked = False

    def __init__(
        self,
        connection: HttpConnection,
        method: bytes,
        path: bytes,
        query: bytes,
        head: RequestHead,
        body: bytes | None,
    ) -> None:
        self.connection = connection
        self.raw_method = method
        self.path = path
        self.query = query
        self.head = head
        self._body = body or b""
        self.is_whole = body is not None
        self._known: Known | None = None
        # What most requests set later is here, too: CPython finds it faster then.
        self.keep_alive = True
        # It is answered, or nobody waits.
        self.is_over = False
        # As it is counted.
        self.verb = OTHER
        # Its client may have gone on to another server.
        self.moves = False
        # The one that is being decided, if nobody waits in line for it.
        self.command: Command | None = None
        # 0: the client was gone.
        self.status = 0
        self.request_id = b""
        # `raw_name` is what the {part} of the path is, still percent-encoded.
        self.route, self.raw_name = connection.state.router.find(method, path)
        self.began_s = stopwatch_s()
        # Until the answer began.
        self.took_s = 0.0

    def take_cookie(self) -> None:
        headers = dict(self.headers)
        with_credential(self.method, self.scheme, headers, self.head.sent)
        self.headers = headers

    @property
    def headers(self) -> Headers:
        return self.head.headers

    @headers.setter
    def headers(self, headers: Headers) -> None:
        self.head = RequestHead(self.head.sent, headers)

    @property
    def scheme(self) -> str:
        connection = self.connection
        return forwarded_scheme(self.head.sent, connection.scheme) if connection.proxy else connection.scheme

    @property
    def method(self) -> str:
        return self.raw_method.decode()

    @property
    def server(self) -> tuple[str, int] | None:
        """The address of this server that the client reached. None on a Unix socket."""
        found = self.connection.transport.get_extra_info("sockname")
        return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None

    @property
    def peer(self) -> str:
        """The client: an address, or a user of this machine; behind a trusted proxy, as that says."""
        connection = self.connection
        if connection.proxy and connection.state.proxies is not None:
            client: str = connection.state.proxies.client(connection.proxy, self.head.sent)
            return client
        return client_of(connection.transport)

    @property
    def client(self) -> str:
        """The client, as it is counted: by its address or network; on a Unix socket, the user."""
        return counted_as(self.peer)

    # The body.

    @property
    def is_full(self) -> bool:
        """Tell whether no more of the body is taken before somebody reads it."""
        return len(self._body) > STRANGERS_BODY_BYTES_MAX and self._done is None and not self.is_over

    def receive(self, part: bytes) -> None:
        if not self.is_over:
            self._body = self._body + part if self._body else part
            if len(self._body) > STRANGERS_BODY_BYTES_MAX and self._done is not None:
                refusal = self._refusal()
                if refusal is not None:
                    self._finish(refusal)

    def receive_end(self) -> None:
        self.is_whole = True
        if self._done is not None:
            self._finish(self._body)

    def read(self, known: Known | None, done: Done) -> None:
        """Give `done` the whole body: now, or when it has come; and then perhaps what is wrong with it. If `known`
        refuses the caller, or is None, at most STRANGERS_BODY_BYTES_MAX are kept in memory."""
        self._known = known
        if not self.head.is_plain and self.headers.get(b"expect", b"").lower() == b"100-continue":
            if not self._has_sent_continue:  # some clients send a body only after this
                self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._has_sent_continue = True
        if len(self._body) > STRANGERS_BODY_BYTES_MAX:
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
        if self.is_whole:
            done(self._body)
        elif self.is_over:
            raise ClientGone
        else:
            self._done = done
            self.connection.set_reading()

    def _refusal(self) -> Exception | None:
        if self._known is None:
            return parse.too_large(STRANGERS_BODY_BYTES_MAX)
        try:
            self._known(self.headers)
        except Exception as error:
            return error
        return parse.too_large() if len(self._body) > BODY_BYTES_MAX else None

    def _finish(self, result: bytes | BaseException) -> None:
        done, self._done = self._done, None
        if done is not None:
            self.connection.step(self, done, result)

    async def json(self, known: Known | None = None) -> Any:
        parse.check_head(self.headers)
        return parse.parse_json(await self.rest(known))

    async def rest(self, known: Known | None = None) -> bytes:
        future: asyncio.Future[bytes] = self.connection.loop.create_future()

        def done(result: bytes | BaseException) -> None:
            resolve(future, result)  # and no more: what it returned would be taken for an answer

        self.read(known, done)
        return await future

    # The answer.

    def respond(self, reply: Reply) -> None:
        connection = self.connection
        state, transport = connection.state, connection.transport
        status, body, more = reply.status, reply.content, reply.headers
        self.begins(status)
        request_id = self.request_id = (more.get("x-request-id") or new_request_id()).encode()
        if transport.is_closing():
            pass  # nobody reads it
        elif self.raw_method == b"HEAD":
            transport.write(self._head_of(status, headers_of(reply, request_id)))
        elif len(body) > WRITE_BYTES_MAX:  # it may be shared by many answers, so it is not copied
            transport.write(self._head_of(status, headers_of(reply, request_id)))
            connection.send(body)
            return
        elif more or state.cors is not None or not self.keep_alive or not body:
            transport.write(self._head_of(status, headers_of(reply, request_id)) + body)
        else:  # as most are
            transport.write(_USUAL % (state.starts.get(status) or state.start(status), len(body), request_id, body))
        connection.finish(self)

    def _head_of(self, status: int, headers: dict[str, str]) -> bytes:
        state = self.connection.state
        if state.cors is not None:
            headers = headers | state.cors.headers(self.raw_method, self.headers)
        if not self.keep_alive:
            headers = headers | {"connection": "close"}
        if self._is_chunked:
            headers = headers | {"transfer-encoding": "chunked"}
        return b"%b%b\r\n" % (state.start(status), header_lines(headers).encode("latin-1"))

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Write the head of an answer whose body comes in parts."""
        self.begins(status)
        self.request_id = headers.get("x-request-id", "").encode()
        self._is_chunked = "content-length" not in headers and self.method != "HEAD" and status not in (NO_CONTENT, 304)
        if not self.connection.is_gone:
            self.connection.transport.write(self._head_of(status, headers))

    def write(self, part: bytes) -> None:
        if part and self.raw_method != b"HEAD" and not self.connection.is_gone:
            self.connection.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part)

    def finish(self) -> None:
        if self._is_chunked and not self.connection.is_gone:
            self.connection.transport.write(b"0\r\n\r\n")
        self.connection.finish(self)

    def deliver(self, result: Outcome | BaseException) -> bool:
        """Answer with the outcome of a command. False if the client is gone."""
        connection = self.connection
        connection.waiting = None
        if connection.transport.is_closing() or (self.moves and connection.has_hung_up):
            connection.transport.close()
            connection.finish(self)
            if self.command is not None:
                connection.state.api.undelivered(self.command, result)
            return False
        verb = "" if self.route is None else self.route.verb
        if connection.state.observers:
            noted = current.set(self)
            self.outcome = outcome_word(type(result))
            self.respond(answer_for(result, verb))
            current.reset(noted)
        else:
            self.respond(answer_for(result, verb))
        return True

    def is_away(self) -> bool:
        return self.connection.transport.is_closing() or (self.moves and self.connection.has_hung_up)

    def drop(self) -> None:
        """Nobody waits for the answer, or another one was given."""
        self.is_over = self.keep_alive = True
        self._finish(ClientGone())

    def begins(self, status: int) -> None:
        """The answer begins; with 0, there is nobody to answer."""
        state = self.connection.state
        self.status = status
        self.took_s = stopwatch_s() - self.began_s
        state.metrics.requests[self.verb].add(status, self.took_s)
        if status >= 400 and status in (401, 403):
            state.api.answered(status, self.verb, self.peer, self.head.digest, self.headers.get(PEER))
