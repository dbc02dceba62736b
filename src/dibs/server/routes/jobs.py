"""The operations on jobs and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.server.http.parse import check_head
from dibs.server.routes.operations import OPERATIONS, routed

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table


_ASKED = "acquire acquire-any acquire-all leave renew release transfer break free acl pool inspect"


def job_routes(api: Api) -> Table:
    return routed(
        {
            **{verb: asks(api, verb) for verb in _ASKED.split()},
            "list": lambda call: api.list(call.query, call.headers),
            "history": lambda call: api.history(call.raw_name, call.query, call.headers),
        }
    )


def asks(api: Api, verb: str) -> Handler:
    """A handler that has the command of an operation decided. The outcome is answered without a task."""
    operation = OPERATIONS[verb]
    if operation.method in ("GET", "DELETE"):
        return lambda call: api.ask(call, verb, b"")

    def handle(call: HttpRequest) -> None:
        if not (call.head.is_acceptable or operation.body_optional):
            check_head(call.headers)  # before the body has come
        call.read(api.caller_of, lambda body: api.ask(call, verb, body))

    return handle


def session_routes(api: Api) -> Table:
    return routed(
        {
            "session-open": asks(api, "session-open"),
            "sessions": lambda call: api.sessions(call.headers),
            **{verb: asks(api, verb) for verb in ("session-keep", "session-show", "session-end")},
        }
    )
