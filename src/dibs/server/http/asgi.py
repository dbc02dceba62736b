"""One request, as an ASGI application wants it. Only the library behind `/mcp` does."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Any

    from dibs.server.http.request import HttpRequest

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]


def scope_of(call: HttpRequest) -> Scope:
    peer = call.connection.transport.get_extra_info("peername")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": call.version,
        "server": call.server,
        "client": (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None,
        "scheme": call.scheme,
        "root_path": "",
        "headers": list(call.head.sent),
        "state": {},
        "method": call.method,
        "path": unquote(call.path.decode("latin-1")),
        "raw_path": call.path,
        "query_string": call.query,
        "dibs.connection": call.connection,  # for our own application only
    }


async def serve(app: App, scope: Scope, call: HttpRequest) -> None:
    """Let `app` answer the request. Its caller is known."""
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await call.connection.lost()
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": await call.rest(lambda headers: None), "more_body": False}

    async def send(message: Message) -> None:
        await call.connection.drain()
        if message["type"] == "http.response.start":
            call.start(message["status"], list(message.get("headers", ())))
        else:
            call.write(message.get("body", b""))
            if not message.get("more_body", False):
                call.finish()

    await app(scope, receive, send)
