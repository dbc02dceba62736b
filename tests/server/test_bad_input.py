"""What is refused, with which status and code, in which order; and that it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.limits import BODY_BYTES_MAX, STRANGERS_BODY_BYTES_MAX
from tests.server.harness import JSON, UNKNOWN_LEASE, read_response
from tests.server.test_contract import assert_error

if TYPE_CHECKING:
    from tests.server.harness import Server


def nested(depth: int) -> bytes:
    return b'{"x":' + b"[" * depth + b"]" * depth + b"}"


BODIES: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, "invalid_input"),
    ("cut off", b'{"ttl_seconds":', 400, "invalid_input"),
    ("two documents", b"{}{}", 400, "invalid_input"),
    ("not UTF-8", b'{"owner":"\xff"}', 400, "invalid_input"),
    ("a byte order mark", b"\xef\xbb\xbf{}", 400, "invalid_input"),
    ("half a surrogate pair", b'{"owner":"\\ud800"}', 400, "invalid_input"),
    ("NaN", b'{"ttl_seconds":NaN}', 400, "invalid_input"),
    ("Infinity", b'{"ttl_seconds":Infinity}', 400, "invalid_input"),
    ("a number beyond a float", b'{"ttl_seconds":1e999}', 400, "invalid_input"),
    ("a number of a million digits", b'{"x":' + b"9" * 1_000_000 + b"}", 400, "invalid_input"),
    ("a field twice", b'{"ttl_seconds":5,"ttl_seconds":50}', 400, "invalid_input"),
    ("a field twice inside", b'{"acl":{"acquire":["user:a"],"acquire":["user:b"]}}', 400, "invalid_input"),
    ("nested 65 deep", nested(65), 400, "invalid_input"),
    ("nested 5000 deep", nested(5_000), 400, "invalid_input"),
    ("nested 900000 deep", nested(900_000), 400, "invalid_input"),
    ("a list", b"[]", 422, "invalid_input"),
    ("null", b"null", 422, "invalid_input"),
    ("text", b'"x"', 422, "invalid_input"),
    ("a ttl as text", b'{"ttl_seconds":"60"}', 422, "invalid_input"),
    ("a ttl below zero", b'{"ttl_seconds":-1}', 422, "invalid_input"),
    ("a ttl with a fraction", b'{"ttl_seconds":1.5}', 422, "invalid_input"),
    ("a ttl of true", b'{"ttl_seconds":true}', 422, "invalid_input"),
    ("a huge ttl", b'{"ttl_seconds":99999999999999999999999999}', 422, "invalid_input"),
    ("metadata that is no text", b'{"metadata":{}}', 422, "invalid_input"),
    ("a lease id that is not one", b'{"lease_id":"x"}', 422, "invalid_input"),
    ("an acl that is no object", b'{"acl":[]}', 422, "invalid_input"),
    ("a ttl of zero", b'{"ttl_seconds":0}', 400, "invalid_ttl"),
    ("a ttl of a day and a second", b'{"ttl_seconds":86401}', 400, "invalid_ttl"),
    ("metadata of 1025 characters", b'{"metadata":"' + b"x" * 1025 + b'"}', 400, "invalid_input"),
    ("a request key that is empty", b'{"request_key":""}', 400, "invalid_input"),
    ("a lock delay of an hour", b'{"lock_delay_seconds":3600}', 400, "invalid_input"),
    ("ephemeral without a session", b'{"ephemeral":true}', 400, "invalid_input"),
    ("an acl without entries", b'{"acl":{"acquire":[]}}', 400, "invalid_input"),
    ("an acl entry of another kind", b'{"acl":{"acquire":["group:x"]}}', 400, "invalid_input"),
]


@pytest.mark.parametrize(("body", "status", "code"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_a_bad_body_is_refused_with_its_own_code(
    server: Server, name: str, body: bytes, status: int, code: str
) -> None:
    assert_error(server.ask("POST", f"/locks/{name}/acquire", body, headers=JSON), status, code)
    assert server.ask("GET", f"/locks/{name}").json["fencing_token"] == 0


@pytest.mark.parametrize(
    "body",
    [b'{"x":' + b"[" * 63 + b"]" * 63 + b"}", b'{"metadata":"' + b"[" * 99 + b'"}', b' {"x": {"a": 1}} '],
)
def test_what_looks_deep_but_is_not_is_served(server: Server, name: str, body: bytes) -> None:
    assert server.ask("POST", f"/locks/{name}/acquire", body, headers=JSON).status == 200


def test_unknown_fields_and_nulls_are_ignored(server: Server, name: str) -> None:
    reply = server.acquire(name, {"surprise": [1, {"a": 2}], "metadata": None, "ttl_seconds": None})
    assert (reply.status, reply.json["remaining_ms"]) == (200, 60_000)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (None, 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonp", 415),
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/problem+json", 200),
    ],
)
def test_a_body_must_say_that_it_is_json(server: Server, name: str, kind: str | None, status: int) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    reply = server.ask("POST", f"/locks/{name}/acquire", b"{}", headers=headers)
    if status == 200:
        assert reply.status == 200
    else:
        assert_error(reply, 415, "invalid_input")


def test_a_body_beyond_the_limit_is_413_whether_or_not_its_length_is_given(server: Server, name: str) -> None:
    body = b'{"x":"' + b"x" * BODY_BYTES_MAX + b'"}'
    assert_error(server.ask("POST", f"/locks/{name}/acquire", body, headers=JSON), 413, "invalid_input")
    chunks: Any = iter([body[: len(body) // 2], body[len(body) // 2 :]])  # http.client sends these chunked
    assert_error(server.ask("POST", f"/locks/{name}/acquire", chunks, headers=JSON), 413, "invalid_input")
    just_fits = b'{"x":"' + b"x" * (BODY_BYTES_MAX - 8) + b'"}'
    assert server.ask("POST", f"/locks/{name}/acquire", just_fits, headers=JSON).status == 200


@pytest.mark.promise("bounded-connection")
@pytest.mark.parametrize("who", [None, "nobody"])
def test_a_large_body_of_a_stranger_is_refused_before_it_is_whole(server: Server, name: str, who: str | None) -> None:
    token = f"Authorization: Bearer {who}\r\n" if who else ""
    head = f"POST /locks/{name}/acquire HTTP/1.1\r\nHost: x\r\n{token}Content-Type: application/json\r\n"
    with server.raw() as connection:
        connection.sendall(f"{head}Content-Length: {BODY_BYTES_MAX}\r\n\r\n".encode())
        connection.sendall(b"x" * (2 * STRANGERS_BODY_BYTES_MAX))  # and the rest never comes
        assert read_response(connection)[0] == 401


NAMES: list[tuple[str, str, int, str]] = [
    ("empty", "", 400, "invalid_lock_name"),
    ("513 bytes", "x" * 513, 400, "invalid_lock_name"),
    ("a control character", "a%00b", 400, "invalid_lock_name"),
    ("a line feed", "a%0Ab", 400, "invalid_lock_name"),
    ("not UTF-8", "%ff", 400, "invalid_lock_name"),
    ("half a surrogate pair", "%ed%a0%80", 400, "invalid_lock_name"),
    ("a percent sign alone", "100%", 400, "invalid_lock_name"),
    ("a percent sign and letters", "%zz", 400, "invalid_lock_name"),
    ("a blank at the end", "a%20", 400, "invalid_lock_name"),
    ("a direction override", "a%E2%80%AEb", 400, "invalid_lock_name"),
    ("a slash", "a/b", 404, "not_found"),
]


@pytest.mark.parametrize(("raw", "status", "code"), [row[1:] for row in NAMES], ids=[row[0] for row in NAMES])
def test_a_bad_name_is_refused(server: Server, raw: str, status: int, code: str) -> None:
    for verb in ("acquire", "renew", "release"):
        reply = server.ask("POST", f"/locks/{raw}/{verb}", {"lease_id": UNKNOWN_LEASE})
        assert_error(reply, status, code)
    assert_error(server.ask("GET", f"/locks/{raw}"), status, code)


def test_a_name_of_512_bytes_is_served(server: Server) -> None:
    assert server.ask("GET", "/locks/" + "x" * 512).status == 200


AUTH: list[tuple[str, str | None, str, str]] = [
    ("none", None, "authentication_required", "Authorization header required"),
    ("another scheme", "Basic dG9rOnRvaw==", "authentication_required", "Authorization header required"),
    ("another case", "bearer tok-agent", "authentication_required", "Authorization header required"),
    ("unknown", "Bearer nobody", "authentication_failed", "Authentication failed"),
    ("empty", "Bearer ", "authentication_required", "Authorization header required"),
    ("a part of one", "Bearer tok-agen", "authentication_failed", "Authentication failed"),
    ("not text", "Bearer tok-\xff", "authentication_failed", "Authentication failed"),
]


@pytest.mark.parametrize(("header", "code", "title"), [row[1:] for row in AUTH], ids=[row[0] for row in AUTH])
def test_without_a_known_token_nothing_is_answered(
    server: Server, name: str, header: str | None, code: str, title: str
) -> None:
    headers = {} if header is None else {"Authorization": header}
    asked: list[tuple[str, str, Any]] = [
        ("POST", f"/locks/{name}/acquire", {}),
        ("GET", f"/locks/{name}", None),
        ("GET", "/locks", None),
        ("GET", f"/locks/{name}/history", None),
        ("PUT", f"/locks/{name}/acl", {"acl": {"acquire": ["user:x"]}}),
    ]
    for method, path, body in asked:
        reply = server.ask(method, path, body, who=None, headers=headers)
        assert assert_error(reply, 401, code)["error"] == title
        assert "tok-" not in reply.body.decode()
    if code == "authentication_required":
        reply = server.ask("GET", "/locks", who=None, headers=headers)
        assert reply.json["details"] == "Bearer token required"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"{}", {}, 415),
        (b'{"ttl_seconds":"x"}', JSON, 422),
        (b"x" * (BODY_BYTES_MAX + 1), JSON, 413),
        (b'{"ttl_seconds":0}', JSON, 401),
    ],
)
def test_the_body_is_looked_at_before_the_token_and_its_meaning_after(
    server: Server, name: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert server.ask("POST", f"/locks/{name}/acquire", body, who=None, headers=headers).status == status


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/locks/a/b/c", 404, "not_found"),
        ("POST", "/locks/a/steal", 404, "not_found"),
        ("GET", "/locks/a/acquire", 405, "invalid_input"),
        ("DELETE", "/locks/a", 405, "invalid_input"),
        ("POST", "/locks", 405, "invalid_input"),
        ("OPTIONS", "/locks/a/acquire", 405, "invalid_input"),
        ("POST", "/health", 405, "invalid_input"),
    ],
)
def test_an_address_or_method_that_is_not_served_says_so_in_the_same_words(
    server: Server, method: str, path: str, status: int, code: str
) -> None:
    reply = server.ask(method, path)
    assert_error(reply, status, code)
    if status == 405:
        assert reply.headers["allow"]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=99999999",
        "limit=%d9%a1",
        "limit=1&limit=2",
        "prefix=%ff",
        "prefix=%zz",
    ],
)
def test_a_bad_query_is_refused(server: Server, query: str) -> None:
    assert_error(server.ask("GET", f"/locks?{query}"), 400, "invalid_input")


@pytest.mark.parametrize("query", ["limit=0", "after=-1", "after=x", "after=" + "9" * 30])
def test_a_bad_query_for_history_is_refused(server: Server, query: str) -> None:
    assert_error(server.ask("GET", f"/locks/x/history?{query}"), 400, "invalid_input")


def test_a_prefix_that_no_name_can_have_is_refused(server: Server) -> None:
    assert_error(server.ask("GET", "/locks?prefix=%00"), 400, "invalid_lock_name")
    assert_error(server.ask("GET", "/locks?prefix=" + "x" * 513), 400, "invalid_lock_name")


@pytest.mark.fault("F-101")
def test_a_long_query_is_refused_before_it_is_taken_apart(server: Server) -> None:
    nonce = "00000000-0000-4000-8000-000000000000"
    for query in ("a=%41&" * 1_000 + "b=1", "a=" + "%41" * 20_000, "&".join(f"a{n}=1" for n in range(40))):
        for path in ("/proof", "/locks"):
            reply = server.ask("GET", f"{path}?nonce={nonce}&{query}", who="agent")
            assert (reply.status, reply.json["code"]) == (400, "invalid_input")
    longest = "prefix=" + "%F0%9F%90%99" * 128  # the longest name, with every byte encoded
    assert server.ask("GET", f"/locks?{longest}").status == 200
