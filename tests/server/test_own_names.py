"""A server for its own machine: what a foreign page in a browser of that machine can ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.compat.octostore.contract import ORIGINS, OctoStoreContract
from dibs.server.http.browser import OwnNames
from dibs.server.settings import ServerSettings
from tests.server.harness import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

REBOUND = {"Host": "evil.example:3427", "Origin": "http://evil.example:3427"}
FOREIGN = {"Origin": "https://evil.example"}


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "slow"])
def local(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    """As `dibs serve --local-registration` makes it."""
    settings = ServerSettings(local_registration=True)
    with running(tmp_path_factory.mktemp("local"), settings=settings, at_once=request.param) as server:
        server.api.checks_names = True
        yield server


@pytest.mark.fault("F-096")
@pytest.mark.parametrize(
    "path", ["/", "/status", "/healthz", "/locks/x", "/locks", "/nowhere", "/openapi.json", "/elections/x"]
)
@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_page_under_a_name_of_its_own_is_told_nothing(local: Server, path: str, token: str | None) -> None:
    for headers, status in ((REBOUND, 421), ({"Host": "evil.example"}, 421), (FOREIGN, 403)):
        reply = local.ask("GET", path, who=token, headers={**headers, "Accept": "text/html"})
        assert reply.status == status, path
        assert "this machine" in reply.json["details"] or "Origin" in reply.json["details"]


@pytest.mark.fault("F-096")
@pytest.mark.parametrize("token", [None, "wrong", "agent"])
def test_nobody_registers_for_a_foreign_page(local: Server, name: str, token: str | None) -> None:
    for headers in (REBOUND, FOREIGN, {"Host": "evil.example"}, {"Origin": "null"}):
        reply = local.ask("POST", "/auth/register", {"username": name}, who=token, headers=headers)
        assert reply.status in (421, 403)
        assert "token" not in reply.json


@pytest.mark.fault("F-096")
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:3427", "[::1]:1", "app.localhost"])
def test_names_of_this_machine_are_taken(local: Server, name: str, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert local.ask("GET", "/status", who=None, headers=headers).status == 200
    made = local.ask("POST", "/auth/register", {"username": f"{name}-{len(host)}"}, who=None, headers=headers)
    assert made.status == 200


@pytest.mark.fault("F-096")
def test_a_token_is_enough_under_any_name(local: Server, name: str) -> None:
    """A tunnel, a container and a proxy call this machine as they like."""
    headers = {"Host": "host.docker.internal:3427"}
    assert local.acquire(name, headers=headers).json["status"] == "acquired"
    assert local.ask("GET", f"/locks/{name}", headers=headers).json["status"] == "held"
    assert local.ask("GET", "/locks", headers=headers).status == 200


@pytest.mark.fault("F-096")
def test_a_probe_without_a_host_is_answered(local: Server) -> None:
    with local.raw() as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.recv(65536)


@pytest.mark.fault("F-096")
def test_octostores_page_may_ask_with_a_token_and_not_register(tmp_path: Path) -> None:
    settings = ServerSettings(local_registration=True, contract=OctoStoreContract(), cors_origins=ORIGINS)
    with running(tmp_path, settings=settings) as server:
        server.api.names, server.api.checks_names = OwnNames(origins=ORIGINS), True
        for origin, status in (("https://octostore.io", 403), ("http://localhost:3000", 200)):
            headers = {"Origin": origin}
            asked = {"username": f"user-{status}"}
            assert server.ask("POST", "/auth/register", asked, who=None, headers=headers).status == status
            read = server.ask("GET", "/locks", headers=headers)
            assert (read.status, read.headers["access-control-allow-origin"]) == (200, origin)


def test_a_server_behind_a_named_proxy_has_the_proxys_names(tmp_path: Path) -> None:
    settings = ServerSettings(local_registration=True)
    with running(tmp_path, settings=settings, proxies=("127.0.0.1",)) as server:
        headers = {"Host": "dibs.example.com", "X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
        page = server.ask("GET", "/", who=None, headers={**headers, "Accept": "text/html"})
        assert page.status == 200
        asked = server.ask("POST", "/auth/register", {"username": "x"}, who=None, headers=headers)
        assert asked.status == 421  # that is for users of this machine


def test_a_name_that_was_given_is_known() -> None:
    names = OwnNames(["Dibs.Example"])
    assert names.knows(b"dibs.example:443")
    assert not any(names.knows(host) for host in (b"example", b"", b"[", b"localhost.evil.example"))
    for number in range(1000):  # what strangers send is not kept without end
        assert not names.knows(b"evil-%d.example" % number)
    assert len(names._known) <= 256
