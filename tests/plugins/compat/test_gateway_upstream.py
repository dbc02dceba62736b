"""What Action Llama's commands ask of GATEWAY_URL besides locks: passed on to its own gateway, or told plainly."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.harness import Poll, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TTL_MS = 300_000


class Theirs(ThreadingHTTPServer):
    """A gateway of Action Llama's that notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.asked: list[tuple[str, str, Any]] = []
        self.status = 200
        self.via = ""
        self.kinds: list[list[str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Asked(BaseHTTPRequestHandler):
    server: Theirs

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, json.loads(body) if body else None))
        self.server.via = self.headers.get("Via", "")
        self.server.kinds.append(self.headers.get_all("Content-Type", []))
        assert self.server.may_answer.wait(60)
        text = b'{"callId":"c-1"}'
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    server = Theirs()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_signals_calls_and_shutdown_are_passed_on_as_they_are(theirs: Theirs, tmp_path: Path) -> None:
    asked = {"secret": "s" * 16, "text": "half way"}
    with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=theirs.url) as server:
        for path in ("/signals/status", "/calls", "/shutdown"):
            reply = server.ask("POST", f"/gateway{path}", asked, who=None)
            assert (reply.status, reply.json) == (200, {"callId": "c-1"})
        server.ask("GET", "/gateway/calls/c-1?secret=abc", who=None)
        theirs.status = 403
        assert server.ask("POST", "/gateway/signals/rerun", asked, who=None).status == 403
    assert theirs.asked == [
        ("POST", "/signals/status", asked),
        ("POST", "/calls", asked),
        ("POST", "/shutdown", asked),
        ("GET", "/calls/c-1?secret=abc", None),
        ("POST", "/signals/rerun", asked),
    ]


def test_without_their_gateway_it_is_said_what_is_missing(tmp_path: Path) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS) as server:
        reply = server.ask("POST", "/gateway/signals/status", {"secret": "x"}, who=None)
        assert reply.status == 501
        assert reply.json["ok"] is False
        assert "--gateway-upstream" in reply.json["reason"]


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_http_does_not_have_is_reported_as_no_answer(theirs: Theirs, tmp_path: Path, status: int) -> None:
    theirs.status = status
    with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=theirs.url) as server:
        reply = server.ask("POST", "/gateway/shutdown", {"secret": "s" * 16}, who=None)
    assert (reply.status, reply.json["error"]) == (502, "gateway unreachable")


def test_a_request_that_comes_back_to_the_server_that_passed_it_on_goes_no_further(
    theirs: Theirs, tmp_path: Path
) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=theirs.url) as server:
        asked = {"secret": "s" * 16}
        server.ask("POST", "/gateway/calls", asked, who=None, headers={"Via": "1.1 proxy"})
        assert theirs.via.startswith("1.1 proxy, 1.1 dibs-")
        reply = server.ask("POST", "/gateway/calls", asked, who=None, headers={"Via": theirs.via + ", 1.0 x"})
        assert (reply.status, reply.json["error"]) == (508, "gateway loop")
        assert len(theirs.asked) == 1


def test_a_server_that_stops_does_not_wait_for_their_gateway(theirs: Theirs, tmp_path: Path) -> None:
    theirs.may_answer.clear()
    try:
        with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=theirs.url) as server:
            waits = Poll(server, "/gateway/calls", {"secret": "s" * 16})
            wait_until(lambda: bool(theirs.asked), "it was not passed on")
            server.begin_stop()
            assert waits.answer()["reason"].startswith("This server is stopping")
    finally:
        theirs.may_answer.set()


def test_when_their_gateway_is_away_locks_are_served_as_before(theirs: Theirs, tmp_path: Path) -> None:
    url = theirs.url
    theirs.server_close()
    with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=url) as server:
        reply = server.ask("POST", "/gateway/calls", {"secret": "x"}, who=None)
        assert (reply.status, reply.json["error"]) == (502, "gateway unreachable")
        assert server.ask("GET", "/gateway/health", who=None).json == {"status": "ok"}


@pytest.mark.parametrize(
    ("body", "error"), [(b"[]", "missing secret"), (b"5", "missing secret"), (b"null", "invalid JSON body")]
)
def test_a_body_that_is_no_object_is_refused_as_theirs_does(body: bytes, error: str, tmp_path: Path) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS) as server:
        reply = server.ask("POST", "/gateway/locks/acquire", body, who=None)
        assert (reply.status, reply.json["error"]) == (400, error)


@pytest.mark.fault("F-097")
@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "a%2f..%2f..", "a%5c..", "%2E."])
def test_a_step_in_a_path_is_not_passed_on(theirs: Theirs, tmp_path: Path, name: str) -> None:
    upstream = f"{theirs.url}/base"
    with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=upstream) as server:
        assert server.ask("POST", f"/gateway/signals/{name}", {}, who=None).status == 400
        assert server.ask("POST", "/gateway/signals/a.b..c", {}, who=None).status == 200
    assert [path for _, path, _ in theirs.asked] == ["/base/signals/a.b..c"]


@pytest.mark.fault("F-097")
def test_the_type_of_a_body_is_sent_once(theirs: Theirs, tmp_path: Path) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS, gateway_upstream=theirs.url) as server:
        headers = {"Content-Type": "application/vnd.x+json"}
        server.ask("POST", "/gateway/calls", b"{}", who=None, headers=headers)
        server.ask("GET", "/gateway/calls/c-1", who=None)
    assert theirs.kinds == [["application/vnd.x+json"], []]
