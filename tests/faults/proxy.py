"""A proxy between a client and a real server that loses, delays, cuts and garbles, one exchange at a time.

It knows just enough of HTTP/1.1 to tell where a message ends, so that a test can say which one goes wrong and whether
the server had carried it out by then.
"""

from __future__ import annotations

import enum
import re
import select
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # The reply to a request. What it is given besides asks the server.
    Lie = Callable[[bytes, Callable[[bytes], bytes]], bytes]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Fault(enum.Enum):
    """The fault of one exchange."""

    NONE = "none"
    REQUEST_LOST = "the connection ends before the server hears of it"
    REPLY_LOST = "the server has done it, and the connection ends"
    REPLY_CUT = "half of the reply arrives"
    REPLY_GARBLED = "what arrives is not HTTP"
    REPLY_FOREIGN = "what arrives is HTTP, and not JSON"
    HANGS = "the server has done it, and nothing arrives, ever"
    SWALLOWED = "the server hears nothing, and nobody says so"
    CLOSED_AFTER = "it works, and the connection is closed without a word"


class Proxy:
    """Listens on a port of its own. `where` gives the server's present URL; `fault` chooses the fault of each
    request."""

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.fault: Callable[[bytes], Fault] = lambda request: Fault.NONE
        self.delay_seconds: Callable[[bytes], float] = lambda request: 0.0
        self.lie: Lie | None = None
        self.requests: list[bytes] = []
        self.connections = 0
        self.open_connections = 0
        self.open_connections_max = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        self._threads.append(accepting)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        except OSError:
            pass
        for thread in self._threads:
            thread.join(WAIT_S_MAX)
        self._listener.close()

    def faults(self, *faults: Fault) -> None:
        """Sets these faults, one for each request from now on; then none."""
        left = list(faults)
        self.fault = lambda request: left.pop(0) if left else Fault.NONE

    def once(self, word: str, fault: Fault) -> None:
        """Sets a fault for the next request whose first line has `word`."""
        self.each(word, [fault])

    def each(self, word: str, faults: Sequence[Fault]) -> None:
        left = list(faults)

        def judge(request: bytes) -> Fault:
            matches = word.encode() in request.split(b"\r\n", 1)[0]
            return left.pop(0) if matches and left else Fault.NONE

        self.fault = judge

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self.connections += 1
                self.open_connections += 1
                self.open_connections_max = max(self.open_connections_max, self.open_connections)
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        far: socket.socket | None = None
        try:
            near.settimeout(WAIT_S_MAX)
            while request := self._message(near):
                self.requests.append(request)
                fault = self.fault(request)
                if fault is Fault.REQUEST_LOST:
                    return
                if fault is Fault.SWALLOWED:
                    self._wait_for_the_end_of(near)
                    return
                if self.lie is not None:
                    reply = self.lie(request, partial(self._asked, near))
                else:
                    far = far or self._connected()
                    far.sendall(request)
                    reply = self._message(far, unless=near)
                if not reply or not self._answer(near, request, reply, fault):
                    return
        except OSError:
            pass  # one side is gone; the close below tells the other
        finally:
            near.close()
            if far is not None:
                far.close()
            with self._lock:
                self.open_connections -= 1

    def _asked(self, near: socket.socket, request: bytes) -> bytes:
        with self._connected() as far:
            far.sendall(request)
            return self._message(far, unless=near)

    def _answer(self, near: socket.socket, request: bytes, reply: bytes, fault: Fault) -> bool:
        """Whether the connection goes on."""
        delay = self.delay_seconds(request)
        if delay:
            self._over.wait(delay)
        if fault is Fault.REPLY_LOST:
            return False
        if fault is Fault.HANGS:
            self._wait_for_the_end_of(near)
            return False
        if fault is Fault.REPLY_CUT:
            near.sendall(reply[: len(reply) // 2])
            return False
        if fault is Fault.REPLY_GARBLED:
            near.sendall(bytes(byte ^ 0x55 for byte in reply) + b"\n")
            return False
        if fault is Fault.REPLY_FOREIGN:
            near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>")
            return False
        near.sendall(reply)
        return fault is not Fault.CLOSED_AFTER

    def _connected(self) -> socket.socket:
        server = urlsplit(self._where())
        far = socket.create_connection((str(server.hostname), int(server.port or 0)), timeout=WAIT_S_MAX)
        far.settimeout(WAIT_S_MAX)
        return far

    def _wait_for_the_end_of(self, near: socket.socket) -> None:
        while not self._over.is_set():
            if select.select([near], [], [], 0.1)[0] and not near.recv(65536):
                return

    def _message(self, source: socket.socket, unless: socket.socket | None = None) -> bytes:
        """One whole message, or nothing if `source` or `unless` closed first."""
        data = b""
        while not _is_whole(data):
            watched = [source] if unless is None else [source, unless]
            while not (ready := select.select(watched, [], [], 0.1)[0]):
                if self._over.is_set():
                    return b""
            if unless in ready and source not in ready:
                return b""  # it hung up; dibs clients send nothing before they have their answer
            more = source.recv(65536)
            if not more:
                return b""
            data += more
        return data


def _is_whole(data: bytes) -> bool:
    head, mark, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(mark) and len(body) >= (int(length[1]) if length else 0)
