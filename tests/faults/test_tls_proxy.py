"""The proxy of deploy/haproxy/tls.cfg before a real server: claims, waiters, streams and logins pass through TLS."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import ROOT, WAIT_S_MAX, ServerProcess, wait_until
from tests.server.certificates import Authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG = ROOT / "deploy" / "haproxy" / "tls.cfg"


class Proxied:
    def __init__(self, port: int, trust: ssl.SSLContext, server: ServerProcess) -> None:
        self.port = port
        self.trust = trust
        self.server = server

    @contextmanager
    def open(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.trust)
        sent = {"Authorization": f"Bearer {self.server.token}", "Content-Type": "application/json", **headers}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        with self.open(method, path, body, **headers) as reply:
            return json.loads(reply.read() or b"null")

    def answers(self) -> bool:
        try:
            with self.open("GET", "/readyz") as reply:
                return reply.status == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def proxied(
    tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]
) -> Iterator[Proxied]:
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin") or need_program("haproxy")
    folder = tmp_path_factory.mktemp("proxied")
    authority = Authority(folder / "ca", need_program("openssl"))
    cert, key = authority.issue("server")
    both = folder / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--trusted-proxy", "127.0.0.1", "--access-log")
    with ServerProcess(folder, flags=flags) as server:
        config = folder / "tls.cfg"
        config.write_text(adapted(CONFIG.read_text(), port, both, server.url))
        process = subprocess.Popen([haproxy, "-db", "-f", str(config)], stderr=subprocess.DEVNULL)
        try:
            found = Proxied(port, authority.trusted(), server)
            wait_until(found.answers, "the proxy finds the server")
            yield found
        finally:
            process.kill()
            process.wait(WAIT_S_MAX)


def adapted(text: str, port: int, cert: Path, url: str) -> str:
    """The file as it is shipped, with these addresses."""
    text, binds = re.subn(r"bind :443 ssl crt \S+", f"bind 127.0.0.1:{port} ssl crt {cert}", text)
    text, servers = re.subn(r"127\.0\.0\.1:3427", url.removeprefix("http://"), text)
    assert (binds, servers) == (1, 1)
    return text


def test_a_waiter_is_given_the_job_and_a_stream_tells_of_it_at_once(proxied: Proxied) -> None:
    lease = proxied.ask("POST", "/locks/job/acquire", {})["lease_id"]
    got: list[Any] = []
    waiting = threading.Thread(
        target=lambda: got.append(proxied.ask("POST", "/locks/job/acquire", {"wait_seconds": 20})),
        daemon=True,
    )
    waiting.start()
    wait_until(lambda: proxied.ask("GET", "/locks/job").get("waiting"), "somebody waits")
    with proxied.open("GET", "/events?follow=true&after=0") as stream:
        assert stream.status == 200
        proxied.ask("POST", "/locks/job/release", {"lease_id": lease})
        while b'"released"' not in stream.readline():
            pass
    waiting.join(WAIT_S_MAX)
    assert [each["status"] for each in got] == ["acquired"]


def test_the_server_knows_the_browsers_scheme_and_not_what_a_client_says_of_itself(proxied: Proxied) -> None:
    body = {"token": proxied.server.token}
    forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "http", "Forwarded": "for=203.0.113.9"}
    with proxied.open("POST", "/login", body, Origin=f"https://127.0.0.1:{proxied.port}", **forged) as reply:
        assert reply.status == 200
        cookie = reply.headers["Set-Cookie"]
    assert cookie.startswith("__Host-dibs_token=")
    assert "; Secure" in cookie
    read = proxied.server.log.read_text
    wait_until(lambda: "POST /login" in read(), "the log has it")  # a thread writes the log
    log = read()
    assert "203.0.113.9" not in log
