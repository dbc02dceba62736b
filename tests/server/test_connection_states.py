"""The states of a connection's input: the table on the first page of `server/connection.py` is what the code does."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.engine.auth import TokenGuard
from dibs.server import connection as http
from dibs.server.engine import Engine
from dibs.server.handlers import Api
from dibs.server.http.response import HttpError
from dibs.server.http_server import make_server
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.build import tries
from tests.server.harness import AS_JSON, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STATES = [http.READY, http.HEAD, http.BODY, http.LAST_BODY, http.LAST, http.REFUSING, http.LINGERING]
EVENTS = [http.BEGINS, http.HAS_HEAD, http.HAS_LAST_HEAD, http.IS_WHOLE, http.UNREADABLE, http.REFUSED]
LEGAL = [(state, event) for state in STATES for event in EVENTS if event in state.after]


def written_table() -> dict[tuple[str, str], str]:
    """The next state by state and event, as the module's docstring has it."""
    rows = [line.strip("|").split("|") for line in (http.__doc__ or "").splitlines() if line.startswith("|")]
    (_, _, *events), *states = [[cell.strip() for cell in row] for row in rows]
    assert events == EVENTS
    return {(row[0], event): after for row in states for event, after in zip(events, row[2:], strict=True)}


def test_the_table_on_the_first_page_is_the_one_that_is_used() -> None:
    table = written_table()
    assert [name for name, event in table if event == http.BEGINS] == [state.name for state in STATES]
    used = {(state.name, event): state.after.get(event) for state in STATES for event in EVENTS}
    assert table == {pair: "-" if after is None else after.name for pair, after in used.items()}


class Wire:
    """A transport that keeps what is written, and may be full."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = self.ended = False

    def write(self, data: bytes) -> None:
        assert not self.ended, "written behind the end"
        self.written += data

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Noted(http.HttpConnection):
    """Notes the moves of its input."""

    transport: Any

    def __init__(self, *args: Any) -> None:
        self.moves: list[tuple[http.InputState, str]] = []
        super().__init__(*args)

    def _move(self, event: str) -> http.InputState:
        self.moves.append((self._input, event))
        return super()._move(event)


class World:
    """Connections without sockets to a server that decides nothing: who asks is answered when `answer` is called."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        api: Any = Api(Engine(MemoryStore(ManualClock()), self.loop), TokenGuard(None))
        api.command_of = lambda *words: (None, 0)
        api.post = self._post
        self.api = api
        self.asked: list[Callable[[object], object]] = []
        self.state = make_server(api).server_state

    def _post(self, command: object, answer: Callable[[object], object], is_gone: object = None) -> None:
        self.asked.append(answer)

    def connect(self) -> Noted:
        connection = Noted(self.state, self.loop)
        connection.connection_made(Wire())  # type: ignore[arg-type]  # as much of a transport as is used
        return connection

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for each in asked:
            each(InvalidInput("seen"))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


CLAIM = request("POST", "/locks/job-1/acquire", b'{"ttl_seconds":60}')
CLOSE = CLAIM.replace(b"Host", b"Connection: close\r\nHost")
# Parsed on behind it, because the parser keeps such a connection.
OLD = CLAIM.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n")
UPGRADE = CLAIM.replace(b"Host", b"Connection: upgrade\r\nUpgrade: websocket\r\nHost")
CHUNKS = request("POST", "/locks/job-1/acquire", head=AS_JSON + b"Transfer-Encoding: chunked\r\n")
PIECES = [
    CLAIM,
    CLAIM,
    CLOSE,
    OLD,
    UPGRADE,
    request("GET", "/healthz", head=b""),
    CHUNKS + b"2\r\n{}\r\n0\r\n\r\n",
    CHUNKS + b"2\r\n{}\r\nzz\r\n",  # its body is unreadable
    CHUNKS.replace(b"Host", b"Connection: close\r\nHost") + b"zz\r\n",
    b"GET / HTTP/1.1\r\n\r\n",  # without a Host
    b"\x00\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
]


def statuses(connection: Noted) -> list[bytes]:
    """What was answered, without the interim answers."""
    return [part[:3] for part in connection.transport.written.split(b"HTTP/1.1 ")[1:]]


def finish(world: World, connection: Noted) -> None:
    """Read and answer whatever is still under way."""
    for _ in range(20):
        if connection.is_write_paused:
            connection.resume_writing()
        world.answer()


def test_whatever_comes_in_whatever_parts_moves_only_as_the_table_says(world: World) -> None:
    """Requests and nonsense, cut anywhere, answered at once or later, read by the client or not; refused meanwhile. The
    answers are those to the same requests in one piece."""
    met: set[tuple[http.InputState, str]] = set()
    for seed in range(tries(600, 20_000)):
        chance = random.Random(seed)
        data = b"".join(chance.choices(PIECES, k=chance.randint(1, 5)))
        whole, cut = world.connect(), world.connect()
        whole.data_received(data)
        finish(world, whole)
        is_refused = chance.random() < 0.3
        for _ in range(5_000):
            if not data or cut.transport.closing:
                break
            if not cut._is_read_paused:
                at = chance.choice((1, 20, 60, len(data)))
                part, data = data[:at], data[at:]
                cut.data_received(part)
            act = chance.choices(("answer", "full", "empty", "refuse", ""), (6, 1, 3, 4 * is_refused, 9))[0]
            if act == "answer":
                world.answer()
            elif act == "full" and not cut.is_write_paused:
                cut.pause_writing()
            elif act == "empty" and cut.is_write_paused:
                cut.resume_writing()
            elif act == "refuse":
                cut._refuse(HttpError("Too many connections.", 503))
        finish(world, cut)
        for connection in (whole, cut):
            illegal = [pair for pair in connection.moves if pair not in LEGAL]
            assert not illegal, f"seed {seed}: {illegal}"
            assert connection.call is None, f"seed {seed}: somebody is not answered"
            assert connection._input is not http.REFUSING or connection.transport.closing, f"seed {seed}"
            met.update(connection.moves)
            connection.connection_lost(None)
        assert is_refused or statuses(cut) == statuses(whole), f"seed {seed}"
    assert met == set(LEGAL)


@pytest.mark.fault("F-500")
def test_what_comes_behind_the_last_request_does_not_cost_it_its_answer(world: World) -> None:
    connection = world.connect()
    connection.data_received(CLAIM + OLD + CHUNKS + b"zz\r\n")
    answered = 0
    while world.asked:
        answered += len(world.asked)
        world.answer()
    assert answered == 2
    assert connection.transport.closing
