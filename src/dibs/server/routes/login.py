"""POST /login, POST /logout and GET /whoami: a browser's login by token (`cookie.py`), and who the caller is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.errors import AuthenticationFailed, NotAllowed
from dibs.base.ids import new_request_id
from dibs.core.limits import LOGIN_FAILURES_MAX
from dibs.server.http.client_windows import ClientWindows
from dibs.server.http.cookie import clear_cookie, has_mark, is_from_own_page, set_cookie
from dibs.server.http.request import check_head, parse_json
from dibs.server.http.response import NO_CONTENT, HttpResponse, answer_document
from dibs.wire.login import whoami_document
from dibs.wire.operations import Operation, in_header
from dibs.wire.permissions import require
from dibs.wire.requests import shape
from dibs.wire.values import text_of

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table

_SECTION = "Login of a browser"
LOGIN = Operation(
    "POST",
    "/login",
    "login",
    "put a token into a browser's cookie",
    _SECTION,
    {200: "whoami"},
    ("authentication_required", "authentication_failed", "forbidden", "rate_limited", "upstream_unavailable"),
    is_open=True,
    example={"token": "a token"},
)
LOGOUT = Operation(
    "POST",
    "/logout",
    "logout",
    "clear the cookie",
    _SECTION,
    {204: None},
    ("forbidden",),
    (in_header("X-Dibs-Request", "`1`: the request is of a page of this server", enum=["1"]),),
    is_open=True,
)
WHOAMI = Operation("GET", "/whoami", "whoami", "who the caller is", _SECTION, {200: "whoami"})


def login_routes(api: Api) -> Table:
    routes = LoginRoutes(api)
    return [(LOGIN, routes.login), (LOGOUT, routes.logout), (WHOAMI, routes.whoami)]


class LoginRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._failures = ClientWindows(LOGIN_FAILURES_MAX, "failed logins")

    async def login(self, call: HttpRequest) -> HttpResponse:
        """Answer a valid token with a cookie that holds it."""
        check_head(call.headers)
        document = shape("login", parse_json(await call.rest()))
        if b"origin" in call.headers or b"sec-fetch-site" in call.headers:
            _check_page(call)  # else a foreign page could log the browser in with a token of its own
        token = (text_of(document, "token") or "").strip()
        client = call.client
        self._failures.check(client)
        authorization = b"Bearer " + token.encode()
        try:
            caller = self._api.caller_for(LOGIN.id, {b"authorization": authorization})
        except AuthenticationFailed:
            self._failures.charge(client)
            raise
        answer = answer_document(whoami_document(caller, self._api.ends_ms(authorization)))
        return answer._replace(more=((b"set-cookie", set_cookie(token, call.scheme)),))

    async def logout(self, call: HttpRequest) -> HttpResponse:
        """Clear the cookie. It needs no credential: a cookie that is no longer valid is cleared, too."""
        _check_page(call)
        if not has_mark(call.headers):
            raise NotAllowed("Send the header X-Dibs-Request: 1 to log out.")
        more = ((b"set-cookie", clear_cookie(call.scheme)),)
        return HttpResponse(NO_CONTENT, b"", new_request_id().encode(), more)

    async def whoami(self, call: HttpRequest) -> HttpResponse:
        caller = self._api.caller_for("whoami", call.headers)
        require(caller, "whoami")
        ends_ms = self._api.ends_ms(call.headers.get(b"authorization"))
        return answer_document(whoami_document(caller, ends_ms))


def _check_page(call: HttpRequest) -> None:
    if not is_from_own_page(call.method, call.scheme, call.headers):
        raise NotAllowed("Only a page of this server may do this.")
