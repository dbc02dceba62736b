"""The ceiling: the HTTP stack under dibs, with a constant answer.

A subclass of uvicorn's httptools protocol reads the whole request and answers a constant of about the size of a real
reply to an acquire.

    python noop.py PORT
"""

from __future__ import annotations

import sys

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


async def _unused(*_: object) -> None:
    """The application that uvicorn asks for; the protocol answers before it."""


class ConstantProtocol(HttpToolsProtocol):
    """Parses as uvicorn does, headers included, and answers without building an ASGI cycle."""

    def on_headers_complete(self) -> None:
        """Makes no cycle: the short way saves that."""

    def on_body(self, body: bytes) -> None:
        """Read and dropped."""

    def on_message_complete(self) -> None:
        self.transport.write(RAW)


def main() -> None:
    config = uvicorn.Config(
        _unused,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http=ConstantProtocol,
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
