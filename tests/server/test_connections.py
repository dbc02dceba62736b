"""Half requests, many requests, silence and early closes on a connection. Raw sockets, both ways through HTTP."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from dibs.core.limits import HEADERS_MAX, PARSE_BYTES_MAX
from dibs.server import connection as http_connection
from dibs.server.http.admission import Admission
from tests.build import COMPILED
from tests.server.hall import Hall
from tests.server.harness import AS_JSON, AUTH, masked, read_all, read_response, request, running, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.harness import Server


def acquire(name: str, head: bytes = b"", body: bytes = b"{}") -> bytes:
    return request("POST", f"/locks/{name}/acquire", body, AUTH + AS_JSON + head)


def test_pipelined_requests_are_answered_in_order(server: Server, name: str) -> None:
    sent = [
        acquire(name),
        acquire(name),
        request("GET", f"/locks/{name}"),
        request("GET", "/health"),
        acquire(f"{name}-2"),
    ]
    with server.raw() as connection:
        connection.sendall(b"".join(sent * 20))
        rest, words = b"", []
        for _ in range(len(sent) * 20):
            _, _, body, rest = read_response(connection, rest)
            words.append(json.loads(body)["status"])
    assert words == ["acquired", "held", "held", "ok", "acquired"] + ["held", "held", "held", "ok", "held"] * 19


def test_a_request_may_come_byte_by_byte(server: Server, name: str) -> None:
    with server.raw() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in acquire(name):
            connection.sendall(bytes([byte]))
        assert json.loads(read_response(connection)[2])["status"] == "acquired"
        connection.sendall(acquire(name))
        assert json.loads(read_response(connection)[2])["status"] == "held"


def test_a_chunked_body_is_read(server: Server, name: str) -> None:
    with server.raw() as connection:
        head = request("POST", f"/locks/{name}/acquire", None, AUTH + AS_JSON + b"Transfer-Encoding: chunked\r\n")
        connection.sendall(head + b'7\r\n{"owner\r\n5\r\n":"x"\r\n1\r\n}\r\n0\r\n\r\n')
        status, _, body, _ = read_response(connection)
        assert (status, json.loads(body)["owner"]) == (200, "x")
        connection.sendall(request("GET", f"/locks/{name}"))
        assert read_response(connection)[0] == 200


def test_a_client_that_expects_100_continue_is_told_to(server: Server, name: str) -> None:
    head, _, body = acquire(name, b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with server.raw() as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_response(connection)[0] == 200


@pytest.mark.parametrize("head", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_is_answered_and_closed(server: Server, name: str, head: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(acquire(name, head).replace(b"HTTP/1.1", b"HTTP/1.0"))
        status, headers, body, rest = read_response(connection)
        assert (status, json.loads(body)["status"], rest) == (200, "acquired", b"")
        assert headers[b"connection"] == b"close"
        assert read_all(connection) == b""


def test_connection_close_is_honoured(server: Server, name: str) -> None:
    with server.raw() as connection:
        connection.sendall(acquire(name, b"Connection: close\r\n"))
        status, headers, _, _ = read_response(connection)
        assert (status, headers[b"connection"]) == (200, b"close")
        assert read_all(connection) == b""


@pytest.mark.parametrize(
    "sent", [b"what is this\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 9]
)
def test_what_is_no_http_request_gets_400_in_json(server: Server, sent: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(sent)
        status, headers, body, _ = read_response(connection)
        assert (status, headers[b"connection"], headers[b"content-type"]) == (
            400,
            b"close",
            b"application/json",
        )
        assert set(json.loads(body)) == {"error", "code", "details", "request_id"}
        assert headers[b"x-request-id"].decode() == json.loads(body)["request_id"]
        assert read_all(connection) == b""


def test_nonsense_behind_a_good_request_does_not_cost_it_its_answer(server: Server, name: str) -> None:
    with server.raw() as connection:
        connection.sendall(acquire(name) + b"nonsense\r\n\r\n")
        status, _, body, rest = read_response(connection)
        assert (status, json.loads(body)["status"]) == (200, "acquired")
        assert read_response(connection, rest)[0] == 400


@pytest.mark.parametrize("good", [1, 2, 3])
@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"GET /status HTTP/1.1\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /status HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * (HEADERS_MAX + 1) + b"\r\n", 431),
    ],
)
def test_a_head_that_is_refused_costs_no_request_before_it_its_answer(
    server: Server, good: int, bad: bytes, status: int
) -> None:
    with server.raw() as connection:
        connection.sendall(request("GET", "/status") * good + bad)
        found, rest = [], b""
        for _ in range(good + 1):
            each, _, _, rest = read_response(connection, rest)
            found.append(each)
        assert found == [200] * good + [status]


def test_a_broken_chunk_gets_400(server: Server, name: str) -> None:
    with server.raw() as connection:
        connection.sendall(
            request("POST", f"/locks/{name}/acquire", None, AUTH + AS_JSON + b"Transfer-Encoding: chunked\r\n")
            + b"zz\r\n"
        )
        assert read_response(connection)[0] == 400
        assert read_all(connection) == b""
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


def test_a_broken_body_behind_a_good_request_is_reported_after_its_answer(server: Server, name: str) -> None:
    broken = (
        request("POST", f"/locks/{name}/acquire", None, AUTH + AS_JSON + b"Transfer-Encoding: chunked\r\n") + b"zz\r\n"
    )
    with server.raw() as connection:
        connection.sendall(acquire(name) + request("GET", f"/locks/{name}") + broken)
        status, _, body, rest = read_response(connection)
        assert (status, json.loads(body)["status"]) == (200, "acquired")
        status, _, body, rest = read_response(connection, rest)
        assert (status, json.loads(body)["status"]) == (200, "held")
        assert read_response(connection, rest)[0] == 400


@pytest.mark.parametrize(
    "head", [b"X-A: b\r\n" * (HEADERS_MAX + 1), b"X-Long: " + b"x" * 100_000 + b"\r\n"], ids=["many", "long"]
)
def test_a_head_beyond_the_limit_gets_431(server: Server, name: str, head: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(acquire(name, head))
        status, _, body, _ = read_response(connection)
        assert (status, json.loads(body)["code"]) == (431, "invalid_input")
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


def test_a_head_without_end_is_cut_off(server: Server) -> None:
    with server.raw() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 200_000)
        assert read_response(connection)[0] == 431
        assert read_all(connection) == b""
        wait_until(lambda: _is_cut_off(connection), "the server goes on reading")


def _is_cut_off(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
    except OSError:
        return True
    return False


def test_many_headers_within_the_limit_are_served(server: Server, name: str) -> None:
    extra = b"".join(b"X-%d: y\r\n" % number for number in range(HEADERS_MAX - 10))
    with server.raw() as connection:
        connection.sendall(acquire(name, extra))
        assert read_response(connection)[0] == 200


def test_half_a_request_and_gone_changes_nothing(server: Server, name: str) -> None:
    for cut in (5, 60, -1):
        with server.raw() as connection:
            connection.sendall(acquire(name)[:cut])
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


def test_a_client_that_sends_and_leaves_finds_its_claim_by_its_key_or_makes_it(server: Server, name: str) -> None:
    """A claim whose caller has gone need not be decided. If it was, its request key finds the lease again."""
    with server.raw() as connection:
        connection.sendall(acquire(name, body=b'{"request_key":"k"}'))
    assert server.acquire(name, {"request_key": "k"}).json["status"] == "acquired"


@pytest.mark.parametrize("head", [b"", b"Connection: close\r\n"], ids=["keeps", "closes"])
@pytest.mark.parametrize("body", [b'{"request_key":"k"}', b'{"request_key":"k","wait_seconds":5}'])
def test_what_a_client_of_several_servers_asked_and_left_is_not_claimed(
    server: Server, name: str, head: bytes, body: bytes
) -> None:
    """It asked another one since, and may have been refused there."""
    with server.standing_still(), server.raw() as connection:
        connection.sendall(acquire(name, head + b"X-Dibs-Servers: 2\r\n", body))
    server.lease(f"{name}-behind")
    wait_until(lambda: server.connections() <= 1, "the connection is not closed")
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"
    assert server.ask("GET", f"/locks/{name}/history").json["events"] == []


def test_a_client_that_closes_its_sending_side_still_gets_its_answer(fast: Server, name: str) -> None:
    with fast.raw() as connection:
        connection.sendall(acquire(name))
        connection.shutdown(socket.SHUT_WR)
        assert b'"acquired"' in read_all(connection)


def test_a_client_that_does_not_read_is_not_read_from_either(server: Server, name: str) -> None:
    one = request("GET", f"/locks/{name}") * 200
    with server.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(one * 2_000)
        assert server.ask("GET", f"/locks/{name}").status == 200


@pytest.mark.skipif(COMPILED, reason="a compiled method cannot be watched")
@pytest.mark.promise("bounded-connection")
def test_what_one_connection_keeps_in_memory_does_not_grow_with_what_it_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0, 0]
    begin = http_connection.HttpConnection._go_on

    def watched(self: http_connection.HttpConnection) -> None:
        begin(self)
        most[:] = max(most[0], len(self._queue)), max(most[1], len(self._unread))

    monkeypatch.setattr(http_connection.HttpConnection, "_go_on", watched)
    one = request("GET", "/health", head=b"")
    with running(tmp_path) as server, server.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(one * (10_000_000 // len(one)))
        wait_until(lambda: most[0] > 0, "nothing is read")
        assert most[0] <= PARSE_BYTES_MAX // len(one) + 1
        assert most[1] <= 512 * 1024
        assert server.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize("count", [1, 20_000], ids=["its last answer", "a heap of them"])
def test_a_client_that_asks_and_never_reads_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with running(tmp_path) as server:
        for number in range(300):
            server.acquire(f"job-{number}", {"metadata": "m" * 1000})
        server._connection.close()
        monkeypatch.setattr(http_connection, "REQUEST_S", 0.1)
        monkeypatch.setattr(http_connection.HttpConnection, "keep_alive_s", 0.2)
        with server.raw() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection.sendall(request("GET", "/locks") * count)
            wait_until(lambda: server.connections() == 0, "still connected")


def test_bodies_that_were_sent_ahead_are_all_read(server: Server, name: str) -> None:
    """Also the one that is cut where the server stops parsing, because a request before it waits for its turn."""
    padded = b'{"owner":"%b"}' % (b"w" * 100)
    sent = [request("POST", f"/locks/{name}-{number}/acquire", padded) for number in range(300)]
    with server.raw() as connection:
        connection.sendall(b"".join(sent))
        rest, names = b"", []
        for _ in sent:
            status, _, body, rest = read_response(connection, rest)
            assert status == 200
            names.append(json.loads(body)["name"])
    assert names == [f"{name}-{number}" for number in range(300)]


def test_the_answers_to_what_was_sent_ahead_come_in_order_however_much_it_was(server: Server, name: str) -> None:
    sent = [request("GET", f"/locks/{name}-{number}", head=AUTH) for number in range(3_000)]
    with server.raw() as connection:
        sender = threading.Thread(target=connection.sendall, args=(b"".join(sent),))
        sender.start()
        rest, names = b"", []
        for _ in sent:
            _, _, body, rest = read_response(connection, rest)
            names.append(json.loads(body)["name"])
        sender.join()
    assert names == [f"{name}-{number}" for number in range(3_000)]


@pytest.mark.promise("bounded-connection")
def test_connections_beyond_the_bounds_are_told_so_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        running(tmp_path, admission=Admission(most=5, most_per_client=3, steady=lambda: 0)) as server,
        contextlib.ExitStack() as stack,
    ):
        kept = [stack.enter_context(server.raw()) for _ in range(3)]
        for each in kept:
            each.sendall(request("GET", "/healthz"))
            assert read_response(each)[0] == 200
        fourth = stack.enter_context(server.raw())
        status, headers, body, _ = read_response(fourth)
        assert (status, json.loads(body)["code"], headers[b"retry-after"]) == (429, "rate_limited", b"1")
        assert read_all(fourth) == b""
        for number in (2, 3):
            other = stack.enter_context(server.raw_from(f"127.0.0.{number}"))
            other.sendall(request("GET", "/healthz"))
            assert read_response(other)[0] == 200
        status, _, body, _ = read_response(stack.enter_context(server.raw_from("127.0.0.4")))
        assert (status, json.loads(body)["code"]) == (503, "capacity_exceeded")
        kept[0].close()
        wait_until(lambda: server.ask("GET", "/healthz").status == 200, "its place was not free again")
    lines = [record.getMessage() for record in caplog.records if "turned away" in record.getMessage()]
    assert len(lines) == 1, lines
    assert "127.0.0.1: 3 open, 3 from there (--connections-per-client changes the bound)" in lines[0]


def test_a_bound_of_zero_is_none() -> None:
    hall = Hall(most=0, most_per_client=0)
    assert {hall.enter("proxy", shows_token=True).refusal for _ in range(10_000)} == {None}


def test_one_line_in_ten_seconds_says_how_many_were_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    hall = Hall(most_per_client=1)
    kept = hall.enter("a", shows_token=True)
    for _ in range(50):
        assert hall.enter("a").refusal is not None
    hall.now_ms = 10_000
    assert hall.enter("a").refusal is not None
    assert [record.getMessage()[:26] for record in caplog.records] == [
        "turned away 1 connection(s)"[:26],
        "turned away 50 connection(s)"[:26],
    ]
    hall.leave(kept)
    assert hall.enter("a").refusal is None


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("hosts", [0, 1, 2])
def test_a_request_has_one_host(server: Server, name: str, hosts: int, version: bytes) -> None:
    sent = acquire(name).replace(b"Host: x\r\n", b"Host: x\r\n" * hosts).replace(b"1.1\r\n", version + b"\r\n", 1)
    with server.raw() as connection:
        connection.sendall(sent)
        status, _, body, _ = read_response(connection)
    served = hosts == 1 or (hosts == 0 and version == b"1.0")
    assert status == (200 if served else 400)
    assert served or json.loads(body)["details"] == "A request has one Host header."


def test_connect_is_refused_and_the_connection_closed(server: Server, name: str) -> None:
    with server.raw() as connection:
        connection.sendall(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + acquire(name))
        status, headers, _, rest = read_response(connection)
        assert (status, headers[b"connection"], rest) == (405, b"close", b"")
        assert read_all(connection) == b""
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


def test_a_request_that_asks_for_an_upgrade_is_served_as_it_is_and_so_is_the_next(server: Server, name: str) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with server.raw() as connection:
        connection.sendall(acquire(name, upgrade, b'{"owner":"curl"}') + request("GET", f"/locks/{name}"))
        _, _, body, rest = read_response(connection)
        assert (json.loads(body)["status"], json.loads(body)["owner"]) == ("acquired", "curl")
        _, _, body, _ = read_response(connection, rest)
        assert json.loads(body)["status"] == "held"


def test_no_head_is_remembered_from_a_request_that_began_with_an_empty_line(fast: Server, name: str) -> None:
    def answer(sent: bytes) -> bytes:
        with fast.raw() as connection:
            connection.sendall(sent)
            return masked(b"%d %b" % read_response(connection)[::2][:2])

    assert answer(b"\r\n" + acquire(name)).startswith(b"200")
    doubled = b"POST /locks/%b-2/acquire HTTP/1.1" % name.encode()
    assert answer(doubled + b"\r\n" + acquire(name)).startswith(b"400")
    assert fast.ask("GET", f"/locks/{name}-2").json["status"] == "free"


def test_one_slow_client_does_not_hold_up_the_others(server: Server, name: str) -> None:
    with server.raw() as slow_one:
        slow_one.sendall(acquire(name)[:-1])
        assert server.acquire(f"{name}-2").json["status"] == "acquired"
        slow_one.sendall(b"}")
        assert json.loads(read_response(slow_one)[2])["status"] == "acquired"


@pytest.mark.parametrize(
    "sent", [b"", b"POST /locks/x/acq", acquire("x")[:-1]], ids=["nothing", "half a head", "half a body"]
)
def test_a_client_that_keeps_us_waiting_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.05)
    monkeypatch.setattr(http_connection.HttpConnection, "keep_alive_s", 0.1)
    with running(tmp_path) as server, server.raw() as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection.HttpConnection, "keep_alive_s", 0.2)
    with running(tmp_path) as server:
        wait_until(lambda: _is_kept_while_busy(server, 0.2), "we are never busy enough")


def _is_kept_while_busy(server: Server, keep_alive_s: float) -> bool:
    """False if this machine was so slow that we were not busy."""
    with server.raw() as connection:
        began = asked = time.monotonic()
        while asked - began < 2.5 * keep_alive_s:
            try:
                connection.sendall(request("GET", "/locks/x"))
                assert read_response(connection)[0] == 200
            except (AssertionError, ConnectionError):
                if time.monotonic() - asked > keep_alive_s / 2:
                    return False
                raise
            asked = time.monotonic()
        assert read_all(connection) == b""
    return True


def test_a_stopping_server_answers_what_it_has_taken(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.raw() as connection:
        connection.sendall(acquire("x")[:-1])
        wait_until(lambda: server.connections() == 1, "not connected")
        server.begin_stop()
        wait_until(lambda: not server.accepts(), "still listening")
        connection.sendall(b"}")
        status, headers, body, _ = read_response(connection)
        assert (status, json.loads(body)["status"], headers[b"connection"]) == (200, "acquired", b"close")
        assert read_all(connection) == b""


def test_both_ways_refuse_nonsense_with_the_same_bytes(fast: Server, slow: Server) -> None:
    answers = []
    for server in (fast, slow):
        with server.raw() as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            answers.append(masked(read_all(connection)))
    assert answers[0] == answers[1]


@pytest.mark.fault("F-328")
def test_a_server_that_may_open_no_more_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if "new connections are refused" in each.getMessage()]

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with running(tmp_path) as server:
        inner = server._inner
        inner._look_for_files()
        assert said() == []
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse)
            for _ in range(3):
                inner._look_for_files()
        assert said() == ["new connections are refused with 0 open: Too many open files (ulimit -n)"]


@pytest.mark.fault("F-322")
def test_a_proxy_that_nobody_named_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = {"X-Forwarded-For": "198.51.100.7"}
    with running(tmp_path, proxies=("127.0.0.2",)) as server:
        assert server.ask("GET", "/healthz").status == 200
        assert "X-Forwarded-For" not in caplog.text
        for _ in range(3):
            assert server.ask("GET", "/healthz", headers=told).status == 200
    lines = [each.getMessage() for each in caplog.records if "X-Forwarded-For" in each.getMessage()]
    assert len(lines) == 1
    assert "127.0.0.1" in lines[0]
    assert "--trusted-proxy" in lines[0]
