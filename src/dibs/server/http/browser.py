"""Checks what only browsers send: names of this machine, a login cookie, questions of other pages. Pure.

**Names.** A page in a browser can reach a server on this machine under a name of its own, whose address its owner
changes to 127.0.0.1 once the page is loaded (DNS rebinding). To the browser they are one origin then. What gives it
away is the name in `Host`, and in `Origin`.

**The cookie** of a browser that logged in holds the token itself. So a server keeps no state about logins, every server
on the store accepts it, and a revoked token ends it at once. A browser sends its cookies also with requests that other
sites cause. So a cookie counts only if the request comes from a page of this server: by `Sec-Fetch-Site`, or by
`Origin` where a browser does not send that. A request that changes something must also have the header
`X-Dibs-Request: 1`, which a form cannot send, and a script of another origin only after asking. Everything else is a
request without a credential.

**Other pages** (CORS) may ask this server if their origin is in its settings, with a token that they have. Cookies are
never for other origins. Without such origins nothing is answered to a browser's question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote_to_bytes, urlsplit

from dibs.base.ids import new_request_id
from dibs.core.limits import TOKEN_CHARS_MAX
from dibs.server.http.response import MISDIRECTED, HttpError

Headers = Mapping[bytes, bytes]
Sent = Iterable[tuple[bytes, bytes]]

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_OF_LOCALHOST = ".localhost"  # browsers ask no server for the address of these
_KEPT_MAX = 256
HTTPS = "https"
NAME = b"dibs_token"
# A browser takes this name only over TLS, for this very host: no other host of its domain can put one beside it.
NAME_OVER_TLS = b"__Host-dibs_token"
REFUSED = b":cookie-refused"  # why a cookie did not count; no header of a request can be called so
REQUEST_HEADER = b"x-dibs-request"
_READING = ("GET", "HEAD")
_SINGLE = frozenset((b"cookie", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"host", REQUEST_HEADER))
_ATTRIBUTES = "; Path=/; HttpOnly; SameSite=Strict"
METHODS = "GET,POST,PUT,DELETE"
HEADERS = (
    "authorization,content-type,idempotency-key,x-dibs-names,x-dibs-namespace,x-dibs-servers,x-dibs-store,x-admin-key,"
    "x-octostore-admin-key"
)
EXPOSED = "retry-after,x-request-id"
MAX_AGE_S = 600
_VARY = "origin, access-control-request-method, access-control-request-headers"


class OwnNames:
    """`names` are those besides localhost; pages of `origins` may ask, too."""

    def __init__(self, names: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in (*LOCAL_NAMES, *names)}
        self._origins = {origin.encode() for origin in origins}
        self._known: dict[bytes, bool] = {}

    def knows(self, host: bytes) -> bool:
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[host] = self._names_us(b"//" + host)
        return known

    def check(self, headers: Sent, *, strict: bool = False) -> None:
        """Raise if Host or Origin names another machine, if there are any. `strict`: pages that may ask are others."""
        for name, value in headers:
            if name == b"host" and not self.knows(value):
                raise HttpError(
                    "The Host header does not name this machine. Use the name it listens on, or start the server "
                    "with --mcp-host NAME; behind a proxy, with --trusted-proxy ADDRESS.",
                    MISDIRECTED,
                )
            if name == b"origin" and not self._names_us(value) and (strict or value not in self._origins):
                helps = "--mcp-host NAME" if strict else "--cors-origin ORIGIN"
                raise HttpError(
                    f"Pages of this Origin may not ask here. If yours should, start the server with {helps}.",
                    403,
                    code="forbidden",
                )

    def _names_us(self, url: bytes) -> bool:
        try:
            name = urlsplit(url.decode("latin-1")).hostname or ""
        except ValueError:
            return False
        return name in self._names or name.endswith(_OF_LOCALHOST)


def name_for(scheme: str) -> bytes:
    return NAME_OVER_TLS if scheme == HTTPS else NAME


def cookie_for(token: str, scheme: str) -> str:
    """The value of Set-Cookie that logs a browser in, until its session ends; without a token, out."""
    ends, secure = "" if token else "; Max-Age=0", "; Secure" if scheme == HTTPS else ""
    return f"{name_for(scheme).decode()}={quote(token, safe='')}{ends}{_ATTRIBUTES}{secure}"


def with_credential(method: str, scheme: str, headers: dict[bytes, bytes], sent: Sent) -> None:
    """Put the cookie's token into `headers` as Authorization, or why it does not count. `sent`: all, as they came."""
    if b"cookie" not in headers or b"authorization" in headers:
        return
    pairs = [part.strip(b" \t").partition(b"=") for part in headers[b"cookie"].split(b";")]
    found = [value for name, mark, value in pairs if name == name_for(scheme) and mark]
    if not found:
        return
    reason = _refusal(method, scheme, headers, sent, found)
    if reason is None:
        headers[b"authorization"] = b"Bearer " + unquote_to_bytes(found[0])
    else:
        headers[REFUSED] = reason.encode()


def _refusal(method: str, scheme: str, headers: Headers, sent: Sent, found: list[bytes]) -> str | None:
    names = [name for name, _ in sent if name in _SINGLE]
    if len(found) > 1 or len(set(names)) != len(names):
        return "The request has two login cookies, or a header twice. Delete this site's cookies and log in again."
    if not found[0] or len(found[0]) > 3 * TOKEN_CHARS_MAX:  # a character is three after percent-encoding
        return "The login cookie is not one. Log in again."
    if not is_from_own_page(method, scheme, headers):
        return "The login cookie counts only in requests from a page of this server."
    if method not in _READING and not has_mark(headers):
        return "The login cookie counts in a request that changes something only with the header X-Dibs-Request: 1."
    return None


def has_mark(headers: Headers) -> bool:
    return headers.get(REQUEST_HEADER) == b"1"


def is_from_own_page(method: str, scheme: str, headers: Headers) -> bool:
    """Tell whether the browser says that a page of this server, or the user, made the request. A browser that says
    nothing (a GET over plain HTTP has neither header) must send X-Dibs-Request."""
    site = headers.get(b"sec-fetch-site")
    if site == b"none":  # the user opened a page
        return method in _READING and headers.get(b"sec-fetch-mode") == b"navigate"
    if site is not None:
        return site == b"same-origin" and _fits(headers.get(b"origin"), scheme, headers)
    if b"origin" in headers:
        return _fits(headers[b"origin"], scheme, headers)
    return has_mark(headers)


def _fits(origin: bytes | None, scheme: str, headers: Headers) -> bool:
    """Tell whether Origin is this server. Behind an unknown proxy it sees http for https, so https always counts."""
    if origin is None:
        return True
    host = headers.get(b"host", b"").lower()
    own = [b"https://" + host] if scheme == HTTPS else [b"https://" + host, b"http://" + host]
    return bool(host) and origin.lower() in own


class Cors:
    def __init__(self, origins: tuple[str, ...]) -> None:
        self._allowed = {origin.encode() for origin in origins}

    def headers(self, method: bytes, headers: Headers) -> dict[str, str]:
        allowed = {"vary": _VARY}
        origin = headers.get(b"origin", b"")
        if origin in self._allowed:
            allowed["access-control-allow-origin"] = origin.decode()
        if method != b"OPTIONS":
            allowed["access-control-expose-headers"] = EXPOSED
        return allowed

    @staticmethod
    def preflight() -> dict[str, str]:
        return {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": HEADERS,
            "access-control-max-age": str(MAX_AGE_S),
            "x-request-id": new_request_id(),
            "content-length": "0",
        }
