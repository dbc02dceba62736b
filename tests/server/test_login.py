"""A browser's login: the cookie is a credential for pages of this server, and for nothing else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.limits import LOGIN_FAILURES_MAX, PUBLIC_REQUESTS_MS, TOKEN_CHARS_MAX
from dibs.server.http.browser import REFUSED, cookie_for, with_credential
from tests.docs.test_http_page import wrong_in
from tests.server.harness import TOKENS, read_response, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.harness import Response, Server

OWN = {"Sec-Fetch-Site": "same-origin"}
CHANGE = {**OWN, "X-Dibs-Request": "1"}
COOKIE = {"Cookie": "dibs_token=tok-operator"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: failed logins are counted by address, and other tests have the same."""
    with running(tmp_path_factory.mktemp("login")) as server:
        yield server


def login(server: Server, token: object, **headers: str) -> Response:
    return server.ask("POST", "/login", {"token": token}, who=None, headers=headers)


def whoami(server: Server, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.ask("GET", "/whoami", who=None, headers=named)


def test_a_token_becomes_a_cookie_that_scripts_cannot_read(served: Server) -> None:
    reply = login(served, TOKENS["scoped"])
    assert reply.status == 200
    assert reply.json == {"principal": "scoped", "role": "agent", "namespace": "team-a"}
    assert list(wrong_in("whoami", reply.json)) == []
    assert reply.headers["set-cookie"] == "dibs_token=tok-scoped; Path=/; HttpOnly; SameSite=Strict"
    assert reply.headers["cache-control"] == "no-store"
    sent = reply.headers["set-cookie"].partition(";")[0]
    assert whoami(served, Cookie=sent, **OWN).json == reply.json
    assert served.ask("GET", "/whoami", who="scoped").json == reply.json


def test_over_tls_only_this_host_can_set_the_cookie() -> None:
    assert cookie_for("t", "https") == "__Host-dibs_token=t; Path=/; HttpOnly; SameSite=Strict; Secure"


def test_a_token_of_the_store_says_when_it_ends_and_revoking_it_ends_the_login(served: Server) -> None:
    made = served.ask("POST", "/tokens", {"name": "eve", "expires_seconds": 3600}, who="admin").json
    reply = login(served, f" {made['token']}\n")
    assert reply.json["expires_at"] == made["expires_at"]
    cookie = reply.headers["set-cookie"].partition(";")[0]
    assert whoami(served, Cookie=cookie, **OWN).json["principal"] == "eve"
    served.ask("DELETE", "/tokens/eve", who="admin")
    stale = whoami(served, Cookie=cookie, **OWN)
    assert (stale.status, stale.json["code"]) == (401, "authentication_failed")


def test_a_cookie_claims_and_breaks_like_the_token(served: Server, name: str) -> None:
    reply = served.acquire(name, who=None, headers=COOKIE | CHANGE)
    assert reply.json["status"] == "acquired"
    assert served.ask("GET", f"/locks/{name}", who=None, headers=COOKIE | OWN).json["status"] == "held"
    broken = served.ask("POST", f"/locks/{name}/break", {"reason": "r"}, who=None, headers=COOKIE | CHANGE)
    assert broken.status == 200
    page = served.ask("GET", "/events", who=None, headers=COOKIE | OWN)
    assert page.status == 200


def test_a_stream_of_events_takes_the_cookie(served: Server) -> None:
    with served.raw() as connection:
        connection.sendall(
            b"GET /events?follow=true HTTP/1.1\r\nHost: x\r\nCookie: a=b; dibs_token=tok-viewer\r\n"
            b"Sec-Fetch-Site: same-origin\r\nAccept: text/event-stream\r\n\r\n"
        )
        status, headers, _, _ = read_response(connection)
    assert (status, headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")


# Each is a request that another site can make a browser send, or that no browser sends.
NOT_OURS: dict[str, dict[str, str]] = {
    "another site": {"Sec-Fetch-Site": "cross-site"},
    "another port of this host": {"Sec-Fetch-Site": "same-site"},
    "another site, with the mark": {"Sec-Fetch-Site": "cross-site", "X-Dibs-Request": "1"},
    "another origin": {"Origin": "http://evil.example"},
    "another origin, with the mark": {"Origin": "http://evil.example", "X-Dibs-Request": "1"},
    "a sandboxed page": {"Origin": "null", "X-Dibs-Request": "1"},
    "an origin that disagrees": {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
    "a link from elsewhere": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "no word about its origin": {},
    "not a page": {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "cors"},
}


@pytest.mark.promise("auth:cookie")
@pytest.mark.parametrize("headers", NOT_OURS.values(), ids=NOT_OURS)
@pytest.mark.parametrize("change", [False, True], ids=["read", "change"])
def test_a_cookie_does_not_count_in_requests_of_others(
    served: Server, name: str, headers: dict[str, str], change: bool
) -> None:
    if change:
        reply = served.acquire(name, who=None, headers=COOKIE | headers)
    else:
        reply = served.ask("GET", f"/locks/{name}", who=None, headers=COOKIE | headers)
    assert (reply.status, reply.json["code"]) == (401, "authentication_required")
    assert served.ask("GET", f"/locks/{name}").json["status"] == "free"


@pytest.mark.promise("auth:cookie")
@pytest.mark.parametrize(
    "headers", [OWN, {"Origin": "http://HOST"}, {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}]
)
def test_a_change_needs_the_mark_that_no_form_can_send(served: Server, name: str, headers: dict[str, str]) -> None:
    headers = {key: value.replace("HOST", f"127.0.0.1:{served.port}") for key, value in headers.items()}
    assert whoami(served, **COOKIE, **headers).status == 200
    refused = served.acquire(name, who=None, headers=COOKIE | headers)
    assert refused.status == 401
    if "none" not in headers.values():
        assert "X-Dibs-Request" in refused.json["details"]
        assert served.acquire(name, who=None, headers=COOKIE | headers | {"X-Dibs-Request": "1"}).status == 200
    form = {**COOKIE, **headers, "Content-Type": "application/x-www-form-urlencoded"}
    assert served.ask("POST", f"/locks/{name}/acquire", b"a=b", who=None, headers=form).status == 415
    assert served.ask("POST", f"/locks/{name}/free", b"", who=None, headers=form).status == 401


def test_a_read_over_plain_http_has_neither_header_and_needs_the_mark(served: Server) -> None:
    assert whoami(served, **COOKIE, **{"X-Dibs-Request": "1"}).status == 200


BAD_COOKIES = {
    "stale": "dibs_token=tok-of-yesterday",
    "two of one name": "dibs_token=tok-operator; dibs_token=tok-operator",
    "empty": "dibs_token=",
    "no value": "dibs_token",
    "another name": "dibs=tok-operator; xdibs_token=tok-operator; DIBS_TOKEN=tok-operator",
    "the name over TLS": "__Host-dibs_token=tok-operator",
    "oversized": "dibs_token=" + "x" * (3 * TOKEN_CHARS_MAX + 1),
    "bytes": "dibs_token=%00%ff%0d%0a",
    "quoted": 'dibs_token="tok-operator"',
}


@pytest.mark.parametrize("cookie", BAD_COOKIES.values(), ids=BAD_COOKIES)
def test_a_bad_cookie_is_no_credential(served: Server, cookie: str) -> None:
    reply = whoami(served, Cookie=cookie, **OWN)
    assert reply.status == 401
    assert "tok-" not in reply.body.decode()


def test_a_cookie_larger_than_a_head_is_refused_and_the_next_request_is_served(served: Server) -> None:
    with served.raw() as connection:
        connection.sendall(b"GET /whoami HTTP/1.1\r\nHost: x\r\nCookie: dibs_token=" + b"x" * 70_000 + b"\r\n\r\n")
        assert read_response(connection)[0] == 431
    assert served.ask("GET", "/whoami").status == 200


def test_headers_that_come_twice_prove_nothing() -> None:
    for repeated in (b"cookie", b"origin", b"sec-fetch-site", b"x-dibs-request", b"host"):
        sent = [
            (b"host", b"h"),
            (b"cookie", b"dibs_token=t"),
            (b"sec-fetch-site", b"same-origin"),
            (b"x-dibs-request", b"1"),
            (b"origin", b"http://h"),
        ]
        headers = dict(sent)
        with_credential("POST", "http", headers, sent)
        assert headers.pop(b"authorization") == b"Bearer t"
        with_credential("POST", "http", headers, [*sent, (repeated, b"1")])
        assert b"authorization" not in headers
        assert REFUSED in headers


def test_an_authorization_header_is_the_only_credential_if_there_is_one(served: Server) -> None:
    assert whoami(served, **COOKIE, **OWN, Authorization="Bearer wrong").status == 401
    assert whoami(served, **COOKIE, **OWN, Authorization="Bearer tok-agent").json["principal"] == "agent"


def test_mcp_takes_no_cookie(served: Server) -> None:
    headers = {**COOKIE, **CHANGE, "Accept": "application/json, text/event-stream"}
    assert served.ask("POST", "/mcp", {}, who=None, headers=headers).status == 401


def test_over_tls_a_plain_page_of_the_same_host_is_another_origin() -> None:
    for origin, counts in ((b"https://h", True), (b"http://h", False)):
        headers = {b"host": b"h", b"cookie": b"__Host-dibs_token=t", b"origin": origin}
        with_credential("GET", "https", headers, ())
        assert (b"authorization" in headers) is counts


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_another_site_cannot_log_a_browser_in(served: Server, headers: dict[str, str], status: int) -> None:
    reply = served.ask("POST", "/login", {"token": "tok-agent"}, who=None, headers=headers)
    assert reply.status == status
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"token": "\ud800"}, 400),
        ({"token": "ü\u2028"}, 401),
        ({"token": ""}, 401),
        ({"token": 1}, 422),
        ({"token": "x" * (TOKEN_CHARS_MAX + 1)}, 400),
    ],
)
def test_a_login_without_a_token_is_refused(served: Server, body: dict[str, Any], status: int) -> None:
    assert served.ask("POST", "/login", body, who=None).status == status


def test_logging_out_clears_the_cookie_even_a_stale_one(served: Server) -> None:
    reply = served.ask("POST", "/logout", who=None, headers={"Cookie": "dibs_token=old", **CHANGE})
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["set-cookie"] == "dibs_token=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict"
    for headers in (OWN, {"X-Dibs-Request": "1", "Origin": "http://evil.example"}, {}):
        refused = served.ask("POST", "/logout", who=None, headers=headers)
        assert refused.status == 403
        assert "set-cookie" not in refused.headers


@pytest.mark.fault("F-322")
def test_failed_logins_have_to_wait_and_the_token_is_in_no_log(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(tmp_path) as server:
        for _ in range(LOGIN_FAILURES_MAX):
            assert login(server, "tok-guess").status == 401
        limited = login(server, "tok-guess")
        assert (limited.status, limited.json["code"]) == (429, "rate_limited")
        assert 1 <= int(limited.headers["retry-after"]) <= PUBLIC_REQUESTS_MS // 1000
        assert login(server, "tok-agent").status == 200
    assert "tok-" not in caplog.text
