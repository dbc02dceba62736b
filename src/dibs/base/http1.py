"""HTTP/1.1 as bytes, without I/O: the request, and a reader for the reply. Only what dibs needs: the SDK and the CLI
read replies of a server with it, stores those of etcd, and a server those of webhooks' targets.

It reads replies with Content-Length, in chunks, or until the connection closes. Anything that is not HTTP raises
BadReply, and so does a reply beyond the limits that the reader is given. A reply that ends early raises
`ConnectionLost`, because then the request may be sent again. The reader is a generator that yields when it needs more
bytes; its driver waits for them in a thread or in an event loop.
"""

from __future__ import annotations

from dibs.base.cheap import Callable, Generator, TypeVar
from dibs.base.errors import BadReply
from dibs.base.generators import run_generator
from dibs.base.reply import Reply

T = TypeVar("T")
Reading = Generator[None, bytes, T]  # each yield is sent the next bytes, or none if the other side closed

_PLAIN_HEAD_BYTES_MAX = 4_096
_BODILESS = (204, 304)


class ConnectionLost(Exception):
    """The connection ended before the reply did."""


class ReplyTooLarge(BadReply):
    """The reply is beyond the reader's limits."""


def request_bytes(
    method: str, target: str, headers: dict[str, str], body: bytes | None, kind: str = "application/json"
) -> bytes:
    return request_with(method, target, header_lines(headers), body, kind)


def header_lines(headers: dict[str, str]) -> str:
    return "".join([f"{field}: {value}\r\n" for field, value in headers.items()])


def request_with(method: str, target: str, lines: str, body: bytes | None, kind: str) -> bytes:
    """The same, with headers that are lines already."""
    if body is None:
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
    about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{method} {target} HTTP/1.1\r\n{lines}{about}\r\n".encode("latin-1") + body


def read_reply(receive: Callable[[], bytes], head_max: int, body_max: int) -> Reply:
    """Read one reply. `receive` returns the next bytes, or none if the other side has closed."""
    data = receive()
    return whole_reply(data) or run_generator(ReplyReader(head_max, body_max).steps(data), lambda _: receive())


def reply_size(data: bytes) -> int | None:
    """The bytes of the first reply in `data`, by its own word; None if its head has not come. A head without a length
    is taken for all of it, which `whole_reply` then judges."""
    head, end, _ = data.partition(b"\r\n\r\n")
    if not end:
        return None
    for line in head.split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-length" and value.strip().isdigit():
            return len(head) + len(end) + int(value)
    return len(head) + len(end)


def whole_reply(data: bytes) -> Reply | None:
    """Return the reply, if `data` is exactly one with nothing unusual in it, as almost all are. None if it needs a
    closer look. `ReplyReader` reads the same from it, step by step."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end or not head.startswith(b"HTTP/1.1 ") or len(head) > _PLAIN_HEAD_BYTES_MAX:
        return None
    start, *lines = head.decode("latin-1").split("\r\n")
    code = start[9:12]
    if head.count(b"\n") != len(lines) or not code.isdecimal() or len(code) != 3 or code < "200":
        return None
    headers: dict[str, str] = {}
    for line in lines:
        field, mark, value = line.partition(":")
        if not mark:
            return None
        headers[field.strip().lower()] = value.strip()
    status = int(code)
    length = "0" if status in _BODILESS else headers.get("content-length")
    if "transfer-encoding" in headers or length != str(len(body)) or len(headers) != len(lines):
        return None
    return Reply(status, headers=headers, content=body)


class ReplyReader:
    """Reads one reply, with bounds on the bytes of its head and body. `started`: some of it has come."""

    def __init__(self, head_max: int, body_max: int) -> None:
        self._head_max = head_max
        self._body_max = body_max
        self._buffer = b""
        self._size = 0
        self._closes_after = False

    @property
    def started(self) -> bool:
        return self._size > 0

    def steps(self, data: bytes) -> Reading[Reply]:
        """Read the reply that begins with `data`, which is not a whole one."""
        if not self._took(data):
            raise ConnectionLost
        status, headers = yield from self.head()
        return (yield from self.rest(status, headers))

    def head(self) -> Reading[tuple[int, dict[str, str]]]:
        """Read status and headers. A header that comes twice has both values, as a list: that is no number and no
        date. Replies with status 1xx are skipped; the limits bound them, too."""
        while True:
            status, headers = yield from self._head()
            if status >= 200:
                return status, headers

    def rest(self, status: int, headers: dict[str, str]) -> Reading[Reply]:
        content = yield from self._body(status, headers)
        if self._closes_after or self._buffer:
            headers["connection"] = "close"
        return Reply(status, headers=headers, content=content)

    def _more(self) -> Reading[bool]:
        return self._took((yield))

    def _took(self, data: bytes) -> bool:
        self._buffer += data
        self._size += len(data)
        if self._size > self._body_max + self._head_max:
            raise self._too_large()
        return bool(data)

    def _line(self) -> Reading[bytes]:
        """Read the next line, without its end."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > self._head_max:
                raise ReplyTooLarge("The reply has a line without end: that is not HTTP.")
            if not (yield from self._more()):
                raise ConnectionLost
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return line.removesuffix(b"\r")

    def _exactly(self, size: int) -> Reading[bytes]:
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size:
            self._buffer = b""
            if not (yield from self._more()):
                raise ConnectionLost
            parts.append(self._buffer)
            have += len(self._buffer)
        joined = b"".join(parts)
        self._buffer = joined[size:]
        return joined[:size]

    def _head(self) -> Reading[tuple[int, dict[str, str]]]:
        start = (yield from self._line()).decode("latin-1")
        version, _, rest = start.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal() or len(code) != 3:
            raise BadReply(f"The reply does not begin like HTTP but with {start[:40]!r}.")
        headers: dict[str, str] = {}
        size = 0
        while line := (yield from self._line()):
            size += len(line)
            if size > self._head_max:
                raise ReplyTooLarge("The reply's headers are larger than expected.")
            field, mark, value = line.decode("latin-1").partition(":")
            if not mark:
                raise BadReply(f"The reply has a header that is not one: {field[:40]!r}.")
            field, value = field.strip().lower(), value.strip()
            headers[field] = f"{headers[field]}, {value}" if field in headers else value
        self._closes_after = version == "HTTP/1.0"
        return int(code), headers

    def _body(self, status: int, headers: dict[str, str]) -> Reading[bytes]:
        if status in _BODILESS:
            return b""
        coding = headers.get("transfer-encoding", "").lower()
        if coding == "chunked":
            return (yield from self._chunks())
        if coding:
            raise BadReply(f"The reply is sent as {coding[:40]!r}, which was not asked for.")
        length = headers.get("content-length")
        if length is None:
            return (yield from self._until_closed())
        return (yield from self._exactly(self._number(length, 10)))

    def stream_head(self) -> Reading[bool]:
        """Read a head. True if it is that of a stream."""
        status, headers = yield from self._head()
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        return status == 200 and is_stream and headers.get("transfer-encoding", "").lower() == "chunked"

    def chunk(self) -> Reading[bytes]:
        """Read the next chunk of the body; none at its end."""
        size = self._number((yield from self._line()).partition(b";")[0].decode("latin-1").strip(), 16)
        if not size:
            return b""
        part = yield from self._exactly(size)
        if (yield from self._line()):
            raise BadReply("The reply has a chunk that is longer than it says.")
        return part

    def stream_part(self) -> Reading[bytes]:
        """The same, of a body that may go on for ever."""
        self._size = 0
        return (yield from self.chunk())

    def _chunks(self) -> Reading[bytes]:
        parts: list[bytes] = []
        while part := (yield from self.chunk()):
            parts.append(part)
        while (yield from self._line()):
            pass  # trailers are ignored
        return b"".join(parts)

    def _until_closed(self) -> Reading[bytes]:
        self._closes_after = True
        parts = [self._buffer]
        while True:
            self._buffer = b""
            if not (yield from self._more()):
                return b"".join(parts)
            parts.append(self._buffer)

    def _number(self, text: str, base: int) -> int:
        # int() alone would accept "+5", "1_000" and blanks.
        digits = "0123456789abcdef"[:base]
        if not text or len(text) > 16 or not all(character in digits for character in text.lower()):
            raise BadReply(f"The reply gives {text[:40]!r} as a length.")
        size = int(text, base)
        if size > self._body_max:
            raise self._too_large()
        return size

    def _too_large(self) -> ReplyTooLarge:
        return ReplyTooLarge(f"The reply is larger than {self._body_max} bytes.")


def http_date_ms(text: str) -> int | None:
    """Return the milliseconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`. None: it is no date."""
    from email.utils import mktime_tz, parsedate_tz  # rare, and slow to import

    try:
        # A header that came twice has both values, and HTTP knows no other zone.
        found = parsedate_tz(text) if text.endswith("GMT") and text.count(":") == 2 else None
        return None if found is None else mktime_tz(found) * 1000
    except (ValueError, OverflowError):
        return None
