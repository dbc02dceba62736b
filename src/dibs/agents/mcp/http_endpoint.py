"""`/mcp`: the MCP server over streamable HTTP, in front of the server's own coordinator.

Each request is independent. It needs the same tokens as every other, has the token's principal and namespace, and a
tool asks `Api` like an HTTP request. There is no connection to watch between two calls, so the lease id proves a claim.
A claim whose connection ends before its answer is withdrawn; with a request key of the caller's own, which can ask
again, only its place in line ends.

The header `MCP-Protocol-Version` says in which revision a request is written; without it, 2025-03-26. There is no
session, no stream and no batch: a request is answered in JSON, and a notification with 202.
"""

from __future__ import annotations

import base64
from urllib.parse import quote, urlencode

from dibs.agents.mcp import stdio
from dibs.agents.mcp.backend import ALL, ANY, ONE, ToolBackend
from dibs.agents.mcp.methods import INVALID_PARAMS, METHOD_NOT_FOUND, Methods, ProtocolError
from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, Unavailable
from dibs.base.jsontext import Document
from dibs.client.transport import Ask
from dibs.sdk.async_transport import AsyncTransport
from dibs.server.handlers import COUNTED, Api
from dibs.server.http.parse import Headers, check_head
from dibs.server.http.request import HttpRequest, RequestHead
from dibs.server.http.response import ClientGone, HttpError, answer_document, answer_for_error
from dibs.server.plugins import FixedRoutes
from dibs.wire.documents import Reply, reply_to
from dibs.wire.operations import Operation
from dibs.wire.requests import shape

MCP = Operation(
    "POST",
    "/mcp",
    "mcp",
    "MCP over streamable HTTP",
    "MCP",
    {200: {"type": "object"}, 202: None},
    ("not_found",),
    request={"type": "object"},
    about="JSON-RPC, as the Model Context Protocol has it.",
)
_JSON = frozenset((b"application/json", b"application/*", b"*/*"))
_PASSED_ON = (b"authorization", b"x-dibs-namespace", b":peer")
_VERSION_HEADER, _METHOD_HEADER, _NAME_HEADER = b"mcp-protocol-version", b"mcp-method", b"mcp-name"
_WITHOUT_HEADER = "2025-03-26"  # the revision of a request without the header
_NAMED_BY = {"tools/call": "name", "resources/read": "uri"}  # the parameter that is also in the header
_BASE64, _BASE64_END = "=?base64?", "?="
HEADER_MISMATCH = -32020
# The status of an answer with an error. Clients with a handshake would take any other than 200 for a failure of the
# transport.
_STATUSES = {stdio.PARSE_ERROR: 400, stdio.INVALID_REQUEST: 400, HEADER_MISMATCH: 400, stdio.UNSUPPORTED: 400}
_MODERN_STATUSES = {**_STATUSES, INVALID_PARAMS: 400, METHOD_NOT_FOUND: 404}


class ApiTransport(AsyncTransport):
    """The server's own API, asked on behalf of one HTTP request."""

    slice_seconds = 20

    def __init__(self, api: Api, call: HttpRequest) -> None:
        self._api = api
        # As they came: a cookie does not count here.
        self._headers = {name: value for name, value in reversed(call.head.sent) if name in _PASSED_ON}
        self._connection = call.connection
        self._is_counted = True  # the first operation is not counted, because the request was

    @property
    def is_gone(self) -> bool:
        return bool(self._connection.transport.is_closing())

    async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
        """Raises Unavailable for a claim that nobody listens for any more: whoever claims withdraws it then."""
        if step.document.get("wait_seconds") and self._api.engine.waiters.is_closed:
            raise Unavailable("The server is stopping.")
        self._check_there(step)
        try:
            reply = await self._answer(step)
        except ClientGone:
            raise Unavailable("The client left.") from None
        except Exception as error:
            return answer_for_error(error)
        self._check_there(step)
        return reply

    def _check_there(self, step: Ask) -> None:
        if self.is_gone and step.verb in (ONE, ANY, ALL):
            raise Unavailable("The client left.")

    async def _answer(self, step: Ask) -> Reply:
        headers = self._headers
        if self._is_counted:
            headers = {**headers, COUNTED: b""}
            self._is_counted = False
        verb, name = step.verb, quote(step.name, safe="").encode()
        read = None
        if verb == "list":
            read = self._api.list_reader(urlencode({"prefix": step.name, **step.document}).encode(), headers)
        elif verb == "history":
            read = self._api.history_reader(name, urlencode(step.document).encode(), headers)
        if read is not None:
            return Reply(200, await self._api.in_reader(read))
        head = RequestHead(list(headers.items()))
        command, waits_ms = self._api.command_of(verb, name, b"", head, shape(verb, step.document))
        outcome = await self._api.outcome(verb, command, waits_ms, self._connection)
        return answer_for_error(outcome) if isinstance(outcome, BaseException) else reply_to(verb, outcome)

    def close(self) -> None:
        """There is nothing to close."""


class HttpDialogue(stdio.Dialogue):
    def __init__(self, methods: Methods, backend: ToolBackend, head: RequestHead) -> None:
        version = _value(head.headers, _VERSION_HEADER)
        asked = _WITHOUT_HEADER if version is None else version
        super().__init__(methods, backend, asked)
        self._head = head
        self.is_modern = asked not in stdio.HANDSHAKE

    async def _result(self, method: str, params: Document) -> Document:
        meta = params.get("_meta", {})
        has_envelope = isinstance(meta, dict) and stdio.VERSION_KEY in meta
        if not self.is_modern and not has_envelope:
            return await super()._result(method, params)
        if not has_envelope:
            raise ProtocolError(INVALID_PARAMS, stdio.NO_ENVELOPE)
        self._check_headers(method, params, meta)
        return await self._modern(method, params, meta)

    def _check_headers(self, method: str, params: Document, meta: Document) -> None:
        """Refuse a request whose headers do not say what its body says: a filter on the way reads the headers alone."""
        headers = self._head.headers
        names = [name for name, _ in self._head.sent if name in (_VERSION_HEADER, _METHOD_HEADER, _NAME_HEADER)]
        if len(set(names)) != len(names):
            raise ProtocolError(HEADER_MISMATCH, "A header that names the request appears more than once")
        said = [(_VERSION_HEADER, meta[stdio.VERSION_KEY]), (_METHOD_HEADER, method)]
        name = params.get(_NAMED_BY.get(method, ""))
        if name is not None:
            said.append((_NAME_HEADER, name))
        for header, value in said:
            if _value(headers, header) != value:
                message = f"The header {header.decode()} does not say what the request's body says"
                raise ProtocolError(HEADER_MISMATCH, message)


def _value(headers: Headers, name: bytes) -> str | None:
    """The text of a header. A text that HTTP does not carry comes in base64."""
    text = headers[name].decode("latin-1") if name in headers else None
    if text is None or not (text.startswith(_BASE64) and text.endswith(_BASE64_END)):
        return text
    try:
        return base64.b64decode(text[len(_BASE64) : -len(_BASE64_END)], validate=True).decode()
    except ValueError:
        return None


def open_mcp(api: Api) -> FixedRoutes:
    methods = Methods(kept=False)

    async def handle(call: HttpRequest) -> Reply:
        # Both Host and Origin must name this machine, at every server, as the protocol wants it.
        api.names.check(call.head.sent, strict=True)
        try:
            api.caller_for(MCP.id, dict(reversed(call.head.sent)))
        except (AuthenticationRequired, AuthenticationFailed) as error:
            raise HttpError(error.details, 401, code=error.code, headers={"www-authenticate": "Bearer"}) from None
        kinds = [part.partition(b";")[0].strip().lower() for part in call.headers.get(b"accept", b"").split(b",")]
        if not _JSON.intersection(kinds):
            raise HttpError("The answer is JSON: send the header Accept: application/json, text/event-stream.", 406)
        dialogue = HttpDialogue(methods, ToolBackend(ApiTransport(api, call)), call.head)
        check_head(call.headers)
        body = await call.rest(lambda headers: None)  # the caller is known
        try:
            answer = await dialogue.answer(stdio.parse_message(body))
        except ProtocolError as error:
            answer = stdio.error_answer(None, error)
        if answer is None:
            return Reply(202)
        statuses = _MODERN_STATUSES if dialogue.is_modern else _STATUSES
        return answer_document(answer, statuses.get(answer["error"]["code"], 200) if "error" in answer else 200)

    return FixedRoutes([(MCP, handle)])
