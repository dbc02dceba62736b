"""Clients that mean harm: odd paths, headers that are no text, thousands that only connect. Each gets a clear answer or
none, and others are served meanwhile."""

from __future__ import annotations

import json
import resource
import socket
import time
from typing import TYPE_CHECKING

import pytest

from dibs.client.transport import Ask
from dibs.core.limits import HEAD_BYTES_MAX
from dibs.server import connection as http_connection
from tests.programs import ServerProcess
from tests.server.harness import read_all, read_response, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

TOKEN = b"Authorization: Bearer tok-admin\r\n"
# What is asked, and the status. No path leads out of its segment: `..` and `.` are names, not steps.
PATHS: dict[bytes, int] = {
    b"/../health": 404,
    b"/locks/../health": 404,
    b"/locks/../../etc/passwd": 404,
    b"/%2e%2e/health": 404,
    b"/locks/%2e%2e%2fhealth": 200,
    b"/locks/a/%2e%2e/acquire": 404,
    b"//health": 404,
    b"/health/": 404,
    b"/locks//acquire": 405,
    b"/locks/a//history": 404,
    b"/locks/%00": 400,
    b"/locks/a%00b": 400,
    b"/locks/%c0%ae%c0%ae": 400,
    b"/locks/%ed%a0%80": 400,
    b"/locks/%ff": 400,
    b"/locks/%": 400,
    b"/locks/%zz": 400,
    b"/locks/%25%32%65": 200,
    b"/locks/a;b": 200,
    b"/locks/a\\..\\b": 200,
    b"/locks/" + b"x" * 600: 400,
    b"/locks/" + b"%41" * 600: 400,
    b"/LOCKS/a": 404,
    b"http://elsewhere.example/health": 200,
    b"http://elsewhere.example/../health": 404,
    b"/locks/\xff": 400,
    b"/\x00": 400,
    b"*": 404,
    b"/" + b"a/" * 20_000: 404,
    b"/" + b"x" * 70_000: 431,
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:40].decode("latin-1"))
def test_a_path_is_taken_as_it_is_written(server: Server, path: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path, TOKEN))
        status, _, body, _ = read_response(connection)
    assert status == PATHS[path], body
    answer = json.loads(body)
    assert status == 200 or answer["code"]
    assert "Traceback" not in body.decode()
    assert server.ask("GET", "/health").status == 200


BYTES = b"\xff\xfe\x80"
HEADERS = {
    b"X-Dibs-Namespace: " + BYTES: 400,
    b"Idempotency-Key: " + BYTES: 400,
    b"X-Dibs-Names: " + BYTES: 400,
    b"X-Dibs-Store: " + BYTES: 421,
    b"Content-Type: " + BYTES: 415,
    b"Cookie: dibs_token=" + BYTES: 200,
    b"Origin: " + BYTES: 200,
    b"traceparent: " + BYTES: 200,
    b"X-Forwarded-For: " + BYTES: 200,
    b"Accept: " + BYTES: 200,
    b"X-Bad\x00: a": 400,
    b"X-Bad: a\x00b": 400,
    b"X Bad: a": 400,
    b": a": 400,
    b"Content-Length: -1": 400,
    b"Content-Length: 99999999999999999999": 400,
    b"Transfer-Encoding: chunked, identity": 400,
}


@pytest.mark.parametrize("header", HEADERS, ids=repr)
def test_a_header_that_is_no_text_is_refused_or_ignored(server: Server, name: str, header: bytes) -> None:
    kind = b"" if header.startswith(b"Content-Type") else b"Content-Type: application/json\r\n"
    length = b"" if header.startswith((b"Content-Length", b"Transfer")) else b"Content-Length: 2\r\n"
    head = b"POST /locks/%b/acquire HTTP/1.1\r\nHost: x\r\n%b%b%b%b\r\n\r\n"
    with server.raw() as connection:
        connection.sendall(head % (name.encode(), TOKEN, kind, length, header) + b"{}")
        status, _, body, _ = read_response(connection)
    assert status == HEADERS[header], body
    assert json.loads(body)


@pytest.mark.parametrize("token", [BYTES, b"", b"x" * 60_000, b"a b", b"\t", b"tok-admin, Bearer tok-admin"])
def test_a_token_that_is_none_is_refused(server: Server, token: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(b"GET /locks/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % token)
        assert read_response(connection)[0] == 401


def test_endless_heads_of_many_do_not_hold_up_others(server: Server, name: str) -> None:
    flood = [server.raw() for _ in range(40)]
    try:
        for connection in flood:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(90)))
        assert server.acquire(name).json["status"] == "acquired"
        for connection in flood:
            connection.sendall(b"X-More: y\r\n" * 20 + b"\r\n")
            assert read_response(connection)[0] == 431
    finally:
        for connection in flood:
            connection.close()
    assert server.ask("GET", f"/locks/{name}").json["status"] == "held"


CHUNKED = b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
# What a client can send without end behind the head of a request, and it brings no body.
NO_BODY = {
    "many trailers": (b"0\r\n", b"X-Filler: " + b"y" * 50 + b"\r\n"),
    "one trailer": (b"0\r\nX-Filler: ", b"y" * 64),
    "chunk extensions": (b"", b"1;" + b"y" * 60 + b"\r\nz\r\n"),
    "one chunk extension": (b"1;", b"y" * 64),
    "tiny chunks": (b"", b"1\r\nz\r\n"),
}


@pytest.mark.promise("bounded-connection")
@pytest.mark.fault("F-085")
@pytest.mark.parametrize("what", NO_BODY)
@pytest.mark.parametrize("asked", [b"GET /healthz", b"POST /locks/x/acquire"], ids=["answered", "awaited"])
def test_what_follows_a_head_and_brings_no_body_is_bounded(server: Server, what: str, asked: bytes) -> None:
    begin, more = NO_BODY[what]
    with server.raw() as connection:
        connection.sendall(asked + CHUNKED + TOKEN + b"\r\n" + begin)
        is_answered = asked.startswith(b"GET")  # it needs no body, so the answer comes before that
        if is_answered:
            assert read_response(connection)[0] == 200
        connection.sendall(more * (2 * HEAD_BYTES_MAX // len(more)))
        said = read_all(connection)
    assert (said == b"") if is_answered else (b" 431 " in said)  # one answer to one request
    assert server.ask("GET", "/healthz").status == 200


@pytest.mark.fault("F-085")
def test_a_trailer_is_no_header(server: Server, name: str) -> None:
    chunked = b"POST /locks/%b/acquire" % name.encode() + CHUNKED
    with server.raw() as connection:
        connection.sendall(chunked + b"\r\n2\r\n{}\r\n0\r\n" + TOKEN + b"X-Dibs-Namespace: smuggled\r\n\r\n")
        assert read_response(connection)[0] == 401
        connection.sendall(chunked + TOKEN + b"\r\n2\r\n{}\r\n0\r\nX-Dibs-Namespace: smuggled\r\nX-A: b\r\n\r\n")
        assert read_response(connection)[0] == 200
    held = server.ask("GET", f"/locks/{name}", who="admin").json
    assert held["status"] == "held"
    assert server.ask("GET", f"/locks/{name}?namespace=smuggled", who="admin").json["status"] == "free"


@pytest.mark.fault("F-085")
def test_a_body_in_chunks_and_a_body_in_many_parts_are_still_taken(server: Server, name: str) -> None:
    metadata = "m" * 1000
    body = json.dumps({"metadata": metadata}).encode()
    pieces = b"".join(b"7\r\n%b\r\n" % body[at : at + 7] for at in range(0, len(body) // 7 * 7, 7))
    rest = body[len(body) // 7 * 7 :]
    pieces += b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b""
    with server.raw() as connection:
        connection.sendall(b"POST /locks/%b/acquire" % name.encode() + CHUNKED + TOKEN + b"\r\n")
        connection.sendall(pieces + b"0\r\n\r\n")
        assert read_response(connection)[0] == 200
        padded = b"{" + b" " * 63_000 + b"}"
        connection.sendall(
            b"GET /locks/%b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (name.encode(), TOKEN)
            + b"POST /locks/%b/acquire HTTP/1.1\r\nHost: x\r\n%b" % (name.encode(), TOKEN)
            + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(padded)
        )
        assert read_response(connection)[0] == 200
        for at in range(0, len(padded), 1000):
            connection.sendall(padded[at : at + 1000])
        assert read_response(connection)[0] == 200


def drip(connection: socket.socket) -> None:
    """A byte every ten milliseconds, for nine seconds at most."""
    for _ in range(900):
        connection.sendall(b"x")
        time.sleep(0.01)


@pytest.mark.parametrize(
    "begin",
    [b"", b"POST /locks/x/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"],
    ids=["head", "body"],
)
def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.2)
    with running(tmp_path) as server, server.raw() as connection:
        connection.sendall(begin)
        with pytest.raises(OSError, match=r"reset|pipe"):
            drip(connection)
        assert server.ask("GET", "/health").status == 200


# Bytes of memory that a connection may cost which says nothing. Measured: 7 KiB.
IDLE_BYTES_MAX = 40 * 1024


def memory_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def idle(server: ServerProcess, count: int) -> Iterator[socket.socket]:
    """Connections that say nothing, from several addresses: one may have 2,000."""
    port = int(server.url.rpartition(":")[2])
    for number in range(count):
        yield socket.create_connection(("127.0.0.1", port), 20, (f"127.0.1.{number // 1900 + 1}", 0))


@pytest.mark.e2e
@pytest.mark.parametrize("count", [1_000, pytest.param(9_900, marks=pytest.mark.slow)])
def test_connections_that_only_connect_cost_little_and_hold_up_nobody(tmp_path: Path, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 500:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    connections: list[socket.socket] = []
    try:
        with ServerProcess(tmp_path) as server:
            transport = server.transport()
            assert transport.ask(Ask("acquire", "before")).status == 200
            before = memory_bytes(server.process.pid)
            connections += idle(server, count)
            assert transport.ask(Ask("acquire", "after")).status == 200
            used = memory_bytes(server.process.pid) - before
            assert used < count * IDLE_BYTES_MAX, used // count
            while connections:
                connections.pop().close()
            assert transport.ask(Ask("inspect", "after")).status == 200
            transport.close()
            assert server.stop() == 0
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
