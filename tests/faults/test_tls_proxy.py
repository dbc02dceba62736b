"""Proxies before a real server: claims, waiters, streams and logins pass through TLS. HAProxy has the file of deploy/,
nginx and Caddy have the configurations of docs/how-to/tls.md."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.docs.pages import blocks
from tests.programs import ROOT, WAIT_S_MAX, ServerProcess, reserved_ports, wait_until
from tests.server.certificates import Authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG = ROOT / "deploy" / "haproxy" / "tls.cfg"
PAGE = ROOT / "docs" / "how-to" / "tls.md"


class Proxied:
    def __init__(self, port: int, trust: ssl.SSLContext, server: ServerProcess) -> None:
        self.port = port
        self.trust = trust
        self.server = server

    @contextmanager
    def begin(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPSConnection]:
        """A request whose answer is not waited for."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.trust)
        sent = {"Authorization": f"Bearer {self.server.token}", "Content-Type": "application/json", **headers}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            yield connection
        finally:
            connection.close()

    @contextmanager
    def open(self, method: str, path: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
        with self.begin(method, path, body, **headers) as connection:
            yield connection.getresponse()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        with self.open(method, path, body, **headers) as reply:
            return json.loads(reply.read() or b"null")

    def answers(self) -> bool:
        try:
            with self.open("GET", "/readyz") as reply:
                return reply.status == 200
        except OSError:
            return False


@pytest.fixture(scope="module", params=["haproxy", "nginx", "caddy"])
def proxied(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    need_program: Callable[[str], str],
) -> Iterator[Proxied]:
    program = need_program(request.param)
    folder = tmp_path_factory.mktemp("proxied")
    authority = Authority(folder / "ca", need_program("openssl"))
    cert, key = authority.issue("server")
    (folder / "both.pem").write_bytes(cert.read_bytes() + key.read_bytes())
    flags = ("--trusted-proxy", "127.0.0.1", "--access-log")
    with reserved_ports(1) as (port,), ServerProcess(folder, flags=flags) as server:
        write, *words = PROXIES[request.param]
        write(folder, port, server.url.removeprefix("http://"))
        env = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        process = subprocess.Popen(
            [program, *[word.format(folder=folder) for word in words]],
            stderr=subprocess.DEVNULL,
            env=env,
        )
        try:
            found = Proxied(port, authority.trusted(), server)
            wait_until(found.answers, "the proxy finds the server")
            yield found
        finally:
            process.kill()
            process.wait(WAIT_S_MAX)


def adapted(text: str, **places: str) -> str:
    """The file as it is shipped, with these addresses and files instead of what each pattern finds, once."""
    for found, place in places.items():
        text, count = re.subn(PLACES[found], place, text)
        assert count == 1, found
    return text


def from_page(language: str) -> str:
    (found,) = [each.text for each in blocks(PAGE.read_text()) if each.info == language]
    return found


def write_haproxy(folder: Path, port: int, server: str) -> None:
    text = adapted(CONFIG.read_text(), haproxy=f"bind 127.0.0.1:{port} ssl crt {folder}/both.pem", server=server)
    (folder / "config").write_text(text)


def write_nginx(folder: Path, port: int, server: str) -> None:
    """The page has what goes into `http`."""
    cert, key = f"{folder}/both.pem", f"{folder}/ca/server.key"
    text = adapted(from_page("nginx"), nginx=f"listen 127.0.0.1:{port} ssl", cert=cert, key=key, server=server)
    temporary = [f"{kind}_temp_path {folder}/{kind};" for kind in NGINX_FOLDERS]
    lines = [
        "daemon off;",
        "master_process off;",
        f"pid {folder}/pid;",
        "events {}",
        "http {",
        "access_log off;",
    ]
    (folder / "config").write_text("\n".join([*lines, *temporary, text, "}"]))


def write_caddy(folder: Path, port: int, server: str) -> None:
    cert, key = f"{folder}/both.pem", f"{folder}/ca/server.key"
    text = adapted(from_page("caddy"), caddy=f"https://127.0.0.1:{port} {{", cert=cert, key=key, server=server)
    options = "{\nadmin off\nauto_https disable_redirects\nskip_install_trust\n}\n"
    (folder / "config").write_text(options + text)


PROXIES: dict[str, tuple[Any, ...]] = {
    "haproxy": (write_haproxy, "-db", "-f", "{folder}/config"),
    "nginx": (write_nginx, "-c", "{folder}/config", "-e", "{folder}/log"),
    "caddy": (write_caddy, "run", "--config", "{folder}/config", "--adapter", "caddyfile"),
}
PLACES = {
    "haproxy": r"bind :443 ssl crt \S+",
    "nginx": r"listen 443 ssl",
    "caddy": r"dibs\.example\.com \{",
    "cert": r"/etc/\w+/dibs\.pem",
    "key": r"/etc/\w+/dibs\.key",
    "server": r"127\.0\.0\.1:3427",
}
NGINX_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def test_a_waiter_is_given_the_job_and_a_stream_reports_it_at_once(proxied: Proxied) -> None:
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


def test_a_waiter_that_hangs_up_leaves_the_line(proxied: Proxied) -> None:
    proxied.ask("POST", "/locks/left/acquire", {"ttl_seconds": 60})
    with proxied.begin("POST", "/locks/left/acquire", {"wait_seconds": 60}):
        wait_until(lambda: proxied.ask("GET", "/locks/left").get("waiting"), "somebody waits")
    wait_until(lambda: not proxied.ask("GET", "/locks/left").get("waiting"), "nobody waits", 5)


@pytest.mark.parametrize("name", ["a/b", "a//b", "/a", "a%2Fb", "\N{GRINNING FACE}/ü", "a b+c", "a?b#c;d", "%"])
def test_names_arrive_as_they_were_sent(proxied: Proxied, name: str) -> None:
    path = f"/locks/{quote(name, safe='')}"
    lease = proxied.ask("POST", f"{path}/acquire", {})
    assert lease["name"] == name
    proxied.ask("POST", f"{path}/release", {"lease_id": lease["lease_id"]})


def test_a_large_request_is_answered_by_the_server(proxied: Proxied) -> None:
    too_large = {"metadata": "x" * 1_500_000}
    assert proxied.ask("POST", "/locks/large/acquire", too_large)["code"] == "invalid_input"
