"""No secret comes out of a server but in the one answer that hands it over: logs, metrics, refusals and lists are
searched for all that a life with tokens, logins, leases and webhooks had."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from dibs.server.handlers import Api
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Response, Server

GUESS = "dibs_guess_0123456789abcdef"
KEY = "request-key-0123456789"
HOOK = "hook-secret-0123456789abcdef0123456789"


class Life:
    """Asks, remembers what is secret, and keeps all answers that may not hold a secret."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.secrets = {*TOKENS.values(), GUESS, KEY, HOOK}
        self.said: list[str] = []

    def ask(self, method: str, path: str, body: Any = None, *, gives: tuple[str, ...] = (), **more: Any) -> Any:
        """`gives`: the fields of the answer that hand over a secret."""
        reply: Response = self.server.ask(method, path, body, **more)
        document = reply.json if reply.body[:1] in (b"{", b"[") else {}
        for field in gives:
            assert document.get(field), (path, reply.body)
            self.secrets.add(document[field])
        if not gives and path != "/login":
            self.said.append(f"{reply.headers} {reply.body.decode()}")
        return document

    def live(self) -> None:
        lease = self.ask("POST", "/locks/a/acquire", {"request_key": KEY}, gives=("lease_id",))["lease_id"]
        self.ask("POST", "/locks/a/acquire", {}, who="other")
        self.ask("POST", "/locks/a/renew", {"lease_id": lease, "ttl_seconds": 0})
        self.ask("POST", "/locks/a/release", {"lease_id": lease}, who="other")
        self.ask("POST", "/locks/a/break", {"reason": "r"})
        session = self.ask("POST", "/sessions", {}, gives=("session_id",))["session_id"]
        self.ask("POST", f"/sessions/{session}/keepalive", {}, who="other")
        self.ask("GET", f"/locks?prefix=a&secret={GUESS}&token={GUESS}")
        self.ask("GET", "/sessions", who="operator")
        self.tokens()
        self.logins()
        for path in ("/locks", "/locks/a", "/locks/a/history", "/events", "/tokens", "/metrics", "/status"):
            self.ask("GET", path, who="admin")
        for path in ("/metrics/prometheus", "/health", "/openapi.json", "/proof?key=x&nonce=y", "/nowhere"):
            self.ask("GET", path, who="admin")
        self.ask("POST", "/locks/a/release", {"lease_id": lease})
        self.ask("POST", "/locks/a/renew", {"lease_id": lease})

    def tokens(self) -> None:
        self.ask("POST", "/tokens", {"name": "eve"}, who="admin", gives=("token",))
        self.ask("POST", "/tokens/eve/rotate", {}, who="admin", gives=("token",))
        self.ask("POST", "/tokens", {"name": "eve"}, who="agent")
        self.ask("GET", "/locks/a", who=GUESS)
        self.ask("GET", "/locks/a", who=None, headers={"Authorization": f"Basic {GUESS}"})
        self.ask("PUT", "/locks/a/acl", {"acl": {"acquire": [f"token:{GUESS}"]}})
        hook = {"url": "https://hooks.example/x", "secret": HOOK, "events": ["acquired"]}
        self.ask("POST", "/webhooks", hook)
        self.ask("GET", "/webhooks")

    def logins(self) -> None:
        self.ask("POST", "/login", {"token": TOKENS["agent"]}, who=None)
        self.ask("POST", "/login", {"token": GUESS}, who=None)
        self.said.append(self.server.ask("POST", "/login", {"token": [GUESS]}, who=None).body.decode())
        stale = {"Cookie": f"dibs_token={GUESS}", "Sec-Fetch-Site": "same-origin"}
        self.ask("GET", "/whoami", who=None, headers=stale)
        self.ask("GET", "/whoami", who=None, headers={**stale, "Sec-Fetch-Site": "cross-site"})

    def found_in(self, text: str) -> set[str]:
        return {secret for secret in self.secrets if secret in text}


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with running(tmp_path, access_log=True) as server:
        yield Life(server)


@pytest.mark.promise("auth:hashed")
@pytest.mark.promise("logs:no-secrets")
def test_no_secret_is_in_a_log_a_metric_a_list_or_a_refusal(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("dibs", "dibs.request", "asyncio"):
        caplog.set_level(logging.DEBUG, name)
    life.live()
    assert "/locks/a/acquire" in caplog.text  # the access log is on
    assert life.found_in(caplog.text) == set()
    assert [said for said in life.said if life.found_in(said)] == []
    assert len(life.secrets) > len(TOKENS) + 5


def test_no_secret_is_in_the_report_of_a_fault(
    life: Life, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Api, *words: object, **named: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Api, "command_of", fail)
    monkeypatch.setattr(Api, "list_reader", fail)
    headers = {"Cookie": f"dibs_token={GUESS}"}
    assert life.ask("POST", "/locks/a/acquire", {"request_key": KEY}, headers=headers)["code"] == "internal_error"
    assert life.ask("GET", f"/locks?secret={GUESS}")["code"] == "internal_error"
    assert "a fault" in caplog.text
    assert life.found_in(caplog.text + "".join(life.said)) == set()
