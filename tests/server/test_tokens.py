"""Fields and codes of the routes about tokens: made, shown once, replaced, revoked; by admins, in their namespace."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from dibs.stores.sqlite import SqliteStore
from tests.server.harness import TOKENS, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("tokens")) as server:
        yield server


def create(server: Server, name: str, who: str = "admin", **fields: Any) -> dict[str, Any]:
    reply = server.ask("POST", "/tokens", {"name": name, **fields}, who=who)
    assert reply.status == 201, reply.body
    document: dict[str, Any] = reply.json
    return document


def listed(server: Server, name: str, who: str = "admin") -> list[dict[str, Any]]:
    return [each for each in server.ask("GET", "/tokens", who=who).json["tokens"] if each["name"] == name]


@pytest.mark.promise("auth:hashed")
def test_a_token_is_shown_once_and_lets_in_at_once(served: Server, name: str) -> None:
    made = create(served, "ci", role="operator", namespace="acme", expires_seconds=3600, max_held=7)
    token = made.pop("token")
    assert listed(served, "ci") == [made]
    assert (made["role"], made["namespace"], made["max_held"], made["valid"]) == ("operator", "acme", 7, True)
    assert made["created_by"] == "admin"
    reply = served.ask("POST", f"/locks/{name}/acquire", {}, who=token)
    assert (reply.status, reply.json["owner"]) == (200, "ci")
    assert served.ask("GET", f"/locks/{name}?namespace=other", who=token).status == 403
    everything = served.ask("GET", "/tokens", who="admin").body
    assert token.encode() not in everything


@pytest.mark.promise("auth:revoked")
def test_a_revoked_token_is_refused_from_the_next_request_on(served: Server, name: str) -> None:
    token = create(served, name)["token"]
    lease = served.acquire(name, who=token).json["lease_id"]
    gone = served.ask("DELETE", f"/tokens/{name}", who="admin").json["revoked"]
    assert [each["valid"] for each in gone] == [False]
    refused = served.ask("POST", f"/locks/{name}/renew", {"lease_id": lease}, who=token)
    assert (refused.status, refused.json["code"]) == (401, "authentication_failed")
    again = served.ask("DELETE", f"/tokens/{name}", who="admin")
    assert (again.status, again.json["code"]) == (404, "not_found")


def test_a_rotated_token_keeps_what_the_old_one_claimed(served: Server, name: str) -> None:
    old = create(served, name)["token"]
    lease = served.acquire(name, who=old).json["lease_id"]
    reply = served.ask("POST", f"/tokens/{name}/rotate", {"grace_seconds": 0}, who="admin")
    new = reply.json["token"]
    assert reply.json["replaces"]["grace_seconds"] == 0
    assert served.ask("GET", f"/locks/{name}", who=old).status == 401
    assert served.ask("POST", f"/locks/{name}/renew", {"lease_id": lease}, who=new).status == 200


def test_of_several_tokens_one_is_named_by_its_id(served: Server, name: str) -> None:
    first, second = create(served, name), create(served, name)
    reply = served.ask("POST", f"/tokens/{name}/rotate", {}, who="admin")
    assert (reply.status, first["id"] in reply.json["details"]) == (400, True)
    assert served.ask("POST", f"/tokens/{name}/rotate?id={first['id']}", {}, who="admin").status == 200
    assert served.ask("DELETE", f"/tokens/{name}?id={second['id']}", who="admin").status == 200
    assert served.ask("GET", "/locks/x", who=second["token"]).status == 401
    assert served.ask("GET", "/locks/x", who=first["token"]).status == 200  # within its grace


def test_limits_that_are_not_named_stay(served: Server, name: str) -> None:
    create(served, name, max_held=5, rate_per_second=10)
    reply = served.ask("POST", f"/tokens/{name}/limits", {"max_held": 0, "max_sessions": 2}, who="admin")
    [entry] = reply.json["tokens"]
    limits = [entry[field] for field in ("max_held", "max_waiting", "max_sessions", "rate_per_second")]
    assert limits == [0, 0, 2, 10]


def test_an_admin_of_one_namespace_makes_sees_and_revokes_its_tokens_and_no_others(served: Server, name: str) -> None:
    create(served, f"{name}-other")
    admin = create(served, f"{name}-admin", role="admin", namespace="team-a")["token"]
    made = create(served, name, who=admin)
    assert made["namespace"] == "team-a"
    wider = served.ask("POST", "/tokens", {"name": name, "namespace": "team-b"}, who=admin)
    assert (wider.status, wider.json["code"]) == (403, "forbidden")
    seen = served.ask("GET", "/tokens", who=admin).json["tokens"]
    assert {each["namespace"] for each in seen} == {"team-a"}
    assert served.ask("DELETE", f"/tokens/{name}-other", who=admin).status == 404
    assert served.ask("DELETE", f"/tokens/{name}", who=admin).status == 200


def test_a_hash_is_taken_instead_of_a_token(served: Server, name: str) -> None:
    made = create(served, name, sha256=hashlib.sha256(b"known-elsewhere").hexdigest())
    assert "token" not in made
    assert served.ask("GET", "/locks/x", who="known-elsewhere").status == 200


@pytest.mark.fault("F-088")
def test_an_admin_of_one_namespace_takes_no_token_of_another_by_its_hash(served: Server, name: str) -> None:
    admin = create(served, f"{name}-admin", role="admin", namespace="team-a")["token"]
    stored = create(served, name, namespace="team-b")["token"]
    for token in (TOKENS["admin"], TOKENS["bob-b"], stored):
        digest = hashlib.sha256(token.encode()).hexdigest()
        taken = served.ask("POST", "/tokens", {"name": "x", "sha256": digest, "role": "viewer"}, who=admin)
        assert (taken.status, taken.json["code"]) == (409, "conflict")
        assert name not in taken.body.decode()
    assert served.ask("GET", "/whoami", who="admin").json["role"] == "admin"
    assert served.ask("GET", "/whoami", who=stored).json["namespace"] == "team-b"
    own = hashlib.sha256(TOKENS["scoped"].encode()).hexdigest()  # a line of the own namespace
    assert served.ask("POST", "/tokens", {"name": "scoped", "sha256": own}, who=admin).status == 201


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 422),
        ({"name": 5}, 422),
        ({"name": "a:b"}, 400),
        ({"name": "x" * 65}, 400),
        ({"name": "ok", "role": "root"}, 400),
        ({"name": "ok", "namespace": "a/b"}, 400),
        ({"name": "ok", "expires_seconds": 0}, 400),
        ({"name": "ok", "expires_seconds": -1}, 422),
        ({"name": "ok", "max_held": 10**9}, 400),
        ({"name": "ok", "sha256": "dibs_secret"}, 400),
    ],
)
def test_what_cannot_be_is_refused_and_not_repeated(served: Server, fields: dict[str, Any], status: int) -> None:
    reply = served.ask("POST", "/tokens", fields, who="admin")
    assert reply.status == status, reply.body
    assert b"dibs_secret" not in reply.body


@pytest.mark.promise("auth:hashed")
def test_no_token_is_in_the_store_its_events_or_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level("DEBUG")
    path = tmp_path / "dibs.db"
    store = SqliteStore(str(path))
    with running(tmp_path, store=store, real_time=True) as server:
        token = create(server, "ci")["token"]
        fresh = server.ask("POST", "/tokens/ci/rotate", {}, who="admin").json["token"]
        for secret in (token, fresh):
            assert server.acquire(name, who=secret).status == 200
        server.ask("DELETE", "/tokens/ci", who="admin")
        assert server.ask("GET", "/locks/x", who=fresh).status == 401
        seen = [server.ask("GET", path, who="admin").body for path in ("/tokens", "/status", f"/locks/{name}/history")]
        events = repr(store.events(0, 1_000))
    store.close()
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("dibs.db*"))
    for secret in (token, fresh):
        assert secret.removeprefix("dibs_").encode() not in kept
        assert not any(secret.encode() in each for each in seen)
        assert secret not in events
        assert secret not in caplog.text
    assert TOKENS["admin"].encode() not in kept


@pytest.mark.promise("auth:revoked")
def test_a_change_at_one_server_is_known_at_the_other(tmp_path: Path) -> None:
    stores = [SqliteStore(str(tmp_path / "dibs.db")) for _ in range(2)]
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    with (
        running(folders[0], store=stores[0], real_time=True) as here,
        running(folders[1], store=stores[1], real_time=True) as there,
    ):
        token = create(here, "ci")["token"]
        wait_until(lambda: there.ask("GET", "/locks/x", who=token).status == 200, "the token is known there")
        there.ask("DELETE", "/tokens/ci", who="admin")
        assert there.ask("GET", "/locks/x", who=token).status == 401
        wait_until(lambda: here.ask("GET", "/locks/x", who=token).status == 401, "the token is refused here")
    for store in stores:
        store.close()
