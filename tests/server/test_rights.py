"""Who changed what about rights, who was refused, and when a token was last used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.caller_rights import Caller
from dibs.core.limits import USE_NOTED_MS
from dibs.engine.credentials import CredentialDirectory
from dibs.engine.metrics import Metrics
from dibs.engine.webhooks import WebhookAdmin
from dibs.server.http.admission import LOG_EVERY_MS, Refusals
from dibs.server.http.listen import parse_bind
from dibs.server.run import warn_without_tls
from dibs.server.settings import ServerSettings
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.server.harness import running
from tests.server.test_tokens import create

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("rights")) as server:
        yield server


def changes(server: Server, who: str = "admin", query: str = "") -> list[tuple[Any, ...]]:
    page = server.ask("GET", f"/rights{query}", who=who).json
    fields = ("event", "namespace", "name", "user_id", "by")
    return [tuple(each.get(field) for field in fields) for each in page["events"]]


@pytest.mark.fault("F-103")
def test_an_admin_sees_changes_of_tokens_webhooks_and_access_lists(served: Server, name: str) -> None:
    before = served.ask("GET", "/rights?limit=10000", who="admin").json["events"]
    after = before[-1]["seq"] if before else 0
    create(served, name, namespace="team-a")
    admin = create(served, f"{name}-admin", role="admin", namespace="team-a")["token"]
    served.ask("DELETE", f"/tokens/{name}", who="admin")
    served.acquire(name, who="scoped")
    served.ask("PUT", f"/locks/{name}/acl", {"acl": {"acquire": ["user:scoped"]}}, who="scoped")
    served.ask("PUT", f"/locks/{name}/acl", {"acl": {"acquire": []}}, who="scoped")
    hooks = WebhookAdmin(served.store, Caller(principal="agent"), "default")
    made = hooks.ask("webhook-create", "", {"url": "https://hooks.example.com/x"}).body or {}
    hooks.ask("webhook-remove", made["id"], {})
    all_of_them = [
        ("token-created", "team-a", "", name, "admin"),
        ("token-created", "team-a", "", f"{name}-admin", "admin"),
        ("token-revoked", "team-a", "", name, "admin"),
        ("access-set", "team-a", name, "scoped", "scoped"),
        ("access-set", "team-a", name, "scoped", "scoped"),
        ("webhook-created", "default", "", "agent", "agent"),
        ("webhook-removed", "default", "", "agent", "agent"),
    ]
    assert changes(served, query=f"?after={after}") == all_of_them
    assert changes(served, admin, f"?after={after}") == all_of_them[:5]  # those of its namespace
    for who, status in (("agent", 403), ("operator", 403), (None, 401)):
        assert served.ask("GET", "/rights", who=who).status == status


@pytest.mark.fault("F-103")
def test_pages_of_changes_follow_each_other(served: Server, name: str) -> None:
    for number in range(5):
        create(served, f"{name}-{number}")
    whole = served.ask("GET", "/rights?limit=10000", who="admin").json
    assert whole["next"] is None
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = served.ask("GET", f"/rights?limit=2&after={after}", who="admin").json
        assert len(page["events"]) <= 2
        seen += [each["seq"] for each in page["events"]]
        after = page["next"]
    assert seen == [each["seq"] for each in whole["events"]]


@pytest.mark.fault("F-104")
def test_wrong_tokens_failed_logins_and_refused_actions_are_counted(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    counts = server.engine.metrics.refused
    server.api._refusals._next_line_ms = dict.fromkeys(counts, 0)
    before = dict(counts)
    with caplog.at_level(logging.INFO, "dibs"):
        for _ in range(5):
            assert server.acquire(name, who="wrong-token").status == 401
        assert server.ask("POST", "/login", {"token": "wrong-token"}, who=None).status == 401
        assert server.acquire(name).status == 200
        assert server.ask("POST", f"/locks/{name}/break", {"reason": "x"}).status == 403
        assert server.acquire(name, who="viewer").status == 403
    assert counts == {401: before[401] + 6, 403: before[403] + 2}
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 2  # a line for each status, however many there were
    assert "401, the last: acquire of nobody that is known from 127.0.0.1" in lines[0]
    assert "403, the last: break of agent from 127.0.0.1" in lines[1]
    assert "wrong-token" not in "".join(lines)
    shown = server.ask("GET", "/metrics/prometheus", who="admin").body.decode()
    assert f'dibs_http_refused_total{{status="401"}} {counts[401]}' in shown


@pytest.mark.fault("F-104")
def test_a_flood_of_refusals_is_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    refusals = Refusals(Metrics(), lambda: now[0])
    with caplog.at_level(logging.INFO, "dibs"):
        for _ in range(10_000):
            refusals.note(401, "acquire", "10.0.0.7", lambda: "nobody")
            refusals.note(404, "other", "10.0.0.7", lambda: "nobody")
        now[0] = LOG_EVERY_MS
        refusals.note(401, "acquire", "10.0.0.7", lambda: "nobody\x1b[0m")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["1", "10000"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.fault("F-104")
def test_the_last_use_of_a_token_is_known_and_written_once_a_minute(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    with running(tmp_path, store=store, clock=clock) as server:
        token = create(server, "ci")["token"]
        create(server, "idle")
        other = CredentialDirectory(store)  # of another server
        other.look()

        def used() -> dict[str, str | None]:
            listed = server.ask("GET", "/tokens", who="admin").json["tokens"]
            return {each["name"]: each["last_used_at"] for each in listed}

        directory = server.guard.directory
        assert directory is not None
        clock.advance(USE_NOTED_MS)
        assert server.acquire("x", who=token).status == 200
        assert used() == {"ci": None, "idle": None}
        directory.note_use()
        first = used()["ci"]
        assert first is not None
        assert used()["idle"] is None
        clock.advance(USE_NOTED_MS - 1)
        for each in (directory, other):
            each._used.update(directory._known)
            each.note_use()
        assert used()["ci"] == first  # another server has written it within the minute
        clock.advance(1)
        server.ask("GET", "/locks/x", who=token)
        directory.note_use()
        assert used()["ci"] > first  # type: ignore[operator]  # both are times
        changes = directory._changes
        directory.look()
        assert directory._changes == changes  # nobody reads the tokens again because of it
        fresh = server.ask("POST", "/auth/token/rotate", who=token).json["token"]
        assert server.ask("GET", "/locks/x", who=fresh).status == 200


@pytest.mark.fault("F-104")
def test_a_server_that_others_reach_without_tls_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def said(bind: str, **more: Any) -> int:
        caplog.clear()
        settings = ServerSettings(bind=bind, **more)
        warn_without_tls(settings, parse_bind(bind))
        return len([record for record in caplog.records if "WITHOUT TLS" in record.getMessage()])

    assert [said(bind) for bind in ("0.0.0.0:1", "[::]:1", "10.0.0.7:1")] == [1, 1, 1]
    assert [said(bind) for bind in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x")] == [0, 0, 0, 0]
    assert said("0.0.0.0:1", trusted_proxies=("10.0.0.2",)) == 0
