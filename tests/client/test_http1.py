"""Reading a reply, in pieces of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.errors import BadReply
from dibs.base.http1 import ConnectionLost, read_reply, request_bytes, whole_reply
from dibs.core.limits import HEAD_BYTES_MAX, REPLY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.base.reply import Reply


def read(pieces: Iterable[bytes]) -> Reply:
    left = iter(pieces)
    return read_reply(lambda: next(left, b""), HEAD_BYTES_MAX, REPLY_BYTES_MAX)


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b: c\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;note=x\r\nhel\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.0 503\r\nServer: x\n\nsorry"


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (WHOLE, 200, b"hello"),
        (CHUNKED, 200, b"hel0123456789"),
        (INTERIM, 404, b""),
        (UNTIL_CLOSED, 503, b"sorry"),
        (b"HTTP/1.1 204 None\r\n\r\n", 204, b""),
    ],
)
@given(sizes=st.lists(st.integers(min_value=1, max_value=9), max_size=80))
def test_a_reply_reads_the_same_however_it_is_cut(data: bytes, status: int, body: bytes, sizes: list[int]) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    reply = read([piece for piece in [*pieces, data[at:]] if piece])
    assert (reply.status, reply.content) == (status, body)


_LINES = st.sampled_from(
    [
        *(
            b"Content-Length: 5",
            b"content-length:5",
            b"Content-Length: 05",
            b"Content-Length: 4",
            b"Content-Length: +5",
        ),
        *(
            b"Transfer-Encoding: chunked",
            b"Connection: close",
            b"Connection: Close",
            b"Connection: keep-alive",
        ),
        *(
            b"X: a:b",
            b"X:\xe9",
            b"X: a\nContent-Length: 5",
            b"no header",
            b": empty",
            b"X: \r",
            b"\r",
            b" folded: x",
            b"",
        ),
    ]
)
_STARTS = st.sampled_from(
    [
        *(
            b"HTTP/1.1 200 OK",
            b"HTTP/1.1 204 None",
            b"HTTP/1.1 304 ",
            b"HTTP/1.1 409",
            b"HTTP/1.1 100 Continue",
        ),
        *(
            b"HTTP/1.0 200 OK",
            b"HTTP/1.1 2000",
            b"HTTP/1.1 20",
            b"HTTP/1.1  200",
            b"HTTP/1.1 \xb2\xb2\xb2",
            b"HTTP/2 200",
        ),
    ]
)


@given(
    start=_STARTS,
    lines=st.lists(_LINES, max_size=4),
    body=st.sampled_from([b"", b"hello", b"hello!", b"5\r\n"]),
)
def test_a_reply_that_came_at_once_reads_as_it_does_in_pieces(start: bytes, lines: list[bytes], body: bytes) -> None:
    data = b"\r\n".join([start, *lines, b"", body])
    at_once = whole_reply(data)
    if at_once is not None:
        again = read([data[index : index + 1] for index in range(len(data))])
        for field in ("status", "headers", "body", "again"):
            assert getattr(at_once, field) == getattr(again, field)


def test_usual_replies_need_no_closer_look() -> None:
    for start in (b"HTTP/1.1 200 OK", b"HTTP/1.1 409 Conflict"):
        assert whole_reply(start + b"\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello") is not None
    assert whole_reply(b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n") is not None


def test_headers_are_found_in_lower_case() -> None:
    assert read([WHOLE]).headers == {"content-length": "5", "x-a": "b: c"}


@pytest.mark.parametrize("data", [WHOLE, CHUNKED, INTERIM])
def test_a_reply_cut_short_anywhere_is_broken_and_never_half_a_reply(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(ConnectionLost):
            read([data[:end]] if end else [])


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
        b"x" * (HEAD_BYTES_MAX + 2),
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * HEAD_BYTES_MAX,
        f"HTTP/1.1 200 OK\r\nContent-Length: {REPLY_BYTES_MAX + 1}\r\n\r\n".encode(),
    ],
)
def test_what_is_not_http_is_reported_as_such(data: bytes) -> None:
    with pytest.raises(BadReply):
        read([data])


def test_a_reply_without_end_is_stopped() -> None:
    def endless() -> Iterable[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b"x" * 2**20

    with pytest.raises(BadReply, match="larger"):
        read(endless())


def test_a_request_is_written_as_http_wants_it() -> None:
    made = request_bytes("POST", "/locks/a/acquire", {"Host": "h"}, b"{}")
    assert made == (
        b"POST /locks/a/acquire HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert request_bytes("GET", "/", {}, None) == b"GET / HTTP/1.1\r\n\r\n"
