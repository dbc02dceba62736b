"""One connection to one member of etcd: gRPC over HTTP/2, one call at a time, or a stream of answers.

Nothing here is retried; `client.py` decides that. It is plain sockets, because a process may fork at any moment, and
because it must be known whether a call can have been executed; a library with its own threads allows neither.

It is not on `h2`, because a call would take 277 µs of CPU with h2 4.4 and takes 41 µs here (medians of 9 rounds of 600
reads on one connection).

We tell etcd to compress headers without a table. So equal headers are equal bytes, and each text is decoded once.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from dibs.base.clock import steady_ms
from dibs.stores.etcd.errors import UNIMPLEMENTED, UNKNOWN, LostConnection, Refusal
from dibs.stores.etcd.location import shown_endpoint

if TYPE_CHECKING:
    import ssl

ANSWER_BYTES_MAX = 256 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024  # of one call
RECEIVE_BYTES = 64 * 1024
FRAME_BYTES_MAX = 16_384  # what both sides may send unless they agree on more
STREAM_BITS = (1 << 31) - 1
STREAM_ID_MAX = 1 << 30  # a connection that had so many calls is replaced
WINDOW_BYTES = (1 << 31) - 1  # as much as there is: a connection is replaced before it is used up
FIRST_WINDOW_BYTES = 65_535

TLS_ALERT = b"\x15\x03"  # how the refusal of a server begins that expects TLS; a frame of that size is none
SPEAKS_NO_TLS = "If it speaks no TLS, write etcd:// instead of etcds://"
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
TABLE_SIZE, PUSH, WINDOW = 1, 2, 4  # settings
REFUSED_STREAM = 7


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">HBBBI", len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


HELLO = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(SETTINGS, 0, 0, struct.pack(">HIHIHI", TABLE_SIZE, 0, PUSH, 0, WINDOW, WINDOW_BYTES))
    + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_BYTES - FIRST_WINDOW_BYTES))
)


class EtcdConnection:
    """The constructor connects. What fails raises LostConnection; etcd's errors Refusal: it can go on after it."""

    def __init__(self, endpoint: tuple[str, int], tls: ssl.SSLContext | None, timeout_ms: int) -> None:
        self.endpoint = endpoint
        self._scheme = "http" if tls is None else "https"
        self._deadline_ms = steady_ms() + timeout_ms
        try:
            self._socket = socket.create_connection(endpoint, timeout=timeout_ms / 1000)
        except OSError as error:
            raise _lost(error, sent=False) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint[0])
        except (OSError, ValueError) as error:
            self._socket.close()
            lost = _lost(error, sent=False)
            if isinstance(error, ConnectionError):  # it closed before it had read all of the handshake
                lost = LostConnection(lost.why, sent=False, fix=SPEAKS_NO_TLS)
            raise lost from None
        self._unsent = HELLO
        self._received = bytearray()
        self._is_new = True  # nothing was received that may be HTTP/2
        self._stream = -3  # the number of the call; the first is 1
        self._stream_max = STREAM_ID_MAX
        self._may_send = FIRST_WINDOW_BYTES  # by the windows of the connection, of new streams, and of this one
        self._may_send_first = self._may_send_here = FIRST_WINDOW_BYTES
        self._taken = 0  # bytes of answers
        self._begin()

    def _begin(self) -> None:
        """A new call: nothing of its answer is there."""
        self._stream += 2
        self._may_send_here = self._may_send_first
        self._headers: dict[str, str] = {}
        self._block = b""  # headers that go on in the next frame
        self._header_bytes = 0
        self._data = bytearray()
        self._is_sent = self._is_last = self._is_over = False

    def is_usable(self) -> bool:
        """False if the other side has closed it. What it sent meanwhile is kept for the next call."""
        try:
            self._socket.settimeout(0)
            while len(self._received) < RECEIVE_BYTES:
                self._receive()
            return False  # nobody asked for so much
        except OSError as error:
            is_silent = isinstance(error, BlockingIOError) or type(error).__name__ == "SSLWantReadError"
            return is_silent and self._stream < self._stream_max
        except LostConnection:
            return False

    def request(self, path: str, body: bytes, token: str | None, timeout_ms: int) -> bytes:
        self._deadline_ms = steady_ms() + timeout_ms
        try:
            self._send(path, (body,), token, is_whole=True)
            answer: bytes | None = None
            for each in self._answers():
                if answer is not None:
                    raise LostConnection("its answer has two messages", sent=True)
                answer = each
            if answer is None:
                raise LostConnection("its answer is empty", sent=True)
        except (OSError, HPACKError, LostConnection) as error:
            self.close()
            # Whoever expects TLS takes our first bytes for nonsense, and closes the connection, often without a word.
            is_cut = self._is_new and self._scheme == "http" and not isinstance(error, TimeoutError)
            if is_cut and _speaks_tls(self.endpoint, self._deadline_ms - steady_ms()):
                fix = "Write etcds:// instead of etcd://"
                raise LostConnection("it speaks TLS", sent=False, fix=fix, lasts=True) from None
            raise _lost(error, sent=self._is_sent) from None
        return answer

    def stream(self, path: str, bodies: Sequence[bytes], token: str | None, silence_ms: int) -> Iterator[bytes]:
        """The messages of an answer that does not end. A silence longer than `silence_ms` ends it."""
        self._deadline_ms = steady_ms() + silence_ms
        try:
            self._send(path, bodies, token, is_whole=False)
            for answer in self._answers():
                self._deadline_ms = steady_ms() + silence_ms
                yield answer
                if not self._stream_max:
                    return  # the next stream begins on another connection
        except (OSError, HPACKError) as error:
            raise _lost(error, sent=True) from None
        finally:
            self.close()

    def close(self) -> None:
        with suppress(OSError):  # nothing else can be done with it
            self._socket.close()

    def cut(self) -> None:
        """End it from another thread: a thread that reads from it returns at once."""
        with suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, path: str, bodies: Sequence[bytes], token: str | None, *, is_whole: bool) -> None:
        self._begin()
        headers = _request_headers(self._scheme, shown_endpoint(self.endpoint), path, token)
        self._unsent += _frame(HEADERS, END_HEADERS, self._stream, headers)
        data = b"".join([struct.pack(">BI", 0, len(body)) + body for body in bodies])
        at = 0
        while at < len(data) and not self._is_over:
            size = min(FRAME_BYTES_MAX, self._may_send, self._may_send_here, len(data) - at)
            if size <= 0:
                self._take_frame()
                continue
            at += size
            self._may_send -= size
            self._may_send_here -= size
            flags = END_STREAM if is_whole and at == len(data) else 0
            self._unsent += _frame(DATA, flags, self._stream, data[at - size : at])
        self._is_sent = True  # before its last byte is sent, nothing is executed
        if at < len(data):
            self._stream_max = 0  # it has answered before it heard all: the rest would confuse the next call
        self._flush()

    def _answers(self) -> Iterator[bytes]:
        data = self._data
        while True:
            while len(data) >= 5:
                size = int.from_bytes(data[1:5])
                if data[0] or size > ANSWER_BYTES_MAX:
                    raise LostConnection("its answer is compressed, or too long", sent=True)
                if len(data) < 5 + size:
                    break
                yield bytes(data[5 : 5 + size])
                del data[: 5 + size]
            if self._is_over:
                break
            self._take_frame()
        status = self._headers.get("grpc-status", "")
        if not status.isdecimal():
            # A proxy may lose the status of a call that was executed.
            is_strange = self._headers.get(":status", "").startswith("4")
            raise Refusal(UNIMPLEMENTED if is_strange else UNKNOWN, "an answer that is not gRPC")
        if status != "0":
            raise Refusal(int(status), self._headers.get("grpc-message", ""))

    def _take_frame(self) -> None:
        head = self._take(9)
        size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
        stream = int.from_bytes(head[5:]) & STREAM_BITS
        if head.startswith(b"HTTP/1"):
            self.close()
            raise Refusal(UNIMPLEMENTED, "an answer that is not gRPC")
        if size > FRAME_BYTES_MAX:
            raise LostConnection("its answer is not HTTP/2", sent=True)
        body = self._take(size)
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, size - 5, 6):
                name, value = struct.unpack_from(">HI", body, at)
                if name == WINDOW:
                    self._may_send_here += value - self._may_send_first
                    self._may_send_first = value
            self._unsent += _frame(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            self._unsent += _frame(PING, ACK, 0, body)
        elif kind == WINDOW_UPDATE and stream == 0:
            self._may_send += int.from_bytes(body)
        elif kind == GOAWAY:
            self._stream_max = 0
            if len(body) < 8:
                raise LostConnection("its answer is not HTTP/2", sent=True)
            if int.from_bytes(body[:4]) & STREAM_BITS < self._stream:  # the last call that it looked at
                raise LostConnection("it is about to end", sent=bool(self._headers))
        elif stream == self._stream:
            self._take_own(kind, flags, body)

    def _take_own(self, kind: int, flags: int, body: bytes) -> None:
        """A frame of this call."""
        if kind == WINDOW_UPDATE:
            self._may_send_here += int.from_bytes(body)
        elif kind == RST_STREAM and not self._is_over:
            code = int.from_bytes(body)
            is_unseen = code == REFUSED_STREAM and not self._headers
            raise LostConnection(f"it ended the call with code {code}", sent=not is_unseen)
        elif kind == DATA:
            self._data += _unpadded(body, flags)
            self._is_over = bool(flags & END_STREAM)
            self._taken += len(body)
            if self._taken > WINDOW_BYTES // 2:
                self._stream_max = 0
        elif kind in (HEADERS, CONTINUATION):
            if kind == HEADERS:
                self._is_last = bool(flags & END_STREAM)
                body = _unpadded(body, flags)[5 if flags & PRIORITY else 0 :]
            self._block += body
            self._header_bytes += len(body)
            if self._header_bytes > HEADER_BYTES_MAX:
                raise LostConnection("its headers are too long", sent=True)
            if flags & END_HEADERS:
                self._headers |= _decoded(self._block)
                self._block, self._is_over = b"", self._is_last

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            if self._unsent:
                self._flush()
            self._wait()
            self._receive()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _receive(self) -> None:
        more = self._socket.recv(RECEIVE_BYTES)
        if not more:
            raise LostConnection("it closed the connection", sent=True)
        self._received += more
        if self._is_new and self._received.startswith(TLS_ALERT):  # it is shorter than a frame's head
            raise LostConnection("its answer is not HTTP/2", sent=True)
        self._is_new = False

    def _flush(self) -> None:
        self._wait()
        unsent, self._unsent = self._unsent, b""
        self._socket.sendall(unsent)

    def _wait(self) -> None:
        """The next step may take the rest of the call's time."""
        left_ms = self._deadline_ms - steady_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._socket.settimeout(left_ms / 1000)


def _unpadded(body: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return body
    if not body or body[0] >= len(body):
        raise LostConnection("its answer is not HTTP/2", sent=True)
    return body[1 : len(body) - body[0]]


@lru_cache(maxsize=64)
def _request_headers(scheme: str, host: str, path: str, token: str | None) -> bytes:
    headers = [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", host), ("te", "trailers")]
    headers += [("content-type", "application/grpc"), *([("token", token)] if token else ())]
    # Never indexed: so the bytes are good for every connection.
    return Encoder().encode([NeverIndexedHeaderTuple(*each) for each in headers], huffman=False)


@lru_cache(maxsize=64)
def _decoded(block: bytes) -> dict[str, str]:
    decoder = Decoder()
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    return {name.decode("latin-1"): value.decode(errors="replace") for name, value in decoder.decode(block, raw=True)}


def _speaks_tls(endpoint: tuple[str, int], timeout_ms: int) -> bool:
    """Return whether a handshake of TLS comes to anything. Nothing is sent over it."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(endpoint, timeout=max(1, timeout_ms) / 1000) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def _lost(error: Exception, *, sent: bool) -> LostConnection:
    if isinstance(error, LostConnection):
        return LostConnection(error.why, sent=sent and error.sent, fix=error.fix, lasts=error.lasts)
    # Compared by name: importing `ssl` takes longer than a claim, and is not needed without TLS.
    name = type(error).__name__
    lasts = name in ("SSLError", "SSLCertVerificationError")
    fix = "Check ca, cert and key in the URL" if lasts else ""
    if getattr(error, "reason", None) in NO_TLS:  # also what a member says that is about to end
        fix = SPEAKS_NO_TLS
    return LostConnection(_why(error, name), sent=sent, fix=fix, lasts=lasts)


def _why(error: Exception, name: str) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, HPACKError):
        return "its answer is not HTTP/2"
    if name == "SSLCertVerificationError":
        return f"its certificate is not accepted: {getattr(error, 'verify_message', '')}"
    if name.startswith("SSL"):
        return f"TLS failed: {getattr(error, 'reason', None) or 'unexpected end'}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or name
