"""Parses the parts of a request: the body, the name in the address, the query. All of it is untrusted. Each fault is a
refusal with its own message: 415 for a type that is not JSON, 413 for too much, 400 for invalid text.
`wire/requests.py` checks the values.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from dibs.base.clock import stopwatch_s
from dibs.base.errors import InvalidInput, InvalidName
from dibs.core.limits import (
    BODY_BYTES_MAX,
    JSON_DEPTH_MAX,
    NAME_BYTES_MAX,
    QUERY_BYTES_MAX,
    QUERY_FIELDS_MAX,
    STRANGERS_BODY_BYTES_MAX,
)
from dibs.core.records import ENDINGS, HELD, STATES
from dibs.core.references import job_name
from dibs.engine.auth import digest_of
from dibs.engine.metrics import OTHER, outcome_word
from dibs.server.http.admission import client_of, counted_as, forwarded_scheme
from dibs.server.http.browser import with_credential
from dibs.server.http.response import JSON, NO_CONTENT, ClientGone, HttpError, answer_for, current
from dibs.wire.shapes import OWN_TYPE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome
    from dibs.server.http.response import Header, HttpResponse

    HttpConnection = Any  # dibs.server.http.protocol.HttpConnection, which knows these
    # What a handler returns: an answer, a coroutine that makes one, or None if the request is answered by a callback.
    Answer = HttpResponse | Awaitable[Any] | None
    Headers = Mapping[bytes, bytes]
    Known = Callable[[Headers], object]  # raises for an unknown caller
    Done = Callable[[bytes | BaseException], Answer]

PEER = b":peer"  # no header of a request can be called so
STORE_HEADER = b"x-dibs-store"  # the store that a client of several servers expects
SERVERS_HEADER = b"x-dibs-servers"  # from a client that can ask other servers
KEY_HEADER = b"idempotency-key"
NAMESPACE_HEADER = b"x-dibs-namespace"
NAMES_HEADER = b"x-dibs-names"
SEQ_MAX = 2**63 - 1
_TERMS = frozenset((STORE_HEADER, KEY_HEADER, NAMESPACE_HEADER, NAMES_HEADER))
_UNUSUAL = frozenset((b"expect", b"transfer-encoding", b"upgrade", b"cookie", b"origin"))
_decode = msgspec.json.Decoder().decode
_OWN = OWN_TYPE.encode()
_JSON_TYPE = re.compile(rb"application/(?:(?:[!#$%&'*+.^_`|~0-9a-z-]+\+)?json|x\.dibs)\s*(?:;.*)?", re.IGNORECASE)
_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def check_head(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what can be refused before the body has come: a wrong type, a length that is too large."""
    kind = headers.get(b"content-type")
    if kind not in (JSON, _OWN) and (kind is None or not _JSON_TYPE.fullmatch(kind)):
        raise HttpError("Send JSON, with the header Content-Type: application/json.", 415)
    length = headers.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > BODY_BYTES_MAX):
        raise too_large()


def is_acceptable(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether `check_head` accepts them."""
    try:
        check_head(headers)
    except HttpError:
        return False
    return True


def too_large(most: int = BODY_BYTES_MAX) -> HttpError:
    return HttpError(f"A request body may have {most} bytes at most.", 413)


def parse_json(body: bytes) -> Any:
    """The document in `body`. A field given twice is refused, because it is unclear which one was meant."""
    try:
        document = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise _too_deep() from None
        raise InvalidInput("The request body is not valid JSON.") from None
    # Two counts of bytes show whether the body is flat, as most are, or needs a closer look.
    if body.count(b"{") + body.count(b"[") > JSON_DEPTH_MAX and _depth(document) > JSON_DEPTH_MAX:
        raise _too_deep()
    if not isinstance(document, dict) or body.count(b":") != len(document):
        _check_repeats(body)
    return document


def _too_deep() -> InvalidInput:
    return InvalidInput(f"The request body is nested deeper than {JSON_DEPTH_MAX} levels.")


def _depth(document: object) -> int:
    depth, level = 0, [document]
    while level:
        depth += 1
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
    return depth - 1  # the innermost values do not count as a level


def _check_repeats(body: bytes) -> None:
    def no_repeats(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise InvalidInput("The request body gives a field twice.")

    json.loads(body, object_pairs_hook=no_repeats)


def decode_name(raw: bytes) -> str:
    """The job name in one segment of the path, as it was sent."""
    try:
        if raw.find(b"%") < 0:  # quicker than `in`, which first raises and catches an exception
            return raw.decode()
        if _BAD_PERCENT.search(raw):
            raise InvalidName("The name in the address has a % that is not followed by two hexadecimal digits.")
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidName("The name in the address is not UTF-8 once its percent signs are decoded.") from None


def parse_query(query: bytes) -> dict[str, str]:
    """The parameters after the question mark."""
    if not query:
        return {}
    if len(query) > QUERY_BYTES_MAX:
        raise InvalidInput(f"The query is longer than {QUERY_BYTES_MAX} bytes.")
    if _BAD_PERCENT.search(query):
        raise InvalidInput("The query has a % that is not followed by two hexadecimal digits.")
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:  # UnicodeDecodeError among them
        raise InvalidInput("The query is not UTF-8, or has too many parts.") from None
    if len(dict(pairs)) != len(pairs):
        raise InvalidInput("The query gives a parameter twice.")
    return dict(pairs)


def whole_number(query: Mapping[str, str], field: str, default: int, least: int, most: int) -> int:
    text = query.get(field)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise InvalidInput(f"{field} is a whole number from {least} to {most}.")
    return int(text)


def header_text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"The header {what} is not UTF-8.") from None


def unquote_key(value: str) -> str:
    """An Idempotency-Key may come as a structured-field string: in quotes, with \\" and \\\\ inside."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value


_USUAL = b"%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\ncache-control: no-store\r\n\r\n%b"


class RequestHead:
    """What the headers of a request mean, worked out once: a client sends the same ones with every request, and a
    connection keeps them (`protocol.KnownHeads`). So it does not depend on the server's state: a credential is kept as
    its hash, and looked up with every request, because it may be revoked. Nothing changes it."""

    __slots__ = ("digest", "has_terms", "headers", "host", "is_acceptable", "is_plain", "may_move", "sent")

    def __init__(self, sent: Sequence[Header], headers: Headers | None = None) -> None:
        self.sent = sent
        self.headers: Headers = dict(reversed(sent)) if headers is None else headers  # if it is repeated, the first
        headers = self.headers
        self.digest = digest_of(headers.get(b"authorization"))  # not whether it is valid: that may change
        # The type and length of its body. If not, `check_head` says what is wrong.
        self.is_acceptable = is_acceptable(headers)
        self.has_terms = not _TERMS.isdisjoint(headers)  # some header is an argument of the operation
        self.may_move = SERVERS_HEADER in headers
        self.host = headers.get(b"host", b"")
        # Nothing in it asks for more than an answer to this request.
        self.is_plain = len(headers) == len(sent) and _UNUSUAL.isdisjoint(headers) and self._stays_open()

    def _stays_open(self) -> bool:
        return self.headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"


class HttpRequest:
    """One request: what was asked, as the handlers need it, and the way back for its answer."""

    version = "1.1"
    keep_alive = True
    has_task = False
    is_over = False  # it is answered, or nobody waits
    moves = False  # whether its client may have gone on to another server
    command: Command | None = None  # the one that is being decided, if nobody waits in line for it
    # For the log and the spans.
    status = 0  # 0: the client was gone
    took_s = 0.0  # until the answer began
    principal = outcome = ""
    request_id = b""
    trace: tuple[str, str, bool] | None = None
    span: Any = None
    # Of the body, and of an answer in parts.
    _known: Known | None = None
    _done: Done | None = None
    _was_told_to_send = False
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
        if not head.is_plain and b"cookie" in head.headers:
            headers = dict(head.headers)
            with_credential(self.method, self.scheme, headers, head.sent)
            self.head = RequestHead(head.sent, headers)
        self.headers = self.head.headers
        self._body = body or b""
        self.is_whole = body is not None
        self.verb = OTHER  # as it is counted
        # `raw_name` is what the {part} of the path is, still percent-encoded.
        self.route, self.raw_name = connection.state.router.find(method, path)
        self.began_s = stopwatch_s()

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
            told: str = connection.state.proxies.client(connection.proxy, self.head.sent)
            return told
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
        """More of the body has come."""
        if not self.is_over:
            self._body = self._body + part if self._body else part
            if len(self._body) > STRANGERS_BODY_BYTES_MAX and self._done is not None:
                refusal = self._refusal()
                if refusal is not None:
                    self._tell(refusal)

    def receive_end(self) -> None:
        self.is_whole = True
        if self._done is not None:
            self._tell(self._body)

    def read(self, known: Known | None, done: Done) -> bytes | None:
        """The whole body, if it is there. If not, `done` is called with it, or with what is wrong with it. If `known`
        refuses the caller, or is None, at most STRANGERS_BODY_BYTES_MAX are kept in memory."""
        self._known = known
        if not self.head.is_plain:
            self._tell_to_send()
        if len(self._body) > STRANGERS_BODY_BYTES_MAX:
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
        if self.is_whole:
            return self._body
        if self.is_over:
            raise ClientGone
        self._done = done
        self.connection.set_reading()
        return None

    def _tell_to_send(self) -> None:
        """Some clients send a body only after they were told that it is wanted."""
        if not self._was_told_to_send and self.headers.get(b"expect", b"").lower() == b"100-continue":
            self._was_told_to_send = True
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refusal(self) -> Exception | None:
        if self._known is None:
            return too_large(STRANGERS_BODY_BYTES_MAX)
        try:
            self._known(self.headers)
        except Exception as error:
            return error
        return too_large() if len(self._body) > BODY_BYTES_MAX else None

    def _tell(self, result: bytes | BaseException) -> None:
        done, self._done = self._done, None
        if done is not None:
            self.connection.step(self, done, result)

    async def body(self, known: Known) -> bytes:
        """The whole body, after its head was checked."""
        check_head(self.headers)
        return await self.rest(known)

    async def rest(self, known: Known | None = None) -> bytes:
        """The whole body."""
        future: asyncio.Future[bytes] = self.connection.loop.create_future()

        def done(result: bytes | BaseException) -> None:
            if future.done():  # its task was ended
                return
            if isinstance(result, bytes):
                future.set_result(result)
            else:
                future.set_exception(result)

        body = self.read(known, done)
        return await future if body is None else body

    # The answer.

    def respond(self, answer: HttpResponse) -> None:
        """Write the whole answer."""
        connection = self.connection
        state, transport = connection.state, connection.transport
        status, body, request_id, more, kind = answer
        self.begins(status)
        self.request_id = request_id
        if transport.is_closing():
            pass  # nobody reads it
        elif self.raw_method == b"HEAD":
            transport.write(self._head_of(status, answer.headers()))
        elif more or state.cors is not None or not self.keep_alive or not body:
            transport.write(self._head_of(status, answer.headers()) + body)
        else:  # as most are
            transport.write(
                _USUAL % (state.starts.get(status) or state.start(status), kind, len(body), request_id, body)
            )
        connection.finish(self)

    def _head_of(self, status: int, headers: Iterable[Header]) -> bytes:
        state = self.connection.state
        lines = [b"%b: %b\r\n" % header for header in headers]
        if state.cors is not None:
            lines += [b"%b: %b\r\n" % header for header in state.cors.headers(self.raw_method, self.headers)]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        return b"%b%b\r\n" % (state.start(status), b"".join(lines))

    def start(self, status: int, headers: Sequence[Header]) -> None:
        """Write the head of an answer whose body comes in parts."""
        self.begins(status)
        names = dict(headers)
        self.request_id = names.get(b"x-request-id", b"")
        self._is_chunked = b"content-length" not in names and self.method != "HEAD" and status not in (NO_CONTENT, 304)
        if not self.connection.is_gone:
            self.connection.transport.write(self._head_of(status, headers))

    def write(self, part: bytes) -> None:
        if part and self.raw_method != b"HEAD" and not self.connection.is_gone:
            self.connection.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part)

    def finish(self) -> None:
        """Write the end of an answer that came in parts."""
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
        if not connection.state.observers:
            self.respond(answer_for(result, verb))
            return True
        noted = current.set(self)
        self.outcome = outcome_word(type(result))
        self.respond(answer_for(result, verb))
        current.reset(noted)
        return True

    def is_away(self) -> bool:
        """Tell whether nobody waits for the answer any more."""
        return self.connection.transport.is_closing() or (self.moves and self.connection.has_hung_up)

    def drop(self) -> None:
        """Nobody waits for the answer, or another one was given."""
        self.is_over = self.keep_alive = True
        self._tell(ClientGone())

    def begins(self, status: int) -> None:
        """The answer begins; with 0, there is nobody to answer."""
        state = self.connection.state
        self.status = status
        self.took_s = stopwatch_s() - self.began_s
        state.metrics.requests[self.verb].add(status, self.took_s)
        if status >= 400 and status in (401, 403):
            state.api.answered(status, self.verb, self.peer, self.head.digest, self.headers.get(PEER))
        if state.log_access is not None and status:
            state.log_access(self)


# What headers and query of a request mean for several routes: names, parts of names, states, the request key. Pure.


def add_key(document: dict[str, Any], header: bytes) -> None:
    """The Idempotency-Key header is the request key."""
    key = unquote_key(header_text(header, "Idempotency-Key"))
    if document.setdefault("request_key", key) != key:
        raise InvalidInput("The header Idempotency-Key and the field request_key differ.")


def one_name(name: str, headers: Headers) -> str:
    """The name; its one name if the header asks for that. A server knows no clone."""
    return job_name(name).name if wants_one_name(headers) else name


def wants_one_name(headers: Headers) -> bool:
    asked = headers.get(NAMES_HEADER)
    if asked not in (None, b"one"):
        raise InvalidInput("The header X-Dibs-Names is one: turn names into their one name. Or leave it out.")
    return asked is not None


def name_part(asked: Mapping[str, str], field: str) -> str:
    text = asked.get(field, "")
    if len(text.encode()) > NAME_BYTES_MAX or any(character < " " for character in text):
        raise InvalidName(f"{field} may have {NAME_BYTES_MAX} bytes at most, and no control characters.")
    return text


def states_asked(asked: Mapping[str, str]) -> tuple[str, ...]:
    """Return which jobs a list shows: held ones, unless `status` says otherwise."""
    text = asked.get("status", HELD)
    states = STATES if text == "all" else tuple(text.split(","))
    if not set(states) <= set(STATES):
        raise InvalidInput(f"status is all, or some of {', '.join(STATES)} with commas between.")
    return states


def endings_asked(asked: Mapping[str, str]) -> tuple[str, ...]:
    """Return which jobs a list shows: those whose last hold ended so. All, unless `ended` says otherwise."""
    if "ended" not in asked:
        return ()
    endings = tuple(asked["ended"].split(","))
    if not set(endings) <= set(ENDINGS):
        raise InvalidInput(f"ended is some of {', '.join(ENDINGS)} with commas between.")
    return endings
