"""A request with known headers is read without the parser, and every request is understood as the parser does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dibs.base.errors import InvalidInput
from dibs.engine.auth import TokenGuard
from dibs.server.connection import HttpConnection
from dibs.server.engine import Engine
from dibs.server.handlers import Api
from dibs.server.http.request import KEPT_BYTES_MAX, KEPT_MAX, KnownHeads, RequestHead, block_of
from dibs.server.http_server import make_server
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.build import tries
from tests.server.harness import masked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BODY = b'{"ttl_seconds":60}'
BLOCK = b"\r\nHost: x\r\nAuthorization: Bearer tok-agent\r\nContent-Type: application/json\r\nContent-Length: 18"
CLAIM = b"POST /locks/job-1/acquire HTTP/1.1" + BLOCK + b"\r\n\r\n" + BODY
LOOK = b"GET /locks/job-1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tok-agent\r\n\r\n"


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: object) -> None: ...
    def set_write_buffer_limits(self, high: int, low: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Seen(HttpConnection):
    """Counts what is parsed."""

    parsed = 0

    def on_headers_complete(self) -> None:
        self.parsed += 1
        super().on_headers_complete()


class World:
    """An API, and connections to it without sockets. What is asked is written down, and answered at once."""

    def __init__(self, tokens: Path | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        engine = Engine(MemoryStore(ManualClock()), self.loop)
        self.guard = TokenGuard(str(tokens) if tokens else None)
        api: Any = Api(engine, self.guard)
        self.api = api
        self.seen: list[tuple[Any, ...]] = []
        if tokens is None:
            api.command_of = self._command_of
        api.post = lambda command, answer, is_gone=None: answer(InvalidInput("seen"))
        self.state = make_server(self.api).server_state

    def _command_of(self, verb: str, name: bytes, query: bytes, head: RequestHead, document: Any) -> tuple[None, int]:
        self.seen.append((verb, name, query, dict(head.headers), document))
        return None, 0

    def feed(self, *parts: bytes, known: bool = True) -> tuple[list[tuple[Any, ...]], bytes, bool]:
        """What was asked, what was answered, and whether the connection is closed."""
        connection = self.connect(known=known)
        self.seen.clear()
        for part in parts:
            connection.data_received(part)
        return list(self.seen), masked(connection.transport.written), connection.transport.closing

    def connect(self, *, known: bool = True) -> Any:
        connection: Any = Seen(self.state, self.loop)
        if not known:
            connection._known = {}
        connection.connection_made(Wire())
        return connection

    def both(self, *parts: bytes) -> None:
        assert self.feed(*parts) == self.feed(*parts, known=False), parts


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    for request in (CLAIM, LOOK):
        made.feed(request)
    assert len(made.state.heads.known) == 2
    yield made
    made.loop.close()


@pytest.mark.parametrize("request_", [CLAIM, LOOK], ids=["claim", "look"])
def test_known_headers_are_not_parsed_again(world: World, request_: bytes) -> None:
    connection, other = world.connect(), world.connect(known=False)
    for _ in range(2):
        connection.data_received(request_)
        other.data_received(request_)
    assert (connection.parsed, other.parsed) == (0, 2)
    assert masked(connection.transport.written) == masked(other.transport.written)
    connection.data_received(request_.replace(b"Host: x", b"Host: y", 1))
    assert connection.parsed == 1


_LINE = b"POST /locks/job-1/acquire HTTP/1.1"
_LINES = [
    b"POST  /locks/job-1/acquire HTTP/1.1",
    b"POST\t/locks/job-1/acquire HTTP/1.1",
    b" POST /locks/job-1/acquire HTTP/1.1",
    b"POST /locks/job-1/acquire HTTP/1.1 ",
    b"POST /locks/job-1/acquire  HTTP/1.1",
    b"POST /locks/job 1/acquire HTTP/1.1",
    b"POST /locks/job-1/acquire",
    b"POST /locks/job-1/acquire HTTP/1.0",
    b"POST /locks/job-1/acquire HTTP/1.10",
    b"POST /locks/job-1/acquire HTTP/2.0",
    b"POST /locks/job-1/acquire http/1.1",
    b"post /locks/job-1/acquire HTTP/1.1",
    b"PUT /locks/job-1/acquire HTTP/1.1",
    b"GET /locks/job-1 HTTP/1.1",
    b"GET /locks/job-1/acquire HTTP/1.1",
    b"POST /locks/job\x00/acquire HTTP/1.1",
    b"POST /locks/job\x01/acquire HTTP/1.1",
    b"POST /locks/job\x7f/acquire HTTP/1.1",
    b"POST /locks/job\t/acquire HTTP/1.1",
    b"POST /locks/job\x0c/acquire HTTP/1.1",
    b"POST /locks/j\xc3\xb6b/acquire HTTP/1.1",
    b"POST /locks/j\nX: y/acquire HTTP/1.1",
    b"POST /locks/job/acquire HTTP/1.1\nX: y HTTP/1.1",
    b"POST /locks/j\rob/acquire HTTP/1.1",
    b"\r\nPOST /locks/job-1/acquire HTTP/1.1",
    b"\nPOST /locks/job-1/acquire HTTP/1.1",
    b"POST /locks/%2f%zz/acquire HTTP/1.1",
    b"POST /locks//acquire HTTP/1.1",
    b"POST /locks/a/b/acquire HTTP/1.1",
    b"POST /locks/acquire HTTP/1.1",
    b"POST /locks/acquire-any HTTP/1.1",
    b"POST /locks/acquire-all HTTP/1.1",
    b"POST /locks/job-1/acquire?a=b HTTP/1.1",
    b"POST /locks/job-1/acquire#a HTTP/1.1",
    b"POST http://x/locks/job-1/acquire HTTP/1.1",
    b"POST * HTTP/1.1",
    b"CONNECT /locks/job-1/acquire HTTP/1.1",
]


@pytest.mark.parametrize("line", _LINES)
def test_a_request_line_is_understood_as_the_parser_does(world: World, line: bytes) -> None:
    world.both(CLAIM.replace(_LINE, line, 1))
    world.both(LOOK.replace(LOOK.partition(b"\r\n")[0], line, 1))


@pytest.mark.parametrize(
    "parts",
    [
        (CLAIM + CLAIM,),
        (CLAIM + LOOK,),
        (LOOK + b"\r\n",),
        (LOOK, b"\r\n" + LOOK),
        (CLAIM + b"x",),
        (CLAIM[:-1], CLAIM[-1:]),
        (CLAIM[:-1], CLAIM[-1:] + LOOK),
        (CLAIM[:-1] + CLAIM,),
        (CLAIM[:40], CLAIM[40:]),
        (CLAIM, CLAIM[:9], CLAIM[9:], LOOK),
        (CLAIM.replace(b"\r\n", b"\n"),),
        (CLAIM.replace(b"\r\n\r\n", b"\n\n"),),
        (CLAIM.replace(b"\r\n\r\n", b"\r\n\n") + b"\r\n\r\n",),
        (CLAIM.replace(b"\r\n\r\n", b"\r\n \r\n\r\n"),),
        (CLAIM.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),),
        (CLAIM.replace(b"\r\n\r\n", b"\r\nContent-Length: 18\r\n\r\n"),),
        (CLAIM.partition(b"\r\n\r\n")[0] + b"X",),
        (b"",),
        (b"\r\n\r\n",),
        (b"\r\n",),
    ],
)
def test_what_is_not_exactly_one_request_goes_to_the_parser(world: World, parts: tuple[bytes, ...]) -> None:
    world.both(*parts)


@pytest.mark.parametrize("size", [5_000, 70_000])
def test_a_long_address_is_left_to_the_parser(world: World, size: int) -> None:
    world.both(CLAIM.replace(b"job-1", b"x" * size, 1))


def test_headers_without_an_end_are_no_known_headers(world: World) -> None:
    """The bytes after the known ones are as many as would make up for the end that is missing."""
    start = _LINE + BLOCK.replace(b"Length: 18", b"Length: 1000")
    whole = start + b"\r\n\r\n" + b" " * 1000
    world.feed(whole)
    for size in range(len(start), len(start) + 4):
        world.both((start + b"\r\n\r\n")[:size].ljust(1003, b"x"))


@settings(max_examples=tries(100, 150))
@given(
    request=st.sampled_from([CLAIM, LOOK, CLAIM + LOOK]),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(["put", "insert", "delete"]), st.binary(min_size=1, max_size=3)),
        max_size=3,
    ),
    cut=st.floats(0, 1),
)
@example(request=CLAIM, changes=[], cut=1.0)
def test_whatever_is_changed_in_a_request_it_is_understood_as_the_parser_does(
    world: World, request: bytes, changes: list[tuple[float, str, bytes]], cut: float
) -> None:
    data = request
    for where, how, new in changes:
        at = int(where * len(data))
        kept = at + {"put": len(new), "insert": 0, "delete": 1}[how]
        data = data[:at] + (b"" if how == "delete" else new) + data[kept:]
    at = int(cut * len(data))
    world.both(*[part for part in (data[:at], data[at:]) if part])


def test_a_revoked_token_is_refused_with_known_headers_too(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("a:tok-agent:agent\nb:other:agent\n")
    world = World(tokens)
    connection = world.connect()
    for _ in range(2):
        connection.data_received(CLAIM)
    assert connection.parsed == 1
    assert b"seen" in connection.transport.written
    tokens.write_text("b:other:agent\n")
    world.guard.reload()
    connection.transport.written = b""
    connection.data_received(CLAIM)
    assert connection.parsed == 1
    assert connection.transport.written.startswith(b"HTTP/1.1 401 ")
    world.loop.close()


def test_headers_of_strangers_are_not_kept(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("b:other:agent\n")
    world = World(tokens)
    world.feed(CLAIM)
    assert world.state.heads.known == {}
    world.loop.close()


def test_what_is_kept_is_bounded() -> None:
    heads = KnownHeads()
    head = RequestHead([(b"authorization", b"Bearer x")])
    heads.learn(None, 0, head)
    heads.learn(b"x" * (KEPT_BYTES_MAX + 1), 0, head)
    heads.learn(b"key", 0, RequestHead([(b"idempotency-key", b"k")]))
    assert heads.known == {}
    for number in range(3 * KEPT_MAX):
        heads.learn(b"%d" % number, 0, head)
        assert len(heads.known) <= KEPT_MAX


def test_only_headers_with_the_usual_line_ends_are_kept() -> None:
    assert block_of(CLAIM, b"POST", b"/locks/job-1/acquire", BODY) == BLOCK.removeprefix(b"\r\n")
    assert block_of(b"\r\n" + CLAIM, b"POST", b"/locks/job-1/acquire", BODY) is None
    assert block_of(CLAIM + b"x", b"POST", b"/locks/job-1/acquire", BODY) is None
    assert block_of(CLAIM.replace(b"\r\n", b"\n"), b"POST", b"/locks/job-1/acquire", BODY) is None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\n", b"\n\r\n"])
def test_a_request_behind_headers_with_other_line_ends_is_not_taken_for_a_header(end: bytes) -> None:
    """Some parsers that httptools has had end the headers there."""
    hidden = LOOK.replace(b"\r\n\r\n", end) + b"DELETE /x HTTP/1.1\r\nHost: x\r\n\r\n"
    assert block_of(hidden, b"GET", b"/locks/job-1", b"") is None
