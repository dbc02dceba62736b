"""The load balancer of deploy/haproxy before real servers: waiters pass, and a server that ends is left out."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.client.transport import Ask
from dibs.core.limits import LOGIN_FAILURES_MAX
from tests.docs.pages import blocks
from tests.programs import ROOT, WAIT_S_MAX, ServerProcess, reserved_ports, wait_until
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.wire.documents import Reply

CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
PAGE = ROOT / "docs" / "how-to" / "several-servers.md"


@pytest.fixture(scope="module")
def haproxy(need_program: Callable[[str], str]) -> str:
    return need_program("haproxy")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Two on one store, with one token."""
    for name in "ab":
        (tmp_path / name).mkdir()
    trust = ("--trusted-proxy", "127.0.0.1")
    with ServerProcess(tmp_path / "a", flags=trust) as first:
        tokens = str(first.folder / "dibs" / "token")
        with ServerProcess(
            tmp_path / "b", store=first.store_url, flags=("--tokens", tokens, "--drain", "10s", *trust)
        ) as second:
            yield [first, second]


class Balancer:
    """Where the load balancer listens."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def ask(self, verb: str, job: str, *, timeout_ms: int = 30_000, **document: Any) -> Reply:
        """One request, on a connection of its own."""
        transport = connect(self._url, namespace=None, token=self._token, timeout_ms=timeout_ms)
        try:
            return transport.ask(Ask(verb, job, document))
        finally:
            transport.close()

    def claim(self, job: str, **more: Any) -> dict[str, Any]:
        reply = self.ask("acquire", job, owner="a1", ttl_seconds=60, **more)
        assert reply.status == 200, reply.body
        return reply.body or {}

    def answers(self) -> bool:
        return self.ask("inspect", "any", timeout_ms=1_000).status in (200, 404)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_ports(1) as (port,):
        yield port


@pytest.fixture
def balancer(haproxy: str, servers: list[ServerProcess], tmp_path: Path, port: int) -> Iterator[Balancer]:
    config = tmp_path / "haproxy.cfg"
    config.write_text(adapted(CONFIG.read_text(), port, [server.url for server in servers]))
    checked = subprocess.run([haproxy, "-c", "-f", str(config)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen([haproxy, "-db", "-f", str(config)], stderr=subprocess.DEVNULL)
    balancer = Balancer(f"http://127.0.0.1:{port}", servers[0].token)
    try:
        wait_until(balancer.answers, "a server is found to be ready")
        yield balancer
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)


def adapted(text: str, port: int, urls: list[str]) -> str:
    """The file as it is shipped, with these addresses."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("server ")]
    lines += [f"    server dibs-{number} {url.removeprefix('http://')}" for number, url in enumerate(urls)]
    changed, count = re.subn(r"^(\s*bind) :3427$", rf"\1 127.0.0.1:{port}", "\n".join(lines), flags=re.MULTILINE)
    assert count == 1
    return changed + "\n"


def test_the_configuration_for_nginx_is_valid(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    nginx = need_program("nginx")
    (text,) = [each.text for each in blocks(PAGE.read_text()) if each.info == "nginx"]
    text, names = re.subn(r"server dibs-\d:", "server 127.0.0.1:", text)
    assert names == 2
    config = tmp_path / "config"
    config.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{text}}}\n")
    words = [nginx, "-t", "-q", "-c", str(config), "-e", str(tmp_path / "log")]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_waiter_behind_the_load_balancer_is_given_the_job(balancer: Balancer) -> None:
    lease = balancer.claim("job")["lease_id"]
    got: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: got.append(balancer.claim("job", request_key="k2", wait_seconds=20)), daemon=True
    )
    thread.start()
    wait_until(lambda: (balancer.ask("inspect", "job").body or {}).get("waiting"), "somebody is in line")
    assert balancer.ask("release", "job", lease_id=lease).status < 300
    thread.join(WAIT_S_MAX)
    assert [each["status"] for each in got] == ["acquired"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_ends_is_left_out_and_its_leases_go_on_at_the_other(
    balancer: Balancer, servers: list[ServerProcess], how: str
) -> None:
    leases = {f"job-{number}": balancer.claim(f"job-{number}")["lease_id"] for number in range(6)}
    getattr(servers[1], how)()
    wait_until(balancer.answers, "the other server answers")
    for job, lease in leases.items():
        assert balancer.ask("renew", job, lease_id=lease).status == 200
    for number in range(6, 12):
        balancer.claim(f"job-{number}")


def test_no_claim_fails_because_a_server_drains(balancer: Balancer, servers: list[ServerProcess]) -> None:
    held = balancer.claim("job")["lease_id"]
    servers[1].process.terminate()
    direct = Balancer(servers[1].url, servers[0].token)
    wait_until(lambda: direct.ask("acquire", "other", owner="a1").status == 503, "it drains")
    for number in range(40):
        balancer.claim(f"job-{number}", request_key=f"claim-{number}")
    assert balancer.ask("renew", "job", lease_id=held).status == 200


def test_a_server_that_stands_still_is_left_out(balancer: Balancer, servers: list[ServerProcess]) -> None:
    servers[1].pause()
    try:
        # A request sent to the paused server before the load balancer noticed is not answered; later ones are.
        wait_until(lambda: all(balancer.answers() for _ in range(4)), "the other server answers alone")
        balancer.claim("job")
    finally:
        servers[1].resume()


@pytest.mark.fault("F-322")
def test_wrong_logins_of_a_stranger_are_the_strangers(balancer: Balancer, servers: list[ServerProcess]) -> None:
    """Behind the load balancer each client is counted by its own address, whatever it says about itself."""

    def login(source: str, token: str) -> int:
        port = int(balancer._url.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S_MAX, source_address=(source, 0))
        told = {"Content-Type": "application/json", "X-Forwarded-For": "198.51.100.7"}
        try:
            connection.request("POST", "/login", json.dumps({"token": token}), told)
            return connection.getresponse().status
        finally:
            connection.close()

    # Two servers count, each for itself and by the minute, and the balancer need not ask them in turn.
    statuses = [login("127.0.0.5", "guess") for _ in range(6 * LOGIN_FAILURES_MAX)]
    assert statuses[0] == 401
    assert 429 in statuses
    assert login("127.0.0.6", "guess") == 401
    assert login("127.0.0.5", servers[0].token) == 200
