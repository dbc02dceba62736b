"""One HTTP/1.1 connection to one member of etcd: a request at a time, or a stream that is read line by line.

It is our own, because `http.client` parses the headers of every answer with the email package, which costs more than
the rest of a call. Nothing here is retried; `gateway.py` decides that.
"""

from __future__ import annotations

import select
import socket

from dibs.base.clock import steady_ms
from dibs.stores.etcd.errors import LostConnection
from dibs.stores.etcd.location import shown_endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

ANSWER_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 64 * 1024


class EtcdConnection:
    """The constructor connects. Every failure raises LostConnection."""

    def __init__(self, endpoint: tuple[str, int], tls: ssl.SSLContext | None, timeout_ms: int) -> None:
        self.endpoint = endpoint
        self._host = shown_endpoint(endpoint)
        self._deadline_ms = steady_ms() + timeout_ms
        try:
            self._socket = socket.create_connection(endpoint, timeout=timeout_ms / 1000)
        except OSError as error:
            raise LostConnection(_why(error), sent=False) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint[0])
        except (OSError, ValueError) as error:
            self._socket.close()
            raise _lost(error, sent=False) from None
        self._file = self._socket.makefile("rb")

    def is_usable(self) -> bool:
        """False if the other side has closed it, or sent something that nobody asked for."""
        try:
            return not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def request(self, path: str, body: bytes, token: str | None, timeout_ms: int) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self._deadline_ms = steady_ms() + timeout_ms
        try:
            self._send(path, body, token)
            status, headers = self._head()
            return status, self._body(headers)
        except (OSError, ValueError) as error:
            self.close()
            raise _lost(error, sent=True) from None

    def stream(self, path: str, body: bytes, token: str | None, silence_ms: int) -> Iterator[bytes]:
        """The lines of an answer that does not end. A silence longer than `silence_ms` ends it."""
        self._deadline_ms = steady_ms() + silence_ms
        try:
            self._send(path, body, token)
            _, headers = self._head()
            rest = b""
            for chunk in self._chunks() if _is_chunked(headers) else (self._body(headers),):
                self._deadline_ms = steady_ms() + silence_ms
                *lines, rest = (rest + chunk).split(b"\n")
                yield from [line for line in lines if line]
            if rest:
                yield rest
        except (OSError, ValueError) as error:
            raise LostConnection(_why(error), sent=True) from None
        finally:
            self.close()

    def close(self) -> None:
        for each in (self._file, self._socket):
            try:
                each.close()
            except OSError:
                pass  # nothing else can be done with it

    def cut(self) -> None:
        """End it from another thread: a thread that reads from it returns at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def _send(self, path: str, body: bytes, token: str | None) -> None:
        proof = f"Authorization: {token}\r\n" if token else ""
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\n{proof}Content-Length: {len(body)}\r\n\r\n"
        self._wait()
        self._socket.sendall(head.encode() + body)

    def _wait(self) -> None:
        """The next step may take the rest of the call's time."""
        left_ms = self._deadline_ms - steady_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._socket.settimeout(left_ms / 1000)

    def _line(self) -> bytes:
        self._wait()
        line = self._file.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise ConnectionError("it closed the connection")
        return line.rstrip(b"\r\n")

    def _exactly(self, length: int) -> bytes:
        self._wait()
        data = self._file.read(length)
        if len(data) != length:
            raise ConnectionError("it closed the connection")
        return data

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        version, _, rest = self._line().partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError("it does not speak HTTP")
        headers: dict[bytes, bytes] = {}
        while line := self._line():
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        return int(rest[:3]), headers

    def _body(self, headers: dict[bytes, bytes]) -> bytes:
        if _is_chunked(headers):
            return b"".join(self._chunks())
        length = int(headers.get(b"content-length", b"0"))
        if not 0 <= length <= ANSWER_BYTES_MAX:
            raise ValueError("its answer is too long")
        return self._exactly(length)

    def _chunks(self) -> Iterator[bytes]:
        total = 0
        while True:
            length = int(self._line().partition(b";")[0], 16)
            if length == 0:
                while self._line():
                    pass
                return
            yield self._exactly(length)
            self._line()
            total += length
            if total > ANSWER_BYTES_MAX:
                raise ValueError("its answer is too long")


def _is_chunked(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"transfer-encoding", b"").lower() == b"chunked"


def _lost(error: Exception, *, sent: bool) -> LostConnection:
    # Compared by name: importing `ssl` takes longer than a claim, and is not needed without TLS.
    name = type(error).__name__
    is_tls = name in ("SSLError", "SSLCertVerificationError")
    return LostConnection(_why(error, name), sent=sent, is_tls=is_tls)


def _why(error: Exception, name: str = "") -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if name == "SSLCertVerificationError":
        return f"its certificate is not accepted: {getattr(error, 'verify_message', '')}"
    if name.startswith("SSL"):
        return f"TLS failed: {getattr(error, 'reason', None) or 'unexpected end'}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or name or type(error).__name__
