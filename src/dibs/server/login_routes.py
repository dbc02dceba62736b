"""POST /login, POST /logout and GET /whoami: a browser's login by token (`cookie.py`), and who the caller is."""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

from dibs.clock import steady_ms
from dibs.core.limits import LOGIN_CLIENTS_MAX, LOGIN_FAILURES_MAX, LOGIN_RECOVERY_MS
from dibs.errors import AuthenticationFailed, NotAllowed
from dibs.ids import new_request_id
from dibs.server.admission import client_of
from dibs.server.cookie import clear_cookie, has_mark, is_from_own_page, set_cookie
from dibs.server.request import check_head, parse_json
from dibs.server.response import NO_CONTENT, HttpResponse, answer_document
from dibs.service.rate import RateLimited
from dibs.wire.login import whoami_document
from dibs.wire.operations import Operation, in_header
from dibs.wire.permissions import require
from dibs.wire.requests import shape
from dibs.wire.values import text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.server.handlers import Api
    from dibs.server.request import HttpRequest
    from dibs.server.routes import Table

log = logging.getLogger("dibs")

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
_NOT_STORED = (b"cache-control", b"no-store")


class LoginAttempts:
    """Bounds the failed logins of one client: LOGIN_FAILURES_MAX at once, then one every LOGIN_RECOVERY_MS. For one
    event loop. It remembers LOGIN_CLIENTS_MAX clients and forgets the ones that failed first."""

    def __init__(self, steady: Callable[[], int] = steady_ms) -> None:
        self._steady = steady
        self._over_ms: dict[str, int] = {}  # by client: when all its failures will be forgotten

    def __len__(self) -> int:
        return len(self._over_ms)

    def check(self, client: str) -> None:
        """Raise RateLimited if this client may not try now, whatever token it has."""
        wait_ms = self._over_ms.get(client, 0) - self._steady() - (LOGIN_FAILURES_MAX - 1) * LOGIN_RECOVERY_MS
        if wait_ms > 0:
            raise RateLimited("Too many failed logins from your address. Try again a little later.", wait_ms)

    def failed(self, client: str) -> None:
        now_ms = self._steady()
        over_ms = max(self._over_ms.pop(client, 0), now_ms) + LOGIN_RECOVERY_MS
        if len(self._over_ms) >= LOGIN_CLIENTS_MAX:
            del self._over_ms[next(iter(self._over_ms))]
        self._over_ms[client] = over_ms
        if over_ms - now_ms > (LOGIN_FAILURES_MAX - 1) * LOGIN_RECOVERY_MS:
            log.warning("%d failed logins from %s: it has to wait", LOGIN_FAILURES_MAX, client)


def login_routes(api: Api) -> Table:
    routes = LoginRoutes(api)
    return [(LOGIN, routes.login), (LOGOUT, routes.logout), (WHOAMI, routes.whoami)]


class LoginRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self.attempts = LoginAttempts()

    async def login(self, call: HttpRequest) -> HttpResponse:
        """Answer a valid token with a cookie that holds it."""
        check_head(call.headers)
        document = shape("login", parse_json(await call.rest()))
        if b"origin" in call.headers or b"sec-fetch-site" in call.headers:
            _check_page(call)  # else a foreign page could log the browser in with a token of its own
        token = (text_of(document, "token") or "").strip()
        client = _client(call)
        self.attempts.check(client)
        authorization = b"Bearer " + token.encode()
        try:
            caller = self._api.caller(authorization)
        except AuthenticationFailed:
            self.attempts.failed(client)
            raise
        answer = answer_document(whoami_document(caller, self._api.ends_ms(authorization)))
        return answer._replace(more=(_NOT_STORED, (b"set-cookie", set_cookie(token, call.scheme))))

    async def logout(self, call: HttpRequest) -> HttpResponse:
        """Clear the cookie. It needs no credential: a cookie that is no longer valid is cleared, too."""
        _check_page(call)
        if not has_mark(call.headers):
            raise NotAllowed("Send the header X-Dibs-Request: 1 to log out.")
        more = (_NOT_STORED, (b"set-cookie", clear_cookie(call.scheme)))
        return HttpResponse(NO_CONTENT, b"", new_request_id().encode(), more)

    async def whoami(self, call: HttpRequest) -> HttpResponse:
        caller = self._api.caller_for("whoami", call.headers)
        require(caller, "whoami")
        ends_ms = self._api.ends_ms(call.headers.get(b"authorization"))
        return answer_document(whoami_document(caller, ends_ms))._replace(more=(_NOT_STORED,))


def _check_page(call: HttpRequest) -> None:
    if not is_from_own_page(call.method, call.scheme, call.headers):
        raise NotAllowed("Only a page of this server may do this.")


def _client(call: HttpRequest) -> str:
    """Who is limited: an address; of IPv6 the network, because one machine may use all its addresses."""
    connection: Any = call.connection
    client = client_of(connection.transport)
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:  # a user, on a Unix socket
        return client
    if address.version == 4 or address.ipv4_mapped is not None:
        return client
    return str(ipaddress.ip_network((address, 64), strict=False))
