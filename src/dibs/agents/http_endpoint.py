"""`/mcp`: the MCP server over streamable HTTP, in front of the server's own coordinator.

Each request is independent. It needs the same tokens as every other, has the token's principal and namespace, and a
tool asks `Api` like an HTTP request. There is no connection to watch between two calls, so the lease id proves a claim.
A caller that waits in line loses its place when its connection ends.

The `mcp` SDK is large, so it is loaded at the first request. A server without it says what is missing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from dibs.agents.backend import ToolBackend
from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, Unavailable
from dibs.core.limits import BODY_BYTES_MAX, SHUTDOWN_MS_MAX
from dibs.sdk.async_doors import AsyncDoor
from dibs.server.handlers import CHARGED
from dibs.server.http.asgi import scope_of, serve
from dibs.server.http.request import RequestHead
from dibs.server.http.response import ClientGone, HttpError, reply_for
from dibs.wire.documents import Reply, reply_to
from dibs.wire.operations import Operation
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from dibs.client.door import Ask
    from dibs.sdk.answers import Lease
    from dibs.server.handlers import Api
    from dibs.server.http.asgi import Scope
    from dibs.server.http.request import HttpRequest

    Headers = dict[bytes, bytes]

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
_FREE = "dibs.free"  # in the scope: one operation of this request is not charged, because the request was
_PASSED_ON = (b"authorization", b"x-dibs-namespace", b":peer")
_CHALLENGE = ((b"www-authenticate", b"Bearer"),)


class ApiDoor(AsyncDoor):
    """The server's own API, asked on behalf of one HTTP request."""

    slice_seconds = 20

    def __init__(self, api: Api, headers: Headers, scope: Scope) -> None:
        self._api = api
        self._scope = scope
        self._headers = {name: headers[name] for name in _PASSED_ON if name in headers}
        self._connection: Any = scope["dibs.connection"]

    @property
    def is_gone(self) -> bool:
        """Whether the client is gone."""
        return bool(self._connection.transport.is_closing())

    async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
        if step.document.get("wait_seconds") and self._api.engine.waiters.is_closed:
            raise Unavailable("The server is stopping.")
        try:
            return await self._answer(step)
        except ClientGone:
            raise Unavailable("The client left.") from None
        except Exception as error:
            return reply_for(error)

    async def _answer(self, step: Ask) -> Reply:
        headers = self._headers
        if self._scope.pop(_FREE, False):
            headers = {**headers, CHARGED: b""}
        verb, name = step.verb, quote(step.name, safe="").encode()
        read = None
        if verb == "list":
            read = self._api.list_reader(urlencode({"prefix": step.name, **step.document}).encode(), headers)
        elif verb == "history":
            read = self._api.history_reader(name, urlencode(step.document).encode(), headers)
        if read is not None:
            return Reply(status=200, body=await self._api.in_reader(read))
        head = RequestHead(list(headers.items()))
        command, waits_ms = self._api.command_of(verb, name, b"", head, shape(verb, step.document))
        outcome = await self._api.outcome(verb, command, waits_ms, self._connection)
        return reply_for(outcome) if isinstance(outcome, BaseException) else reply_to(verb, outcome)

    def close(self) -> None:
        """There is nothing to close."""


class HttpBackend(ToolBackend):
    """For one HTTP request."""

    door: ApiDoor

    async def claim(self, verb: str, jobs: Sequence[str], **asked: Any) -> tuple[Lease, bool]:
        lease, again = await super().claim(verb, jobs, **asked)
        if self.door.is_gone and asked.get("request_key") is None:  # with a key it can ask again
            await self.release(lease.name, lease.lease_id, done=None, result=None, checkpoint=None)
            raise Unavailable("The client left.")
        return lease, again


class McpEndpoint:
    """The handler of /mcp: the SDK's ASGI application, behind the checks of every request."""

    operation = MCP

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._task: asyncio.Task[None] | None = None

    async def handle(self, call: HttpRequest) -> None:
        self._check(call.head)
        scope = scope_of(call)
        scope[_FREE] = True
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(self._ready), name="dibs mcp")
        manager = await asyncio.shield(self._ready)
        await serve(manager.handle_request, scope, call)

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=SHUTDOWN_MS_MAX / 2000)

    def _check(self, head: RequestHead) -> None:
        """Both Host and Origin must name this machine, at every server, as the protocol wants it."""
        self._api.names.check(head.sent, strict=True)
        try:
            self._api.caller_for(MCP.id, dict(reversed(head.sent)))
        except (AuthenticationRequired, AuthenticationFailed) as error:
            raise HttpError(error.details, 401, code=error.code, headers=_CHALLENGE) from None

    async def _live(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """The SDK's manager, from the first request to the end of the server."""
        try:
            manager = await asyncio.to_thread(self._load)
            async with manager.run():
                ready.set_result(manager)
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _load(self) -> StreamableHTTPSessionManager:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            from dibs.agents.mcp import build_server
        except ImportError as error:
            raise HttpError(
                f"There is no MCP here: {error.name} is not installed. Where the server runs, in a clone of dibs, run "
                "pip install '.[mcp]', and start the server again.",
                404,
                code="not_found",
            ) from None

        def backend_for(context: Any) -> HttpBackend:
            scope = context.request.scope
            return HttpBackend(ApiDoor(self._api, dict(reversed(scope["headers"])), scope))

        # Host and Origin were checked above, where the refusal says what to do.
        return StreamableHTTPSessionManager(
            build_server(backend_for, kept=False),
            json_response=True,
            stateless=True,
            max_request_body_size=BODY_BYTES_MAX,
        )
