"""A reader of a server's event stream, over a plain socket."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

from dibs.client.event_reader import FrameReader
from tests.programs import WAIT_S_MAX
from tests.server.harness import TOKENS

if TYPE_CHECKING:
    from types import TracebackType


class Frame:
    def __init__(self, kind: str, data: str, last_id: str) -> None:
        self.kind = kind
        self.document: Any = json.loads(data) if data else None
        self.id = int(last_id or 0)


class StreamReader:
    """Opens a stream. `frames` are those with data; a wait for one more is bounded."""

    def __init__(
        self,
        port: int,
        path: str,
        *,
        who: str | None = "agent",
        last_id: int | None = None,
        receive_bytes: int | None = None,
        head: str = "",
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(WAIT_S_MAX)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(("127.0.0.1", port))
        again = "" if last_id is None else f"Last-Event-ID: {last_id}\r\n"
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n{again}{head}"
        credential = "" if who is None else f"Authorization: Bearer {TOKENS.get(who, who)}\r\n"
        self.socket.sendall(f"{head}{credential}\r\n".encode())
        self._file = self.socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self._reader = FrameReader()
        self._waiting: list[Frame] = []
        self.ended = False  # properly, by the last chunk
        self.text = b""

    def _chunk(self) -> None:
        size = int(self._file.readline().strip() or b"0", 16)
        data = self._file.read(size)
        self._file.readline()
        self.ended = not size
        self.text += data
        self._waiting += [Frame(*found) for found in self._reader.feed(data)]

    @property
    def position(self) -> int:
        return int(self._reader.last_id)

    def next(self) -> Frame:
        """The next frame with data."""
        while True:
            while self._waiting:
                if (found := self._waiting.pop(0)).document is not None:
                    return found
            if self.ended:
                raise EOFError
            self._chunk()

    def settle(self) -> None:
        """Read until the first position has come: from now on everything is seen."""
        while not self._reader.last_id:
            self._chunk()

    def rest(self) -> list[Frame]:
        """All frames with data up to the end of the stream."""
        found: list[Frame] = []
        try:
            while True:
                found.append(self.next())
        except EOFError:
            return found

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self.socket.close()
