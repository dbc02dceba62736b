"""A server that speaks HTTP/2 as badly as it is told to."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from hpack import Encoder, NeverIndexedHeaderTuple

from dibs.stores.etcd.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    WINDOW_UPDATE,
)
from dibs.stores.etcd.messages import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    # What it sends when a request is complete, given the number of the call. Then it is silent, or closes.
    Answer = Callable[[int], Iterable[bytes]]

PREFACE_BYTES = 24
SERVED = message(message(1, 1, 7), 1)  # of a transaction that succeeded, at revision 7


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def block(**headers: str | bytes) -> bytes:
    """Names are written with "_" for "-"; `status` is the one of HTTP."""
    named = {":status" if name == "status" else name.replace("_", "-"): value for name, value in headers.items()}
    return Encoder().encode([NeverIndexedHeaderTuple(*each) for each in named.items()], huffman=False)


def told(data: bytes, compressed: int = 0) -> bytes:
    """A message of gRPC."""
    return struct.pack(">BI", compressed, len(data)) + data


def answered(stream: int, data: bytes = told(SERVED), **trailers: str | bytes) -> bytes:
    """A whole answer, as etcd gives it."""
    begin = frame(HEADERS, END_HEADERS, stream, block(status="200", content_type="application/grpc"))
    end = frame(HEADERS, END_HEADERS | END_STREAM, stream, block(**(trailers or {"grpc_status": "0"})))
    return begin + frame(DATA, 0, stream, data) + end


class HostileServer:
    """Each connection gets `hello`, and each complete request `answer`. With `reads` False it never reads."""

    def __init__(self, answer: Answer, hello: bytes = b"", *, reads: bool = True, closes: bool = False) -> None:
        self._answer, self._hello, self._reads, self._closes = answer, hello, reads, closes
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint: tuple[str, int] = self._listener.getsockname()[:2]
        self._open: list[socket.socket] = []
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._over.is_set():
                near = self._listener.accept()[0]
                self._open.append(near)
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError, EOFError):
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            near.sendall(frame(SETTINGS, 0, 0, b"") + self._hello)
            if not self._reads:
                self._send(near, 1)
                return
            received = near.makefile("rb")
            taken(received.read, PREFACE_BYTES)
            data = b""
            while True:
                head = taken(received.read, 9)
                body = taken(received.read, int.from_bytes(head[:3]))
                stream = int.from_bytes(head[5:])
                if head[3] == DATA:
                    data += body
                    if not head[4] & END_STREAM:
                        # One byte more, for whoever was given a window of one byte.
                        near.sendall(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", len(body))))
                        continue
                    self.requests.append(data)
                    data = b""
                    self._send(near, stream)
                    if self._closes:
                        received.close()
                        near.close()
                        return

    def _send(self, near: socket.socket, stream: int) -> None:
        for each in self._answer(stream):
            if self._over.is_set():
                return
            near.sendall(each)


def taken(read: Callable[[int], bytes], size: int) -> bytes:
    found = read(size)
    if len(found) < size:
        raise EOFError
    return found
