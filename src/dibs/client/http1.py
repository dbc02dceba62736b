"""HTTP/1.1 as bytes, without I/O: the request we send, and a reader for the reply. Just what dibs needs of it.

One request per connection; replies with Content-Length, in chunks, or until the connection closes. What cannot be
read as HTTP raises BadReply; a reply that stops short raises `Broken`, because then the request may be asked again.
"""

from __future__ import annotations

from dibs.errors import BadReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_BYTES_MAX = 64 * 1024
# A page of the list with a checkpoint on every job is the largest thing a server sends.
REPLY_BYTES_MAX = 64 * 1024 * 1024


class Broken(Exception):
    """The connection ended before the reply did."""


class RawReply:
    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def request_bytes(method: str, target: str, headers: dict[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{field}: {value}" for field, value in headers.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class ReplyReader:
    """Reads one reply. `receive` gives the next bytes, and none when the other side has closed."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._buffer = b""
        self._size = 0

    def read(self) -> RawReply:
        while True:
            status, headers = self._head()
            if status >= 200:
                break
        return RawReply(status, headers, self._body(status, headers))

    def _more(self) -> bool:
        data = self._receive()
        self._buffer += data
        self._size += len(data)
        if self._size > REPLY_BYTES_MAX + HEAD_BYTES_MAX:
            raise BadReply(f"The reply is larger than {REPLY_BYTES_MAX} bytes: that is not dibs.")
        return bool(data)

    def _line(self) -> bytes:
        """The next line without its end."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > HEAD_BYTES_MAX:
                raise BadReply("The reply has a line without end: that is not HTTP.")
            if not self._more():
                raise Broken
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return line.removesuffix(b"\r")

    def _exactly(self, size: int) -> bytes:
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size:
            self._buffer = b""
            if not self._more():
                raise Broken
            parts.append(self._buffer)
            have += len(self._buffer)
        joined = b"".join(parts)
        self._buffer = joined[size:]
        return joined[:size]

    def _head(self) -> tuple[int, dict[str, str]]:
        start = self._line().decode("latin-1")
        version, _, rest = start.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal() or len(code) != 3:
            raise BadReply(f"The reply does not begin like HTTP but with {start[:40]!r}.")
        headers: dict[str, str] = {}
        size = 0
        while line := self._line():
            size += len(line)
            if size > HEAD_BYTES_MAX:
                raise BadReply("The reply's headers are larger than dibs would send.")
            field, mark, value = line.decode("latin-1").partition(":")
            if not mark:
                raise BadReply(f"The reply has a header that is not one: {field[:40]!r}.")
            headers[field.strip().lower()] = value.strip()
        return int(code), headers

    def _body(self, status: int, headers: dict[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        coding = headers.get("transfer-encoding", "").lower()
        if coding == "chunked":
            return self._chunks()
        if coding:
            raise BadReply(f"The reply is sent as {coding[:40]!r}, which was not asked for.")
        length = headers.get("content-length")
        if length is None:
            return self._until_closed()
        return self._exactly(_number(length, 10))

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := _number(self._line().partition(b";")[0].decode("latin-1").strip(), 16):
            parts.append(self._exactly(size))
            if self._line():
                raise BadReply("The reply has a chunk that is longer than it says.")
        while self._line():
            pass  # trailers say nothing we ask for
        return b"".join(parts)

    def _until_closed(self) -> bytes:
        parts = [self._buffer]
        while True:
            self._buffer = b""
            if not self._more():
                return b"".join(parts)
            parts.append(self._buffer)


def _number(text: str, base: int) -> int:
    # int() alone would take "+5", "1_000" and blanks.
    digits = "0123456789abcdef"[:base]
    if not text or len(text) > 16 or not all(character in digits for character in text.lower()):
        raise BadReply(f"The reply gives {text[:40]!r} as a length.")
    size = int(text, base)
    if size > REPLY_BYTES_MAX:
        raise BadReply(f"The reply is larger than {REPLY_BYTES_MAX} bytes: that is not dibs.")
    return size
