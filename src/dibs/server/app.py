"""The general way through HTTP: Starlette's router over the handlers.

Routes match the path as it was sent, still percent-encoded: a `%2F` is part of a name, a `/` is not. If the framework
refuses a request (no such address, no such method), the answer has our own words and format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from dibs.errors import DibsError
from dibs.server.event_routes import event_routes
from dibs.server.event_stream import EventStream
from dibs.server.request import HttpRequest
from dibs.server.response import UNSUPPORTED, ClientGone, HttpError, HttpResponse, answer_for_error
from dibs.server.tokens import token_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from dibs.compat.action_llama.routes import Gateway
    from dibs.server.handlers import Api
    from dibs.server.request import Known

    Handler = Callable[[HttpRequest], Awaitable[HttpResponse | EventStream]]


class _Segment(Convertor[str]):
    """One segment. It may be empty, so that the error for an empty name can say what is wrong."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("segment", _Segment())


class _Endpoint:
    """An ASGI app around one handler. It sends nothing before the whole answer is ready, unless that is a stream."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpRequest(scope, receive)
        try:
            answer = await self._handler(call)
        except ClientGone:
            return
        except Exception as error:
            answer = answer_for_error(error)
        if isinstance(answer, EventStream):
            if scope["method"] == "HEAD":
                answer.hurry()
            await answer.run(call.connection, send, receive)
        else:
            await _send(answer, send)


async def _send(answer: HttpResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers()})
    await send({"type": "http.response.body", "body": answer.body})


class _Guarded:
    """Wraps an ASGI app that raises its refusals before it sends anything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except DibsError as error:
            await _send(answer_for_error(error), send)


def build_app(api: Api, gateway: Gateway | None = None, mcp: ASGIApp | None = None) -> ASGIApp:
    """All routes of the server; `mcp` is served at /mcp."""
    routes = [*_routes(api), *_as_routes(gateway.routes() if gateway is not None else [])]
    if mcp is not None:
        routes.append(Route("/mcp", _Guarded(mcp), methods=["POST"]))
    router = Router(routes, redirect_slashes=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await router(scope, receive, send)
            return
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        try:
            # With "app" in the scope, the router raises its refusals instead of answering in plain text.
            await router({**scope, "app": app, "path": raw_path.decode("latin-1")}, receive, send)
        except HTTPException as error:
            await _send(answer_for_error(_refused(error)), send)

    return app


def _routes(api: Api) -> list[Route]:
    def takes(verb: str, read: Callable[[HttpRequest, Known], Awaitable[bytes]]) -> Handler:
        async def handle(call: HttpRequest) -> HttpResponse:
            body = await read(call, api.caller_of)
            return await api.answer(verb, call.raw_name, call.query, call.headers, body, call.connection)

        return handle

    def job(verb: str) -> Handler:
        return takes(verb, HttpRequest.body)

    name = "/locks/{name:segment}"
    session = "/sessions/{name:segment}"
    table: list[tuple[str, str, Handler]] = [
        ("POST", "/locks/acquire-any", job("acquire-any")),
        ("POST", "/locks/acquire-all", job("acquire-all")),
        ("POST", f"{name}/acquire", job("acquire")),
        ("POST", f"{name}/renew", job("renew")),
        ("POST", f"{name}/release", job("release")),
        ("POST", f"{name}/leave", job("leave")),
        ("POST", f"{name}/transfer", job("transfer")),
        ("POST", f"{name}/break", job("break")),
        ("POST", f"{name}/free", takes("free", HttpRequest.rest)),
        ("PUT", f"{name}/acl", job("acl")),
        ("GET", f"{name}/history", lambda call: api.history(call.raw_name, call.query, call.headers)),
        ("GET", name, takes("inspect", _no_body)),
        ("GET", "/locks", lambda call: api.list(call.query, call.headers)),
        ("POST", "/sessions", job("session-open")),
        ("GET", "/sessions", lambda call: api.sessions(call.headers)),
        ("POST", f"{session}/keepalive", takes("session-keep", HttpRequest.rest)),
        ("GET", session, takes("session-show", _no_body)),
        ("DELETE", session, takes("session-end", _no_body)),
        ("GET", "/proof", lambda call: api.proof(call.query, call.server)),
        ("GET", "/health", lambda call: api.health()),
        ("GET", "/ready", lambda call: api.ready()),
        ("GET", "/readyz", lambda call: api.ready()),
        ("GET", "/healthz", lambda call: api.alive()),
        ("GET", "/status", lambda call: api.status()),
    ]
    return _as_routes([*table, *event_routes(api), *token_routes(api)])


def _as_routes(table: Sequence[tuple[str, str, Handler]]) -> list[Route]:
    return [Route(path, _Endpoint(handler), methods=[method]) for method, path, handler in table]


async def _no_body(call: HttpRequest, known: Known) -> bytes:
    return b""


def _refused(error: HTTPException) -> HttpError:
    if error.status_code == 404:
        return HttpError(
            "There is nothing at this address. A / inside a name is sent as %2F.", 404, code="not_found"
        )
    allow = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    more = ((b"allow", allow.encode()),) if allow else ()
    return HttpError(UNSUPPORTED, error.status_code, headers=more)
