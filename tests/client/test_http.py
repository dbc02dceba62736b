"""The client against a server that misbehaves in every way we could think of."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import FATE_UNKNOWN
from dibs.client.http import HttpTransport
from dibs.client.servers import Servers
from dibs.client.transport import Ask, OneNamespace
from dibs.client.urls import server_address
from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from dibs.wire.documents import Reply

GRANTED = {
    "status": "acquired",
    "name": "a",
    "lease_id": "x",
    "fencing_token": 1,
    "owner": "o",
    "expires_at": "2025-11-15T02:16:05.123Z",
    "remaining_ms": 60_000,
    "renew_after_ms": 30_000,
}
FREE = {"name": "a", "status": "free", "fencing_token": 0}
KEY = {"request_key": "k"}


def transport_to(
    server: ScriptedServer, timeout_ms: int = 10_000, token: str | None = None, **more: Any
) -> HttpTransport:
    address = server_address(server.url)
    address.token = token
    return HttpTransport(Servers((address,)), timeout_ms=timeout_ms, **more)


def details(reply: Reply) -> str:
    assert reply.body is not None
    return str(reply.body["details"])


def test_a_request_says_who_asks_for_what_where() -> None:
    with ScriptedServer([reply_of(200, GRANTED)]) as server:
        reply = transport_to(server, token="secret", naming=OneNamespace("acme")).ask(
            Ask("acquire", "a/b é", {"owner": "é"})
        )
    assert reply.body == GRANTED
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0] == "POST /locks/a%2Fb%20%C3%A9/acquire HTTP/1.1"
    assert "Authorization: Bearer secret" in head
    assert "X-Dibs-Namespace: acme" in head
    assert f"Host: {server.url.removeprefix('http://')}" in head
    assert server.body() == {"owner": "é"}


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda transport: transport.ask(Ask("inspect", "a")), "GET /locks/a HTTP/1.1"),
        (lambda transport: transport.ask(Ask("acl", "a", {"acl": {}})), "PUT /locks/a/acl HTTP/1.1"),
        (
            lambda transport: transport.ask(Ask("list", "a&b", {"limit": 5, "after": "c"})),
            "GET /locks?prefix=a%26b&limit=5&after=c HTTP/1.1",
        ),
        (
            lambda transport: transport.ask(Ask("history", "..", {"limit": 7})),
            "GET /locks/%2E%2E/history?limit=7 HTTP/1.1",
        ),
    ],
)
def test_each_question_has_its_address(ask: Any, line: str) -> None:
    body = FREE | {"locks": [], "next": None, "events": [], "acl": {}}
    with ScriptedServer([reply_of(200, body)]) as server:
        assert ask(transport_to(server)).status == 200
    assert server.requests[0].decode().splitlines()[0] == line


def test_a_release_is_answered_with_null() -> None:
    with ScriptedServer([reply_of(200, None)]) as server:
        reply = transport_to(server).ask(Ask("release", "a", {"lease_id": "x"}))
    assert (reply.status, reply.body) == (200, None)


def test_a_refusal_is_a_reply_with_the_servers_own_words() -> None:
    body = {"error": "Authentication failed", "code": "authentication_failed", "details": "No such token."}
    with ScriptedServer([reply_of(401, body)]) as server:
        reply = transport_to(server).ask(Ask("acquire", "a", KEY))
    assert (reply.status, reply.body) == (401, body)


def test_retry_after_is_handed_on_in_milliseconds() -> None:
    body = {"error": "x", "code": "upstream_unavailable", "details": "busy"}
    with ScriptedServer([reply_of(503, body, "Retry-After: 7")]) as server:
        reply = transport_to(server).ask(Ask("acquire", "a", KEY))
    assert reply.body == body | {"retry_after_ms": 7000}


def test_a_connection_that_breaks_after_the_request_is_asked_again_with_the_same_key() -> None:
    cut = reply_of(200, GRANTED)[:-3]
    with ScriptedServer([None, cut, reply_of(200, GRANTED)]) as server:
        reply = transport_to(server).ask(Ask("acquire", "a", KEY))
    assert reply.body == GRANTED
    assert len(server.requests) == 3
    assert len(set(server.requests)) == 1


def test_it_is_not_asked_for_ever() -> None:
    with ScriptedServer([None] * 5) as server:
        reply = transport_to(server).ask(Ask("renew", "a", {"lease_id": "x"}))
    assert len(server.requests) == 3
    assert reply.status == 503
    assert FATE_UNKNOWN in details(reply)


@pytest.mark.fault("F-745")
def test_a_refusal_after_a_lost_answer_says_of_which_try_the_outcome_is_not_known() -> None:
    body = {"error": "x", "code": "upstream_unavailable", "details": "It is away. Nothing was changed."}
    with ScriptedServer([None] + [reply_of(503, body)] * 3) as server:
        reply = transport_to(server).ask(Ask("acquire", "a", KEY))
    assert details(reply) == f"It is away. Nothing was changed. An earlier try had no answer. {FATE_UNKNOWN}"


@pytest.mark.parametrize(("verb", "document"), [("break", {"reason": "r"}), ("acquire", {})])
def test_what_may_not_happen_twice_is_asked_once(verb: str, document: dict[str, str]) -> None:
    with ScriptedServer([None, None]) as server:
        reply = transport_to(server).ask(Ask(verb, "a", document))
    assert len(server.requests) == 1
    assert FATE_UNKNOWN in details(reply)


def test_a_server_that_dies_between_two_tries_is_unreachable() -> None:
    with ScriptedServer([None]) as server:
        reply = transport_to(server).ask(Ask("release", "a", {"lease_id": "x"}))
    assert reply.status == 503
    assert reply.body is not None
    assert reply.body["code"] == "upstream_unavailable"


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    def hold(connection: socket.socket) -> None:
        connection.recv(1)  # until the client leaves

    with ScriptedServer([hold]) as server:
        reply = transport_to(server, timeout_ms=1_000).ask(Ask("acquire", "a", KEY))
    assert reply.status == 503
    assert "within 1 s" in details(reply)
    assert FATE_UNKNOWN in details(reply)


def test_a_server_that_drips_is_given_up_in_time_too() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"x: y\r\n")
            connection.settimeout(0.02)
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                continue

    with ScriptedServer([drip]) as server:
        reply = transport_to(server, timeout_ms=150).ask(Ask("inspect", "a"))
    assert "did not answer" in details(reply)
    assert FATE_UNKNOWN not in details(reply)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        reply_of(200, b"<html>hello</html>"),
        reply_of(200, b"[1, 2]"),
        reply_of(200, b"NaN"),
        reply_of(200, b"\xff\xfe"),
        reply_of(200, b"[" * 100_000),
        reply_of(200, b"{} {}"),
        reply_of(200, {"hello": "world"}),
        reply_of(200, {"status": "acquired", "name": "a", "lease_id": "x"}),
        reply_of(200, GRANTED | {"status": "unheard of"}),
        reply_of(200, GRANTED | {"status": ["held"]}),
        reply_of(409, {"status": "delayed"}),
        reply_of(200, None),
        reply_of(404, b"<html>not found</html>"),
        reply_of(404, {"message": "Not Found"}),
        reply_of(404, b""),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_answer_that_is_not_from_dibs_is_reported_and_not_repeated(answer: bytes) -> None:
    with ScriptedServer([answer, answer]) as server:
        reply = transport_to(server).ask(Ask("acquire", "a", KEY))
    assert reply.status == 503
    assert len(server.requests) == 1
    assert FATE_UNKNOWN not in details(reply)


def test_chunks_are_understood() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b'9\r\n{"name":"\r\nF\r\nx","events":[]}\r\n0\r\n\r\n'
    with ScriptedServer([answer]) as server:
        assert transport_to(server).ask(Ask("history", "x", {"limit": 1})).body == {"name": "x", "events": []}


def test_a_redirect_is_reported_and_not_followed() -> None:
    with ScriptedServer([reply_of(301, b"", "Location: https://elsewhere/")]) as server:
        reply = transport_to(server).ask(Ask("inspect", "a"))
    assert "https://elsewhere/" in details(reply)


def test_a_gateway_without_a_server_behind_it_is_unreachable() -> None:
    with ScriptedServer([reply_of(502, b"<html>Bad Gateway</html>")]) as server:
        assert "502" in details(transport_to(server).ask(Ask("inspect", "a")))


def test_a_large_list_is_read_whole() -> None:
    held = {"status": "held", "fencing_token": 1, "checkpoint": "c" * 4000}
    locks = [{"name": f"job-{number}", **held} for number in range(1000)]
    with ScriptedServer([reply_of(200, {"locks": locks, "next": None})]) as server:
        body = transport_to(server).ask(Ask("list", "", {"limit": 1000})).body
    assert body is not None
    assert body["locks"] == locks


def test_an_answer_that_comes_before_the_request_was_sent_whole_counts() -> None:
    body = {"error": "Invalid input", "code": "invalid_input", "details": "too large"}

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(reply_of(413, body))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 20):
                    pass

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        place = server_address(f"http://127.0.0.1:{listening.getsockname()[1]}")
        reply = HttpTransport(Servers((place,))).ask(Ask("acquire", "a", {"metadata": "m" * 5_000_000}))
        thread.join(60)
    assert (reply.status, reply.body) == (413, body)


def test_refused_is_reported_at_once_with_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        reply = HttpTransport(Servers((server_address(url),))).ask(Ask("acquire", "a", KEY))
    assert reply.status == 503
    assert "connection refused" in details(reply)
    assert details(reply).endswith("Do not begin the work; try again later.")
    assert FATE_UNKNOWN not in details(reply)


def test_a_host_that_does_not_exist_is_reported() -> None:
    reply = HttpTransport(Servers((server_address("http://no-such-host.invalid"),))).ask(Ask("inspect", "a"))
    assert "no host no-such-host.invalid" in details(reply)


def test_a_path_below_which_there_is_nothing_is_no_answer_about_the_job() -> None:
    body = {"error": "Not found", "code": "not_found", "details": "There is nothing at this address. A / is %2F."}
    with ScriptedServer([reply_of(404, body)]) as server:
        place = server_address(f"{server.url}/foo")
        reply = HttpTransport(Servers((place,))).ask(Ask("inspect", "a"))
    assert reply.body is not None
    assert (reply.body["code"], "nothing below /foo" in details(reply)) == ("upstream_unavailable", True)


def test_a_unix_socket_serves_as_well(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with ScriptedServer([reply_of(200, FREE)], socket.AF_UNIX, path) as server:
        assert transport_to(server).ask(Ask("inspect", "a")).status == 200
    assert server.requests[0].startswith(b"GET /locks/a HTTP/1.1\r\nHost: localhost\r\n")
    missing = HttpTransport(Servers((server_address("unix:///nowhere/at/all"),))).ask(Ask("inspect", "a"))
    assert "no such file" in details(missing)


def test_ipv6_serves_as_well() -> None:
    try:
        server = ScriptedServer([reply_of(200, FREE)], socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with server:
        assert transport_to(server).ask(Ask("inspect", "a")).status == 200


@pytest.mark.parametrize(
    ("more", "document"),
    [
        ({"naming": OneNamespace("a\r\nX-Evil: 1")}, KEY),
        ({"token": "a\r\nX-Evil: 1"}, KEY),
        ({}, {"owner": "\udcff"}),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(more: dict[str, Any], document: dict[str, str]) -> None:
    with ScriptedServer([reply_of(200, GRANTED)]) as server:
        reply = transport_to(server, **more).ask(Ask("acquire", "a", document))
        bad_name = transport_to(server).ask(Ask("acquire", "\udcff", KEY))
        bad_prefix = transport_to(server).ask(Ask("list", "\udcff", {"limit": 1}))
    assert server.requests == []
    assert {reply.status, bad_name.status, bad_prefix.status} <= {400, 422}


def test_a_certificate_is_checked(
    tmp_path: Path, need_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([need_program("openssl"), *words.split(), *names], check=True, timeout=60, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with ScriptedServer(
        [reply_of(200, FREE)], wrap=lambda plain: context.wrap_socket(plain, server_side=True)
    ) as server:
        port = server.url.rpartition(":")[2]
        place = server_address(f"https://localhost:{port}")
        refused = HttpTransport(Servers((place,))).ask(Ask("inspect", "a"))
        assert "not trusted" in details(refused)
        for path, why in ((tmp_path / "nope.pem", "No such file"), (key, "no certificate")):
            monkeypatch.setenv("SSL_CERT_FILE", str(path))
            unread = HttpTransport(Servers((place,))).ask(Ask("inspect", "a"))
            assert f"SSL_CERT_FILE names {path}, which cannot be used: " in details(unread)
            assert why in details(unread)
        plain = HttpTransport(Servers((server_address(server.url),))).ask(Ask("inspect", "a"))
        assert details(plain) == f"{server.url} speaks TLS. Write https:// instead of http://."
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        wrong_name = HttpTransport(Servers((server_address(f"https://127.0.0.1:{port}"),))).ask(Ask("inspect", "a"))
        assert "not trusted" in details(wrong_name)
        assert HttpTransport(Servers((place,))).ask(Ask("inspect", "a")).status == 200


def test_https_to_a_server_that_speaks_http_says_so() -> None:
    def complain(plain: socket.socket) -> socket.socket:
        plain.sendall(reply_of(400, b"what is this"))
        return plain

    with ScriptedServer([None], wrap=complain) as server:
        place = server_address(server.url.replace("http:", "https:"))
        reply = HttpTransport(Servers((place,)), timeout_ms=20_000).ask(Ask("inspect", "a"))
    assert "Is it http:// and not https://?" in details(reply)


def test_a_request_over_a_kept_connection_reads_the_clock_a_few_times() -> None:
    """What begins at one moment shares one reading."""
    body = {"lease_id": "00000000-0000-4000-8000-000000000000", "remaining_ms": 60_000}

    def answer_all(connection: socket.socket) -> None:
        connection.sendall(reply_of(200, body))  # the first one was read
        while connection.recv(65536):
            connection.sendall(reply_of(200, body))

    readings: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "steady_ms":
            readings.append(event)

    with ScriptedServer([answer_all]) as server:
        transport = transport_to(server, keep=True)
        renew = Ask("renew", "job", {"lease_id": body["lease_id"]})
        assert transport.ask(renew).status == 200
        sys.setprofile(note)
        try:
            reply = transport.ask(renew)
        finally:
            sys.setprofile(None)
        transport.close()
    assert reply.status == 200
    assert len(readings) <= 4
