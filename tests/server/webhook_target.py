"""A webhook's target: an HTTPS server on this machine that behaves as the path of the URL says."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOST = "hook.test"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NO = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"


class Delivery:
    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.json: Any = json.loads(body)

    @property
    def id(self) -> int:
        return int(self.headers["x-dibs-event-id"])


class HookTarget:
    """Keeps all deliveries. `answers` has what is sent for a path; a function is called with the connection. What is
    about a job in `refused` is answered with 500."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.deliveries: list[Delivery] = []
        self.answers: dict[str, bytes | Callable[[ssl.SSLSocket], None]] = {}
        self.refused: set[str] = set()
        self.connections = 0
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, path: str) -> str:
        return f"https://{HOST}:{self.port}{path}"

    def close(self) -> None:
        self._stop.set()
        self._socket.close()

    def to(self, path: str) -> list[Delivery]:
        return [each for each in list(self.deliveries) if each.path == path]

    def wait(self, is_so: Callable[[], bool], what: str = "a delivery") -> None:
        """Wait until something is so, bounded. Looked at after every delivery."""
        end = time.monotonic() + WAIT_S_MAX
        with self._news:
            while not is_so():
                left = end - time.monotonic()
                assert left > 0, f"{what}: {[(each.path, each.json) for each in self.deliveries][-5:]}"
                self._news.wait(min(left, 0.1))

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        raw.settimeout(WAIT_S_MAX)
        with suppress(OSError, ValueError, IndexError), raw:
            connection: Any = raw
            if self.context is not None:
                connection = self.context.wrap_socket(raw, server_side=True)
            with connection, connection.makefile("rb") as file:
                while self._answer(connection, file):
                    pass

    def _answer(self, connection: Any, file: Any) -> bool:
        path = file.readline().decode().split()[1]
        headers = {}
        while line := file.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = file.read(int(headers["content-length"]))
        delivery = Delivery(path, headers, body)
        # Chosen before the test hears of the delivery, and changes it.
        answer = NO if delivery.json.get("lock") in self.refused else self.answers.get(path, OK)
        with self._news:
            self.deliveries.append(delivery)
            self._news.notify_all()
        if callable(answer):
            answer(connection)
            return False
        connection.sendall(answer)
        return True

    def hang(self, connection: Any) -> None:
        """Say nothing."""
        self._stop.wait(WAIT_S_MAX)

    def drip(self, connection: Any) -> None:
        """One byte of a head without end, now and then."""
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        with suppress(OSError):
            while not self._stop.wait(0.05):
                connection.sendall(b"x")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for HOST that signs itself, and its key."""
    made, key = folder / "hook.pem", folder / "hook.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key), "-out", str(made), "-days", "2", "-subj", f"/CN={HOST}"]
    command += ["-addext", f"subjectAltName=DNS:{HOST},DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@contextmanager
def listening(folder: Path) -> Iterator[tuple[HookTarget, Path]]:
    """A target, and the certificate to trust."""
    made, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    target = HookTarget(context)
    try:
        yield target, made
    finally:
        target.close()
