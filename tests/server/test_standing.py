"""Who has shown a valid token is never refused, and never cut off, for what strangers do: from any address."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import socket
import ssl
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dibs.core import limits
from dibs.server import connection as http_connection
from dibs.server.http.admission import Admission
from tests.build import tries
from tests.server.certificates import Authority
from tests.server.hall import Hall, HallGuest
from tests.server.harness import AUTH, read_response, request, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.server.http.request import HttpRequest
    from tests.server.harness import Server

HALF = b"GET /locks HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module", params=["plain", "tls"])
def full(
    tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str], request: pytest.FixtureRequest
) -> Iterator[tuple[Server, ssl.SSLContext | None]]:
    """A server that takes twenty connections, ten of one client."""
    folder = tmp_path_factory.mktemp("standing")
    contexts = None
    if request.param == "tls":
        authority = Authority(folder / "ca", need_program("openssl"))
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(*authority.issue("server"))
        contexts = own, authority.trusted()
    with running(folder, tls=contexts, admission=Admission(most=20, most_per_client=10)) as server:
        yield server, None if contexts is None else contexts[1]


def connected(server: Server, source: str, trust: ssl.SSLContext | None) -> socket.socket:
    plain = server.raw_from(source)
    return plain if trust is None else trust.wrap_socket(plain, server_hostname="127.0.0.1")


def asks(connection: socket.socket) -> int:
    connection.sendall(request("GET", "/whoami", head=AUTH))
    return read_response(connection)[0]


@pytest.mark.fault("F-321")
@pytest.mark.parametrize("sent", [b"", HALF, request("GET", "/healthz", head=b"")], ids=["nothing", "half", "whole"])
@pytest.mark.parametrize("same", [True, False], ids=["its own address", "other addresses"])
def test_strangers_who_fill_a_server_shut_out_nobody_with_a_token(
    full: tuple[Server, ssl.SSLContext | None], same: bool, sent: bytes
) -> None:
    server, trust = full
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(connected(server, "127.0.0.9", trust))
        assert asks(known) == 200
        for number in range(60):
            source = "127.0.0.9" if same else f"127.0.0.{10 + number % 12}"
            stranger = stack.enter_context(server.raw_from(source))  # with TLS: half a handshake
            with contextlib.suppress(OSError):
                stranger.sendall(sent)
        assert asks(known) == 200
        for _ in range(5):  # new ones, as a command makes for each heartbeat
            with connected(server, "127.0.0.9", trust) as late:
                assert asks(late) == 200
    wait_until(lambda: server.connections() == 0, "somebody stays")


@pytest.mark.fault("F-321")
def test_a_cookie_and_a_key_of_a_user_are_standing_too(tmp_path: Path) -> None:
    with running(tmp_path, admission=Admission(most=5)) as server, contextlib.ExitStack() as stack:
        browser = stack.enter_context(server.raw())
        cookie = b"Cookie: dibs_token=tok-agent\r\nSec-Fetch-Site: same-origin\r\n"
        browser.sendall(request("GET", "/whoami", head=cookie))
        assert read_response(browser)[0] == 200
        wrong = stack.enter_context(server.raw())
        wrong.sendall(request("GET", "/whoami", head=b"Authorization: Bearer guess\r\n"))
        assert read_response(wrong)[0] == 401
        for number in range(9):
            stack.enter_context(server.raw_from(f"127.0.0.{number + 2}"))
        assert wrong.recv(1) == b""
        browser.sendall(request("GET", "/whoami", head=cookie))
        assert read_response(browser)[0] == 200


@pytest.mark.fault("F-321")
def test_of_one_client_few_may_stay_without_a_token_and_a_crowd_may_come_at_once() -> None:
    hall = Hall()
    crowd = [hall.enter("office") for _ in range(1_000)]
    assert not any(each.was_turned_out or each.refusal for each in crowd)
    for each in crowd[500:]:
        hall.prove(each)
    hall.now_ms = limits.STRANGER_MS_MIN
    later = [hall.enter("office") for _ in range(1_000)]
    assert [each.was_turned_out for each in crowd] == [True] * 500 + [False] * 500
    assert not any(each.was_turned_out or each.refusal for each in later)
    assert hall.enter("elsewhere").refusal is None


@pytest.mark.fault("F-321")
@pytest.mark.parametrize("seed", range(tries(20, 500)))
def test_who_has_standing_stays_and_the_bounds_hold(seed: int) -> None:
    """Guests come, show a token and leave at random, beside a count that knows only the bounds."""
    chance = random.Random(seed)
    most, each_most = chance.randrange(1, 30), chance.randrange(1, 12)
    hall = Hall(most=most, most_per_client=each_most)
    strangers: list[HallGuest] = []
    known: list[HallGuest] = []
    clients = [f"10.0.0.{number}" for number in range(chance.randrange(1, 6))]
    for _ in range(400):
        hall.now_ms += chance.randrange(500)
        act = chance.random()
        if act < 0.6:
            client = chance.choice(clients)
            own = Counter(each.client for each in strangers + known)[client]
            own_strangers = sum(each.client == client for each in strangers)
            guest = hall.enter(client)
            if guest.refusal is None:
                strangers.append(guest)
            else:  # only those with standing may be the cause
                assert (not strangers and len(known) >= most) or (not own_strangers and own >= each_most)
        elif act < 0.8 and strangers:
            guest = strangers.pop(chance.randrange(len(strangers)))
            hall.prove(guest)
            known.append(guest)
        elif strangers or known:
            chosen = chance.choice([each for each in (strangers, known) if each])
            hall.leave(chosen.pop(chance.randrange(len(chosen))))
        assert not any(each.was_turned_out for each in known)
        strangers = [each for each in strangers if not each.was_turned_out]
        assert len(strangers) + len(known) <= most
        assert len(strangers) <= most - most // limits.CONNECTIONS_KEPT_PART
        assert max(Counter(each.client for each in strangers + known).values(), default=0) <= each_most
    for each in strangers + known:
        hall.leave(each)
    assert not hall._admission._by_client
    assert not hall._admission._strangers
    assert not hall._admission._count


# What a connection without a token takes.


@pytest.mark.fault("F-320")
@pytest.mark.promise("bounded-connection")
@pytest.mark.parametrize("path", ["/openapi.json", "/openapi.yaml", "/healthz", "/ui/style.css"])
def test_answers_that_nobody_reads_take_little_over_tls_and_without(
    full: tuple[Server, ssl.SSLContext | None], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, trust = full
    written: list[int] = []
    early: list[bool] = []
    state = server._inner.server_state
    begin = http_connection.HttpConnection._begin

    def watched(self: http_connection.HttpConnection, call: HttpRequest) -> None:
        early.append(self.is_write_paused)
        begin(self, call)
        written.append(self.transport.get_write_buffer_size())

    with server.raw_from("127.0.0.7") as plain:
        lazy = plain if trust is None else trust.wrap_socket(plain, server_hostname="127.0.0.1")
        monkeypatch.setattr(http_connection.HttpConnection, "_begin", watched)
        lazy.settimeout(0.05)

        def is_stuck() -> bool:
            with contextlib.suppress(TimeoutError, ssl.SSLError):
                lazy.send(request("GET", path, head=b"") * 1_000)
            return any(each.is_write_paused for each in state.connections)

        wait_until(is_stuck, "all of it was read")
        [connection] = [each for each in state.connections if each.is_write_paused]
        assert max([*written, connection.transport.get_write_buffer_size()]) <= 2 * limits.WRITE_BYTES_MAX
        assert not any(early), "a request began before the answer to the last one had left"
        lazy.close()
    wait_until(lambda: connection not in state.connections, "it stays")


@pytest.mark.fault("F-320")
def test_a_long_answer_comes_whole_and_the_next_one_behind_it(full: tuple[Server, ssl.SSLContext | None]) -> None:
    server, trust = full
    with connected(server, "127.0.0.8", trust) as connection:
        connection.sendall(request("GET", "/openapi.json", head=b"") * 3 + request("GET", "/healthz", head=b""))
        rest, bodies = b"", []
        for _ in range(3):
            _, _, body, rest = read_response(connection, rest)
            bodies.append(body)
        assert bodies[0] == bodies[1] == bodies[2]
        assert json.loads(bodies[0])["openapi"]
        assert len(bodies[0]) > 5 * limits.WRITE_BYTES_MAX
        assert json.loads(read_response(connection, rest)[2]) == {"status": "ok"}


@pytest.mark.fault("F-320")
def test_a_client_that_closes_its_sending_side_gets_all_of_a_long_answer(tmp_path: Path) -> None:
    asked = request("GET", "/openapi.json?path=*", head=b"")
    with running(tmp_path) as server, server.raw() as connection:
        connection.sendall(asked * 64)
        state = server._inner.server_state
        wait_until(lambda: any(each._rest for each in state.connections), "all of it was read")
        connection.shutdown(socket.SHUT_WR)
        assert json.loads(read_response(connection)[2])["openapi"]


class TimedLoop:
    """A clock that the test moves, and the timer of the one connection."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.at_s = 0.0
        self._timer: Callable[[], object] | None = None

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, timer: Callable[[], object]) -> TimedLoop:
        self.at_s, self._timer = self.now_s + after_s, timer
        return self

    def cancel(self) -> None:
        self._timer = None

    def go_on(self) -> None:
        assert self._timer is not None
        self.now_s = self.at_s
        self._timer()


class StuckTransport(asyncio.Transport):
    """Nobody reads at its other end."""

    is_aborted = False

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.fault("F-320")
@pytest.mark.parametrize("after_s", [0, 1, 20, 29.9])
def test_who_reads_nothing_is_cut_off_after_its_time_and_not_after_twice_that(tmp_path: Path, after_s: float) -> None:
    with running(tmp_path) as server:
        loop, transport = TimedLoop(), StuckTransport()
        connection = http_connection.HttpConnection(server._inner.server_state, loop)  # type: ignore[arg-type]  # what it needs
        connection.connection_made(transport)
        loop.now_s += after_s
        began_s = loop.now_s
        connection.pause_writing()
        while not transport.is_aborted:
            loop.go_on()
            assert loop.now_s <= began_s + http_connection.REQUEST_S + 0.01
        assert loop.now_s >= began_s + http_connection.REQUEST_S
        connection.connection_lost(None)


# The description of the API: long, and for everybody.


@pytest.mark.fault("F-320")
@pytest.mark.parametrize("path", ["/openapi.json", "/openapi.yaml"])
def test_the_description_is_compressed_for_who_takes_it(tmp_path: Path, path: str) -> None:
    with running(tmp_path) as server:
        plain = server.ask("GET", path)
        small = server.ask("GET", path, headers={"Accept-Encoding": "br, GZIP;q=0.5"})
        refuses = server.ask("GET", path, headers={"Accept-Encoding": "gzip;q=0, br"})
    assert gzip.decompress(small.body) == plain.body == refuses.body
    assert small.headers["content-encoding"] == "gzip"
    assert {each.headers["vary"] for each in (plain, small, refuses)} == {"accept-encoding"}
    assert len(small.body) < len(plain.body) / 5
    assert {each.headers["content-type"] for each in (plain, small)} == {plain.headers["content-type"]}
