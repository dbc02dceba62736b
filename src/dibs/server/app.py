"""The general way through HTTP: Starlette's router over the handlers.

If the framework refuses a request (no such address, no such method), the answer has our own words and format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from dibs.base.errors import DibsError
from dibs.engine.auth import digest_of
from dibs.server.annexes import shared_routes
from dibs.server.http.admission import client_of
from dibs.server.http.response import UNSUPPORTED, HttpError, answer_for_error
from dibs.server.monitor.request_note import note, noted
from dibs.server.routes.dashboard import board_routes, dashboard_routes, login_routes
from dibs.server.routes.description import description_routes
from dibs.server.routes.elections import election_routes
from dibs.server.routes.events import event_routes
from dibs.server.routes.health import health_routes, metrics_routes
from dibs.server.routes.jobs import job_routes
from dibs.server.routes.sessions import session_routes
from dibs.server.routes.table import routes_of, send_answer
from dibs.server.routes.tokens import rights_routes, token_routes
from dibs.server.routes.webhooks import webhook_routes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send

    from dibs.server.annexes import AnnexRoutes
    from dibs.server.handlers import Api
    from dibs.server.http.response import HttpResponse
    from dibs.server.monitor.request_note import RequestObserver
    from dibs.server.routes.table import Table
    from dibs.wire.operations import Operation


class _Guarded:
    """Wraps an ASGI app that raises its refusals before it sends anything."""

    def __init__(self, app: ASGIApp, verb: str) -> None:
        self._app = app
        self._verb = verb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(verb=self._verb)
        try:
            await self._app(scope, receive, send)
        except DibsError as error:
            await send_answer(answer_for_error(error), send)


def build_app(
    api: Api,
    annexes: Sequence[AnnexRoutes] = (),
    mcp: Any | None = None,
    observers: Sequence[RequestObserver] = (),
) -> ASGIApp:
    """All routes of the server; `mcp` is served at /mcp."""
    router = Router(all_routes(api, annexes, mcp), redirect_slashes=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await router(scope, receive, send)
            return
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        with noted(api.engine.metrics, scope, observers) as request:
            noted_send = request.sends(send)
            try:
                api.check_names(scope["headers"])
                # With "app" in the scope, the router raises its refusals instead of answering in plain text.
                await router({**scope, "app": app, "path": raw_path.decode("latin-1")}, receive, noted_send)
            except HTTPException as error:
                await send_answer(_refusal(api, error, router, raw_path), noted_send)
            except HttpError as error:
                await send_answer(answer_for_error(error), noted_send)
        if request.status in (401, 403):
            headers = dict(reversed(scope["headers"]))
            client = scope.get("dibs.client") or client_of(scope["dibs.connection"].transport)
            digest = digest_of(headers.get(b"authorization"))
            api.answered(request.status, request.verb, client, digest, headers.get(b":peer"))

    return app


def all_routes(api: Api, annexes: Sequence[AnnexRoutes], mcp: Any | None) -> list[Route]:
    table = [*served_table(api), *(route for each in annexes for route in each.routes())]
    api.operations = [operation for operation, _ in table]
    routes = routes_of(table)
    if mcp is not None:
        operation: Operation = mcp.operation
        api.operations.append(operation)
        routes.append(Route(operation.path, _Guarded(mcp, operation.id), methods=[operation.method]))
    return routes


def served_table(api: Api) -> Table:
    """Every operation that each server has, with its handler. Of two that match, the first is taken."""
    table = [
        *job_routes(api),
        *event_routes(api),
        *session_routes(api),
        *election_routes(api),
        *token_routes(api),
        *rights_routes(api),
        *login_routes(api),
        *shared_routes(api),
        *webhook_routes(api),
        *health_routes(api),
        *description_routes(api),
        *metrics_routes(api),
        *board_routes(api),
        *dashboard_routes(),
    ]
    return table if api.settings.contract is None else api.settings.contract.served(api, table)


def _refusal(api: Api, error: HTTPException, router: Router, raw_path: bytes) -> HttpResponse:
    if api.settings.contract is None:
        return answer_for_error(_refused(error, router, raw_path))
    return api.settings.contract.refusal(error.status_code)


def _refused(error: HTTPException, router: Router, raw_path: bytes) -> HttpError:
    if error.status_code == 404:
        return HttpError(
            "There is nothing at this address. A / inside a name is sent as %2F.", 404, code="not_found"
        )
    # The router names only the methods of the first route that matches.
    path = raw_path.decode("latin-1")
    routes = [route for route in router.routes if isinstance(route, Route) and route.path_regex.match(path)]
    routes = [route for route in routes if route.path == path] or routes
    allow = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
    return HttpError(UNSUPPORTED, error.status_code, headers=((b"allow", allow.encode()),))
