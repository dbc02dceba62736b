"""Proxies: their word about a client counts, nobody else's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.core.limits import LOGIN_FAILURES_MAX
from dibs.server.http.admission import Admission, TrustedProxies, forwarded_scheme
from tests.server.harness import read_response, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.harness import Server

pytestmark = pytest.mark.full

PROXY = "10.0.0.2"
PROXIES = TrustedProxies([PROXY, "192.168.7.0/24", "fd00::/16"])
FAR, NEAR = "203.0.113.9", "198.51.100.4"


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([], PROXY),
        ([FAR], FAR),
        ([f"{FAR}, {NEAR}"], NEAR),  # what is left of the first stranger is the stranger's word
        ([f"{FAR}, 192.168.7.1"], FAR),
        ([FAR, "192.168.7.1"], FAR),  # the header may come twice
        (["192.168.7.9, 192.168.7.1"], "192.168.7.9"),
        ([f"{FAR}:4711"], FAR),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["::ffff:203.0.113.9"], FAR),
        ([f"{FAR}, unknown"], PROXY),
        ([f"{FAR}, 192.168.7.1, <script>"], PROXY),
        ([""], PROXY),
        ([f"{FAR},"], PROXY),
        (["203.0.113.9 203.0.113.8"], PROXY),
    ],
)
def test_the_client_is_the_last_hop_that_is_not_a_proxy(lines: list[str], client: str) -> None:
    headers = [(b"x-forwarded-for", line.encode()) for line in lines]
    assert PROXIES.client(PROXY, headers) == client


@pytest.mark.parametrize(
    ("lines", "scheme"),
    [
        ([], "http"),
        (["https"], "https"),
        (["http, HTTPS"], "https"),
        (["https", "http"], "http"),
        (["x"], "http"),
    ],
)
def test_the_scheme_is_the_nearest_proxys_word(lines: list[str], scheme: str) -> None:
    assert forwarded_scheme([(b"x-forwarded-proto", line.encode()) for line in lines], "http") == scheme


@pytest.mark.parametrize(
    "word", ["", "proxy.example", "10.0.0.0/33", "10.0.0.1/24", "0.0.0.0/0", "::/0", "10.0.0.1:80"]
)
def test_a_proxy_is_an_address_or_a_network(word: str) -> None:
    with pytest.raises(InvalidInput):
        TrustedProxies([word])


def test_a_proxy_on_a_unix_socket_is_trusted_only_if_it_is_named() -> None:
    assert TrustedProxies(["unix"]).trusts("user 33")
    assert not PROXIES.trusts("user 33")
    assert not TrustedProxies(["unix"]).trusts(PROXY)
    assert not TrustedProxies()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    proxies = ("127.0.0.2",)
    admission = Admission(100, 3, proxies=TrustedProxies(proxies))
    folder = tmp_path_factory.mktemp("proxies")
    with running(folder, proxies=proxies, admission=admission, access_log=True) as server:
        yield server


def ask(
    server: Server, source: str, client: str, path: str = "/whoami", body: bytes = b"", more: str = ""
) -> tuple[int, dict[bytes, bytes]]:
    with server.raw_from(source) as connection:
        method = "POST" if body else "GET"
        connection.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: board.example\r\nX-Forwarded-For: {client}\r\n"
            f"X-Forwarded-Proto: https\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{more}\r\n".encode()
            + body
        )
        return read_response(connection)[:2]


def test_failed_logins_count_for_the_client_behind_a_proxy(served: Server) -> None:
    guess, good = b'{"token": "guess"}', b'{"token": "tok-agent"}'
    for _ in range(LOGIN_FAILURES_MAX):
        assert ask(served, "127.0.0.2", FAR, "/login", guess)[0] == 401
    assert ask(served, "127.0.0.2", FAR, "/login", guess)[0] == 429
    assert ask(served, "127.0.0.2", NEAR, "/login", guess)[0] == 401
    # Without a proxy the header is ignored: another name every time does not help.
    for number in range(LOGIN_FAILURES_MAX):
        assert ask(served, "127.0.0.3", f"203.0.113.{number}", "/login", guess)[0] == 401
    assert ask(served, "127.0.0.3", NEAR, "/login", guess)[0] == 429
    assert ask(served, "127.0.0.3", NEAR, "/login", good)[0] == 200


def test_a_login_over_https_at_the_proxy_makes_a_secure_cookie(served: Server) -> None:
    body = b'{"token": "tok-agent"}'
    _, headers = ask(served, "127.0.0.2", NEAR, "/login", body, "Origin: https://board.example\r\n")
    assert headers[b"set-cookie"].startswith(b"__Host-dibs_token=tok-agent;")
    _, headers = ask(served, "127.0.0.4", NEAR, "/login", body)
    assert headers[b"set-cookie"].startswith(b"dibs_token=tok-agent;")
    cookie = "Cookie: __Host-dibs_token=tok-agent\r\nSec-Fetch-Site: same-origin\r\n"
    assert ask(served, "127.0.0.2", NEAR, more=cookie)[0] == 200
    assert ask(served, "127.0.0.4", NEAR, more=cookie)[0] == 401


def test_a_proxy_has_no_bound_of_its_own_and_others_keep_theirs(served: Server) -> None:
    proxied = [served.raw_from("127.0.0.2") for _ in range(8)]
    others = [served.raw_from("127.0.0.5") for _ in range(4)]
    try:
        assert others[0].recv(1) == b""  # one too many, and it showed no token
        for connection in proxied:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_response(connection)[0] == 200
    finally:
        for connection in (*proxied, *others):
            connection.close()


def test_the_log_has_the_client_behind_the_proxy(served: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs.request")
    ask(served, "127.0.0.2", FAR, "/healthz")
    ask(served, "127.0.0.3", FAR, "/healthz")
    wait_until(
        lambda: {FAR, "127.0.0.3"} <= {record.getMessage().split()[0] for record in caplog.records},
        "both are in the log",
    )
