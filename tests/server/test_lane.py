"""The fast lane and the long way give the same bytes, and the lane is taken by what it is for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dibs.server.http.fast_lane import FastLaneProtocol
from tests.server.harness import UNKNOWN_LEASE, masked, read_response, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

AUTH = b"Authorization: Bearer tok-agent\r\n"
JSON = b"Content-Type: application/json\r\n"


def request(method: str, path: str, body: bytes | None = None, head: bytes = AUTH + JSON) -> bytes:
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n%b" % (
        method.encode(),
        path.encode(),
        head,
        length,
        body or b"",
    )


LEASE = b"{lease}"
SCRIPT: list[bytes] = [
    request("GET", "/locks/a"),
    request("POST", "/locks/a/acquire", b'{"ttl_seconds":60,"owner":"agent-7","metadata":"m"}'),
    request("POST", "/locks/a/acquire", b"{}"),
    request("GET", "/locks/a"),
    request("POST", "/locks/a/renew", b'{"lease_id":"%b","checkpoint":"half"}' % LEASE),
    request("POST", "/locks/a/renew", b'{"lease_id":"%b"}' % UNKNOWN_LEASE.encode()),
    request("POST", "/locks/a/release", b'{"lease_id":"%b","done_seconds":9,"result":"ok"}' % LEASE),
    request("POST", "/locks/a/release", b'{"lease_id":"%b"}' % LEASE),
    request("POST", "/locks/a/acquire", b"{}"),
    request("POST", "/locks/a%2Fb%20%F0%9F%90%99/acquire", b"{}"),
    request("POST", "/locks/%zz/acquire", b"{}"),
    request("POST", "/locks/%ff/acquire", b"{}"),
    request("POST", "/locks//acquire", b"{}"),
    request("POST", "/locks/a/b/acquire", b"{}"),
    request("POST", "/locks/acquire", b"{}"),
    request("POST", "/locks/release", b"{}"),
    request("GET", "/locks/"),
    request("POST", "/locks/b/acquire", b"{"),
    request("POST", "/locks/b/acquire", b""),
    request("POST", "/locks/b/acquire"),
    request("POST", "/locks/b/acquire", b'{"ttl_seconds":0}'),
    request("POST", "/locks/b/acquire", b'{"ttl_seconds":"x"}'),
    request("POST", "/locks/b/acquire", b"{}", JSON),
    request("POST", "/locks/b/acquire", b"{}", AUTH),
    request("POST", "/locks/b/acquire", b"{}", b"Authorization: Bearer nobody\r\n" + JSON),
    request("POST", "/locks/b/acquire", b"{}", AUTH + JSON + b"Connection: keep-alive\r\n"),
    request("POST", "/locks/b/acquire", b"{}", AUTH + JSON + b"Idempotency-Key: k\r\n"),
    request("POST", "/locks/b/acquire", b"{}", AUTH + JSON + b"X-Dibs-Namespace: team-b\r\n"),
    request("POST", "/locks/b/acquire?namespace=team-c", b"{}"),
    request("POST", "/locks/b/acquire?", b"{}"),
    request("POST", "/locks/b/acquire#x", b"{}"),
    request("POST", "http://x/locks/b/acquire", b"{}"),
    request("GET", "/locks/b", b"{}"),
    request("PUT", "/locks/b/acquire", b"{}"),
    request("POST", "/locks/b/acquire", b"{}", AUTH + AUTH + JSON),
    request("POST", "/locks/b/acquire", b"{}", AUTH + JSON + b"Upgrade: h2c\r\nConnection: Upgrade\r\n"),
    request("POST", "/locks/b/acquire", b'{"x":"%b"}' % (b"x" * 100_000)),
    request("GET", "/nowhere"),
    request("POST", "/locks/acquire-any", b'{"names":["a","b","c"],"owner":"x"}'),
    request("POST", "/locks/acquire-any", b'{"names":["a","b","c"],"owner":"x"}'),
    request("POST", "/locks/acquire-any", b'{"names":["b","c"]}', AUTH + JSON + b"Idempotency-Key: any\r\n"),
    request("POST", "/locks/acquire-any", b'{"names":[]}'),
    request("POST", "/locks/acquire-any", b'{"names":["d"],"wait_seconds":1}'),
    request("POST", "/locks/acquire-any", b'{"names":["d"]}', JSON),
    request("POST", "/locks/acquire-any?", b'{"names":["d"]}'),
    request("POST", "/locks//acquire-any", b'{"names":["d"]}'),
    request("POST", "/locks/acquire-all", b'{"names":["f","e"]}'),
    request("POST", "/locks/acquire-all", b'{"names":["f","g"]}'),
    request("POST", "/locks/acquire-all", b'{"names":["f","g"],"wait_seconds":1}'),
    request("POST", "/locks/acquire-all", b'{"names":["g","g"]}'),
    request("POST", "/locks/acquire-all/acquire", b"{}"),
    request("GET", "/locks/acquire-all"),
    request("POST", "/locks/b/acquire", b'{"wait_seconds":1,"owner":"w"}'),
    request("POST", "/locks/free/acquire", b'{"wait_seconds":1,"owner":"w"}'),
    request("POST", "/locks/b/acquire", b'{"wait_seconds":9999}'),
    request("POST", "/locks/b/acquire", b'{"wait_seconds":1,"ticket":"1.x.y"}'),
    request("POST", "/locks/b/acquire", b'{"slots":0}'),
    request("POST", "/locks/path%3A..%2Fx/acquire", b"{}"),
    request("POST", "/locks/b/acquire", b'{"session_id":"%b"}' % UNKNOWN_LEASE.encode()),
]


def play(server: Server) -> list[bytes]:
    """What the script is answered, over one connection, with ids and date masked."""
    answers, lease = [], b""
    with server.raw() as connection:
        for sent in SCRIPT:
            connection.sendall(_with_lease(sent, lease))
            status, headers, body, rest = read_response(connection)
            assert rest == b""
            if not lease and b'"lease_id"' in body:
                lease = json.loads(body)["lease_id"].encode()
            head = b"".join(b"%b: %b\r\n" % header for header in headers.items())
            answers.append(masked(b"%d\r\n%b\r\n%b" % (status, head, body)))
    return answers


def _with_lease(sent: bytes, lease: bytes) -> bytes:
    if LEASE not in sent:
        return sent
    head, _, body = sent.partition(b"\r\n\r\n")
    filled = body.replace(LEASE, lease)
    return head.replace(b"Length: %d" % len(body), b"Length: %d" % len(filled)) + b"\r\n\r\n" + filled


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two fresh servers, one on each way, whose clocks stand still at the same time."""
    (tmp_path / "fast").mkdir()
    (tmp_path / "slow").mkdir()
    with running(tmp_path / "fast") as fast, running(tmp_path / "slow", lane=False) as slow:
        yield fast, slow


@pytest.mark.promise("same-answer")
def test_both_ways_answer_the_same_requests_with_the_same_bytes(pair: tuple[Server, Server]) -> None:
    fast, slow = (play(server) for server in pair)
    for sent, quick, comfortable in zip(SCRIPT, fast, slow, strict=True):
        assert quick == comfortable, sent


def test_the_lane_is_taken_by_the_hot_verbs_and_left_by_the_unusual(
    fast: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_way: list[bytes] = []
    original = FastLaneProtocol._use_asgi

    def spy(self: FastLaneProtocol) -> None:
        long_way.append(self.url)
        original(self)

    monkeypatch.setattr(FastLaneProtocol, "_use_asgi", spy)
    lease = fast.lease(name)
    fast.ask("GET", f"/locks/{name}")
    fast.ask("POST", f"/locks/{name}/renew", {"lease_id": lease})
    fast.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
    fast.acquire(name, headers={"Connection": "keep-alive"})
    assert long_way == []
    fast.ask("GET", f"/locks/{name}?namespace=default")
    fast.ask("GET", f"/locks/{name}", headers={"Expect": "100-continue"})
    fast.ask("GET", f"/locks/{name}/history")
    assert len(long_way) == 3
