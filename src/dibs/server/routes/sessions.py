"""The operations on sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.server.routes.jobs import asks
from dibs.wire.operations import NAMESPACE, SESSION, STORE, Link, Operation

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.routes.table import Table

SESSIONS = "Sessions"
_OF_A_SESSION = (SESSION, *NAMESPACE, STORE)

_ID = {"id": "$response.body#/session_id"}
_OF_THE_SESSION = (
    Link("keepalive", "session-keep", "The session is alive", 201, _ID),
    Link("show", "session-show", "How it stands", 201, _ID),
    Link("end", "session-end", "Its end: all that it holds is let go", 201, _ID),
    Link("acquire", "acquire", "Claim a job in it", 201, {}, {"session_id": "$response.body#/session_id"}),
)

OPEN = Operation(
    "POST",
    "/sessions",
    "session-open",
    "open a session",
    SESSIONS,
    {201: "session"},
    ("invalid_ttl", "not_found", "session_expired", "capacity_exceeded", "draining"),
    (*NAMESPACE, STORE),
    example={"owner": "worker-1", "ttl_seconds": 60},
    links=_OF_THE_SESSION,
)
LIST = Operation(
    "GET",
    "/sessions",
    "sessions",
    "open sessions: those of the token; for an operator or admin, all",
    SESSIONS,
    {200: "sessions"},
)
KEEP = Operation(
    "POST",
    "/sessions/{id}/keepalive",
    "session-keep",
    "the session is alive",
    SESSIONS,
    {200: "session"},
    ("invalid_ttl", "not_found", "session_expired"),
    _OF_A_SESSION,
    body_optional=True,
)
SHOW = Operation(
    "GET",
    "/sessions/{id}",
    "session-show",
    "how a session stands",
    SESSIONS,
    {200: "session"},
    ("not_found",),
    _OF_A_SESSION,
)
END = Operation(
    "DELETE",
    "/sessions/{id}",
    "session-end",
    "end a session",
    SESSIONS,
    {204: None},
    ("not_found", "session_expired"),
    _OF_A_SESSION,
)


def session_routes(api: Api) -> Table:
    return [
        asks(api, OPEN),
        (LIST, lambda call: api.sessions(call.headers)),
        asks(api, KEEP),
        asks(api, SHOW),
        asks(api, END),
    ]
