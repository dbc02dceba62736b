"""Which pages may ask this server from a browser: those of the origins in its settings, with a token that they have.
Cookies are never for other origins. Without such origins nothing is answered to a browser's question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.ids import new_request_id
from dibs.server.http.response import Header

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = b"GET,POST,PUT,DELETE"
HEADERS = b"authorization,content-type,idempotency-key,x-dibs-namespace,x-admin-key,x-octostore-admin-key"
EXPOSED = b"retry-after,x-request-id"
MAX_AGE_S = 600
_VARY: Header = (b"vary", b"origin, access-control-request-method, access-control-request-headers")


def with_cors(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """`app`, which tells browsers that pages of `origins` may use it."""
    if not origins:
        return app
    allowed = {origin.encode() for origin in origins}

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        said: list[Header] = [_VARY]
        if origin in allowed:
            said.append((b"access-control-allow-origin", origin))
        if scope["method"] == "OPTIONS":
            await _preflight(said, send)
            return
        said.append((b"access-control-expose-headers", EXPOSED))

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *said]}
            await send(message)

        await app(scope, receive, send_more)

    return answered


async def _preflight(said: list[Header], send: Send) -> None:
    """A browser asks first whether it may ask."""
    headers = [
        *said,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", HEADERS),
        (b"access-control-max-age", str(MAX_AGE_S).encode()),
        (b"x-request-id", new_request_id().encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
