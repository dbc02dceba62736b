"""The ceiling: the HTTP stack under dibs, with a constant answer.

Two ways through it, because dibs may use either: `asgi` is a plain ASGI application, `lane` a subclass of
uvicorn's httptools protocol that answers as soon as a request is parsed. Both read the whole request and answer
a constant of about the size of a real reply to an acquire.

    python noop.py asgi|lane PORT
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BODY = (
    b'{"status":"acquired","lease_id":"00000000-0000-4000-8000-000000000000","fencing_token":1,'
    b'"expires_at":"2000-01-01T00:00:00.000Z","renew_after_ms":30000,"metadata":null}'
)
HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
    (b"x-request-id", b"req_00000000000000000000000000000000"),
]
RAW = b"HTTP/1.1 200 OK\r\n" + b"".join(k + b": " + v + b"\r\n" for k, v in HEADERS) + b"\r\n" + BODY

Message = MutableMapping[str, Any]


async def constant(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


class ConstantProtocol(HttpToolsProtocol):
    """Parses as uvicorn does, headers included, and answers without building an ASGI cycle."""

    def on_headers_complete(self) -> None:
        """Makes no cycle: the short way saves that."""

    def on_body(self, body: bytes) -> None:
        """Read and dropped."""

    def on_message_complete(self) -> None:
        self.transport.write(RAW)


def main() -> None:
    way, port = sys.argv[1], int(sys.argv[2])
    config = uvicorn.Config(
        constant,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http=ConstantProtocol if way == "lane" else "httptools",
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
