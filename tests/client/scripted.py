"""A server that says exactly what a test wrote down, byte by byte, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    # What to do with one connection: bytes to send and close, None to close at once, or a function to do as it likes.
    Step = bytes | None | Callable[[socket.socket], None]


def reply_of(status: int, body: object, *headers: str) -> bytes:
    """A well-formed reply."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


class ScriptedServer:
    """One step per request, one request per connection. When they are used up, further connections are refused."""

    def __init__(
        self,
        steps: Sequence[Step],
        family: int = socket.AF_INET,
        path: str = "",
        wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
    ) -> None:
        self._wrap = wrap
        self._steps = list(steps)
        self.requests: list[bytes] = []
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        address: Any = path or (("::1", 0) if family == socket.AF_INET6 else ("127.0.0.1", 0))
        self._socket.bind(address)
        self._socket.listen(8)
        self._socket.settimeout(WAIT_S_MAX)
        if path:
            self.url = f"unix://{path}"
        else:
            host, port = self._socket.getsockname()[:2]
            self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.clear()
        try:
            # Whoever waits in accept is woken by it; close alone would leave it waiting.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join(WAIT_S_MAX)
        self._socket.close()

    def _serve(self) -> None:
        while self._steps:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.settimeout(WAIT_S_MAX)
            try:
                with self._wrap(connection) as wrapped:
                    self._answer(wrapped)
            except OSError:
                connection.close()  # the client left, or did not trust us: that was no request
        self._socket.close()

    def _answer(self, connection: socket.socket) -> None:
        self.requests.append(read_request(connection))
        step = self._steps.pop(0) if self._steps else None
        if callable(step):
            step(connection)
        elif step is not None:
            connection.sendall(step)

    def body(self, index: int = 0) -> Any:
        """The JSON that was sent with a request."""
        return json.loads(self.requests[index].partition(b"\r\n\r\n")[2])


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += _some(connection)
    return head + b"\r\n\r\n" + body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the client left")
    return data
