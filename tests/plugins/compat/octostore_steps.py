"""What is asked of a server that answers as OctoStore does: the same requests, in the same order, of the real one and
of dibs. The answers of the real one are recorded in octostore_answers.json.
"""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

TOKENS = {"alice": "tok-a", "bob": "tok-b"}
STATIC_TOKENS = ",".join(f"{name}:{token}" for name, token in TOKENS.items())
ADMIN_KEY = "adm"
NIL = "00000000-0000-0000-0000-000000000000"
HEADERS = ("allow", "retry-after", "cache-control", "access-control-allow-origin", "access-control-expose-headers")
# Fields whose numbers differ from run to run.
MEASURED = (
    *("ttl_remaining_seconds", "total_acquires", "total_releases", "total_expirations", "total_requests"),
    *("uptime_seconds", "requests_per_second", "db_size_bytes", "memory_bytes", "count", "errors"),
)
STATISTICS = ("avg", "min", "max", "p50", "p95", "p99")
PREFLIGHT = ("access-control-allow-methods", "access-control-max-age")


def ask(method: str, path: str, body: Any = None, who: str | None = "alice", **more: Any) -> dict[str, Any]:
    """`keep`: names for fields of the answer, which later steps use as {name}."""
    return {"method": method, "path": path, "body": body, "who": who, **more}


def passes(ms: int) -> dict[str, Any]:
    return {"pass_ms": ms}


def _claims() -> list[dict[str, Any]]:
    return [
        ask("GET", "/locks/none"),
        ask("POST", "/locks/l1/acquire", {"ttl_seconds": 5, "metadata": "m"}, keep={"lease_id": "one"}),
        ask("POST", "/locks/l1/acquire", {"ttl_seconds": 50, "metadata": "n"}),
        ask("POST", "/locks/l1/acquire", {"ttl_seconds": 1}),
        ask("GET", "/locks/l1"),
        ask("GET", "/locks/none"),
        ask("POST", "/locks/l1/acquire", {}, "bob"),
        ask("POST", "/locks/l1/acquire", {}, "admin"),
        ask("POST", "/locks/l1/renew", {"lease_id": "{one}"}, "bob"),
        ask("POST", "/locks/l1/renew", {"lease_id": "{one}"}, "admin"),
        ask("POST", "/locks/l1/renew", {"lease_id": NIL}),
        ask("POST", "/locks/l1/renew", {"lease_id": "{one}", "ttl_seconds": 10}),
        ask("POST", "/locks/l1/renew", {"lease_id": "{one}"}),
        ask("POST", "/locks/l1/renew", {"lease_id": "{one}", "ttl_seconds": 0}),
        ask("POST", "/locks/l1/release", {"lease_id": "{one}"}, "bob"),
        ask("POST", "/locks/l1/release", {"lease_id": "{one}"}),
        ask("POST", "/locks/l1/release", {"lease_id": "{one}"}),
        ask("POST", "/locks/l1/renew", {"lease_id": "{one}"}),
        ask("POST", "/locks/l1/acquire", {}, "bob", keep={"lease_id": "two"}),
        ask("POST", "/locks/l1/release", {"lease_id": "{one}"}),
        ask("POST", "/locks/none/release", {"lease_id": NIL}),
        ask("POST", "/locks/short/acquire", {"ttl_seconds": 1}, keep={"lease_id": "short"}),
        passes(1_600),
        ask("POST", "/locks/short/renew", {"lease_id": "{short}"}),
        ask("POST", "/locks/short/release", {"lease_id": "{short}"}),
        ask("POST", "/locks/short/acquire", {}, "bob"),
        ask("GET", "/locks"),
        ask("GET", "/locks?prefix=l"),
        ask("GET", "/locks?prefix=zz", who="bob"),
    ]


def _delays() -> list[dict[str, Any]]:
    return [
        ask("POST", "/locks/d1/acquire", {"lock_delay_seconds": 2}, keep={"lease_id": "d1"}),
        ask("POST", "/locks/d1/release", {"lease_id": "{d1}"}),
        ask("POST", "/locks/d1/acquire", {}),
        ask("POST", "/locks/d1/acquire", {}, "bob"),
        ask("GET", "/locks/d1"),
        passes(2_500),
        ask("POST", "/locks/d1/acquire", {}, "bob"),
    ]


def _sessions() -> list[dict[str, Any]]:
    session = "/sessions/{s}"
    return [
        ask("POST", "/sessions", {"ttl_seconds": 1}, keep={"session_id": "s"}),
        ask("POST", "/sessions", {"ttl_seconds": 100_000}),
        ask("POST", "/sessions", {}),
        ask("POST", "/sessions", {"ttl_seconds": "long"}),
        ask(
            "POST",
            "/locks/e1/acquire",
            {"session_id": "{s}", "ephemeral": True, "lock_delay_seconds": 1},
            keep={"lease_id": "e1"},
        ),
        ask("POST", "/locks/e1/acquire", {"session_id": "{s}", "ephemeral": True}),
        ask("POST", "/locks/e1/acquire", {"session_id": "{s}"}),
        ask("POST", "/locks/e1/acquire", {}),
        ask("POST", "/locks/e2/acquire", {"session_id": "{s}"}, keep={"lease_id": "e2"}),
        ask("POST", "/locks/e2/acquire", {}),
        ask("GET", session),
        ask("GET", session, who="bob"),
        ask("POST", f"{session}/keepalive"),
        ask("POST", f"{session}/keepalive", who="bob"),
        ask("POST", "/locks/e1/renew", {"lease_id": "{e1}"}, "bob"),
        ask("POST", "/locks/e1/release", {"lease_id": "{e1}"}, "bob"),
        ask("POST", "/locks/e1/renew", {"lease_id": "{e1}", "ttl_seconds": 100}),
        ask("DELETE", session, who="bob"),
        ask("DELETE", session),
        ask("DELETE", session),
        ask("POST", f"{session}/keepalive"),
        ask("GET", session),
        ask("POST", "/locks/e1/acquire", {}),
        ask("GET", "/locks/e2"),
        ask("POST", "/locks/e2/release", {"lease_id": "{e2}"}),
        ask("POST", "/locks/e3/acquire", {"session_id": "{s}", "ephemeral": True}),
        ask("POST", "/locks/e3/acquire", {"session_id": NIL}),
        ask("GET", "/sessions/nonsense"),
        ask("GET", "/sessions/%7B{s}%7D"),
    ]


def _lists() -> list[dict[str, Any]]:
    acl = {"acquire": ["user:Alice", "token:zz"]}
    return [
        ask("POST", "/locks/a1/acquire", {"acl": acl}, keep={"lease_id": "a1"}),
        ask("GET", "/locks/a1"),
        ask("POST", "/locks/a1/acquire", {"acl": {"acquire": ["token:zz", "user:alice"]}}),
        ask("POST", "/locks/a1/acquire", {"acl": {"acquire": ["user:bob"]}}),
        ask("POST", "/locks/a1/acquire", {}, "bob"),
        ask("POST", "/locks/a1/acquire", {}, "admin"),
        ask("PUT", "/locks/a1/acl", {"acl": {"acquire": ["user:bob"]}}, "bob"),
        ask("PUT", "/locks/a1/acl", {"acl": {"acquire": ["user:bob"]}}),
        ask("PUT", "/locks/a1/acl", {"acl": {"acquire": []}}),
        ask("PUT", "/locks/a1/acl", {"acl": {"acquire": ["bob"]}}),
        ask("PUT", "/locks/a1/acl", {"acl": {"acquire": ["user:bo_b"]}}),
        ask("PUT", "/locks/a1/acl", {"acl": ["user:bob"]}),
        ask("PUT", "/locks/never/acl", {"acl": {"acquire": ["user:bob"]}}),
        ask("POST", "/locks/a1/release", {"lease_id": "{a1}"}),
        ask("POST", "/locks/a1/acquire", {}),
        ask("POST", "/locks/a1/acquire", {}, "bob"),
        ask("GET", "/locks/a1"),
        ask("POST", "/locks/a2/acquire", {"acl": {"acquire": ["user:bob"]}}),
        ask("PUT", "/locks/never/acl", {"acl": {"acquire": ["user:bob"]}}, "admin"),
        ask("GET", "/locks/never"),
        ask("POST", "/locks/never/acquire", {}),
        ask("POST", "/locks/never/acquire", {}, "bob"),
        ask("PUT", "/locks/never/acl", {"acl": {"acquire": ["user:alice"] * 101}}, "admin"),
        ask("PUT", "/locks/never/acl", {"acl": {"acquire": ["token:" + "t" * 251]}}, "admin"),
        ask("PUT", "/locks/a%20b/acl", {"acl": {"acquire": ["user:bob"]}}, "admin"),
        ask("PUT", "/locks/never/acl", {"acl": {"acquire": ["user:bob"]}}, None),
    ]


def _webhooks() -> list[dict[str, Any]]:
    url = "https://hooks.example.com"
    bodies: list[Any] = [
        {"url": "http://hooks.example.com/x"},
        {"url": "nonsense"},
        {"url": "https://me:pw@hooks.example.com/x"},
        {"url": "https://127.0.0.1/x"},
        {"url": "https://localhost/x"},
        {"url": "https://10.1.2.3/x"},
        {"url": "https://[::1]/x"},
        {"url": f"{url}/x", "events": ["taken"]},
        {"url": f"{url}/x", "events": "acquired"},
        {"url": 3},
        {},
        b"{",
    ]
    return [
        ask("GET", "/webhooks"),
        ask("GET", "/webhooks", who=None),
        ask("POST", "/webhooks", {"url": f"{url}/x"}, None),
        ask("POST", "/webhooks", {"url": url, "more": 1}, keep={"id": "hook"}),
        ask("POST", "/webhooks", {"url": f"{url}/y?a=b", "secret": "s", "events": ["acquired", "expired"],
                                  "lock_pattern": "job-*"}, "bob"),
        *[ask("POST", "/webhooks", body) for body in bodies],
        ask("GET", "/webhooks"),
        ask("GET", "/webhooks", who="bob"),
        ask("GET", "/webhooks", who="admin"),
        ask("POST", "/webhooks", {"url": f"{url}/admin"}, "admin"),
        ask("GET", "/webhooks", who="admin"),
        ask("DELETE", "/webhooks/{hook}", who="bob"),
        ask("DELETE", "/webhooks/{hook}", who="admin"),
        ask("DELETE", "/webhooks/{hook}", who=None),
        ask("DELETE", "/webhooks/{hook}"),
        ask("DELETE", "/webhooks/{hook}"),
        ask("DELETE", "/webhooks/nonsense"),
        *[ask("POST", "/webhooks", {"url": f"{url}/{number}"}) for number in range(11)],
        ask("PUT", "/webhooks", {}),
    ]  # fmt: skip


def _refusals() -> list[dict[str, Any]]:
    good = "/locks/r1/acquire"
    names = [
        "a%20b",
        "%2Fa",
        "a%2F",
        "a%2F%2Fb",
        "a%2F..%2Fb",
        "a" * 257,
        "a" * 65,
        "__election%2Fx",
        "%C3%BC.x",
        ".",
    ]
    bodies: list[Any] = [
        {"ttl_seconds": 0},
        {"ttl_seconds": 3601},
        {"ttl_seconds": -1},
        {"ttl_seconds": 1.5},
        {"ttl_seconds": "1"},
        {"ttl_seconds": 2**32},
        {"metadata": 3},
        {"metadata": "m" * 1025},
        {"metadata": "ü" * 1024},
        {"ephemeral": True},
        {"ephemeral": "yes"},
        {"lock_delay_seconds": 31},
        {"session_id": "x"},
        {"ttl_seconds": None, "unknown": [1]},
        [],
        b"{",
        b"",
        b'{"ttl_seconds": 1, "ttl_seconds": 2}',
    ]
    return [
        *[ask("POST", f"/locks/{name}/acquire", {}) for name in names],
        *[ask("POST", good, body) for body in bodies],
        ask("POST", good, b"{}", headers={"Content-Type": "text/plain"}),
        ask("POST", good, b"{}", headers={"Content-Type": "application/x.dibs"}),
        ask("POST", good, b"{", None),
        ask("POST", good, {}, None),
        ask("POST", good, {}, None, headers={"Authorization": "Basic tok-a"}),
        ask("POST", good, {}, None, headers={"Authorization": "Bearer nonsense"}),
        ask("POST", good, {}, None, headers={"Authorization": "bearer tok-a"}),
        ask("POST", "/locks/r1/release", {"lease_id": "x"}),
        ask("POST", "/locks/r1/release", {}),
        ask("DELETE", "/locks/r1"),
        ask("GET", "/locks/a/b"),
        ask("GET", "/locks/"),
        ask("POST", "/locks//acquire", {}),
        ask("PATCH", "/health", who=None),
        ask("PUT", "/locks/r1/renew", {}),
        ask("GET", "/", who=None),
        ask("GET", "/nothing", who=None),
        ask("POST", "/auth/register", {"username": "carol"}, None),
        ask("OPTIONS", "/locks/r1", who=None, headers={"Origin": "http://localhost:3000"}),
        ask("OPTIONS", "/locks/r1", who=None, headers={"Origin": "http://evil.example"}),
        ask("GET", "/locks/none", headers={"Origin": "https://octostore.io"}),
    ]


def _elections() -> list[dict[str, Any]]:
    room = "/elections/room-1234"
    return [
        ask("POST", "/elections", who=None),
        ask("GET", room, who=None),
        ask("POST", f"{room}/campaign", {"candidate_id": "a", "metadata": "m"}, None, keep={"leader_token": "t"}),
        ask("POST", f"{room}/campaign", {"candidate_id": "a"}, None),
        ask("POST", f"{room}/campaign", {"candidate_id": "b"}, "bob"),
        ask("GET", room, who=None),
        ask("POST", f"{room}/renew", {"leader_token": "{t}", "ttl_seconds": 60}, None),
        ask("POST", f"{room}/renew", {"leader_token": "{t}"}, None),
        ask("POST", f"{room}/renew", {"leader_token": "A" * 43}, None),
        ask("POST", f"{room}/renew", {"leader_token": "short"}, None),
        ask("POST", f"{room}/renew", {"leader_token": "{t}", "ttl_seconds": 4}, None),
        ask("POST", f"{room}/renew", {}, None),
        ask("POST", f"{room}/resign", {"leader_token": "{t}"}, None),
        ask("POST", f"{room}/resign", {"leader_token": "{t}"}, None),
        ask("GET", room, who=None),
        ask("POST", f"{room}/campaign", {"candidate_id": "b", "ttl_seconds": 5}, None, keep={"leader_token": "u"}),
        ask("POST", f"{room}/resign", {"leader_token": "{t}"}, None),
        ask("POST", "/elections/room-5678/resign", {"leader_token": "{u}"}, None),
        *[
            ask("POST", f"{room}/campaign", {"candidate_id": "c", **more}, None)
            for more in ({"candidate_id": ""}, {"candidate_id": "a" * 65}, {"candidate_id": "a b"}, {"ttl_seconds": 4},
                         {"ttl_seconds": 301}, {"metadata": "m" * 1025}, {"candidate_id": 3})
        ],
        *[ask("GET", f"/elections/{bad}", who=None) for bad in ("short", "a" * 65, "dotted.name")],
        ask("GET", "/locks/__election%2Froom-1234"),
    ]  # fmt: skip


def _system() -> list[dict[str, Any]]:
    return [
        ask("GET", "/health", who=None),
        ask("GET", "/status", who=None),
        ask("GET", "/admin/status", who=None),
        ask("GET", "/admin/status", who=None, headers={"X-Admin-Key": "wrong"}),
        ask("GET", "/admin/status", who="bob"),
        ask("GET", "/admin/status", who="admin"),
        ask("GET", "/admin/metrics/timeseries", who=None, headers={"Authorization": "Bearer admin:adm"}),
        ask("GET", "/admin/metrics/timeseries?window=2h", who="admin"),
        ask("GET", "/metrics", who="bob"),
        ask("GET", "/metrics", who="admin"),
        ask("POST", "/auth/token/rotate", who="alice", keep={"token": "fresh"}),
        ask("GET", "/locks/none", who="alice"),
        ask("GET", "/locks/none", who=None, headers={"Authorization": "Bearer {fresh}"}),
        ask("POST", "/auth/token/rotate", who=None),
    ]


STEPS = [
    *_claims(),
    *_delays(),
    *_sessions(),
    *_lists(),
    *_refusals(),
    *_elections(),
    *_webhooks(),
    *_system(),
]


class Player:
    """Plays the steps against one server."""

    def __init__(self, port: int, pass_time: Any) -> None:
        self._port = port
        self._pass_time = pass_time
        self._kept: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self.exchanges: list[tuple[dict[str, Any], Any, int, Any]] = []  # step, body; status, document

    def play(self) -> list[dict[str, Any]]:
        return [{"step": told(step), **self._answer(step)} for step in STEPS]

    def _answer(self, step: dict[str, Any]) -> dict[str, Any]:
        if "pass_ms" in step:
            self._pass_time(step["pass_ms"])
            return {}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {name: self._filled(value) for name, value in step.get("headers", {}).items()}
        body, who = step["body"], step["who"]
        if who == "admin":
            headers["X-Admin-Key"] = ADMIN_KEY
        elif who is not None:
            headers["Authorization"] = f"Bearer {TOKENS[who]}"
        if body is not None and not isinstance(body, bytes):
            body = self._filled(json.dumps(body)).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(step["method"], self._filled(step["path"]), body, headers)
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        is_page = reply.headers.get_content_type().startswith("text/")
        document = json.loads(text) if text and not is_page else None
        self.exchanges.append((step, body, reply.status, document))
        for field, name in step.get("keep", {}).items():
            self._kept[name] = (document or {}).get(field, NIL)
        shown = HEADERS + (PREFLIGHT if step["method"] == "OPTIONS" else ())
        found = {name: reply.headers[name] for name in shown if name in reply.headers}
        if is_page:
            found.pop("cache-control", None)  # how long a page is kept is its own affair
        if "allow" in found:
            found["allow"] = ",".join(sorted(found["allow"].split(",")))
        assert re.fullmatch("req_[0-9a-f]{32}", reply.headers["x-request-id"])
        return {"status": reply.status, "headers": found, "body": self._plain("", document)}

    def _filled(self, text: str) -> str:
        for name, value in self._kept.items():
            text = text.replace("{" + name + "}", value)
        return text

    def _plain(self, field: str, value: Any) -> Any:
        """Without what differs between any two runs. Ids keep their identity: the same id gets the same number."""
        if isinstance(value, dict):
            return {name: self._plain(name, each) for name, each in sorted(value.items())}
        if isinstance(value, list):
            if field == "locks":
                value = sorted(value, key=lambda each: each["name"])
            return [self._plain(field, each) for each in value]
        if field in MEASURED or (field.endswith("_ms") and field.partition("_")[0] in STATISTICS):
            return type(value).__name__
        if field.endswith("_ms") and isinstance(value, int):
            return round(value / 1000)
        if isinstance(value, str):
            return self._plain_text(field, value)
        return value

    def _plain_text(self, field: str, value: str) -> str:
        if field in ("request_id", "token", "leader_token") or field.endswith("_path"):
            return field
        if field.endswith("_at"):
            return re.sub(r"[0-9]+", "0", value.split(".")[0]) + ("Z" if value.endswith("Z") else "")
        if (field == "id" or field.endswith("_id")) and value not in ("room-1234", "room-5678", "a", "b"):
            return self._ids.setdefault(value, f"id {len(self._ids)}")
        return value


def told(step: dict[str, Any]) -> str:
    if "pass_ms" in step:
        return f"{step['pass_ms']} ms pass"
    headers = f" {step['headers']}" if step.get("headers") else ""
    return f"{step['who']}: {step['method']} {step['path']}{headers} {step['body']!r}"[:200]
