"""Every operation of a server, with its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.server.annexes import shared_routes
from dibs.server.http.response import answer_for_error
from dibs.server.routes.dashboard import board_routes, dashboard_routes, login_routes
from dibs.server.routes.description import description_routes
from dibs.server.routes.elections import election_routes
from dibs.server.routes.events import event_routes
from dibs.server.routes.health import health_routes, metrics_routes
from dibs.server.routes.jobs import job_routes
from dibs.server.routes.sessions import session_routes
from dibs.server.routes.table import Router
from dibs.server.routes.tokens import rights_routes, token_routes
from dibs.server.routes.webhooks import webhook_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.server.annexes import AnnexRoutes
    from dibs.server.handlers import Api
    from dibs.server.http.response import HttpError, HttpResponse
    from dibs.server.routes.table import Table


def build_router(api: Api, annexes: Sequence[AnnexRoutes] = ()) -> Router:
    table = [*served_table(api), *(route for each in annexes for route in each.routes())]
    api.operations = [operation for operation, _ in table]

    def refuse(refusal: HttpError) -> HttpResponse:
        contract = api.settings.contract
        return answer_for_error(refusal) if contract is None else contract.refusal(refusal.status)

    return Router(table, refuse)


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
