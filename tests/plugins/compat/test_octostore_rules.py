"""`dibs serve --octostore`: what no recorded answer shows. Users, namespaces, limits, streams, and its variables."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.compat.octostore.contract import BIND_DEFAULT, OctoStoreContract, settings_from
from dibs.compat.octostore.elections import PUBLIC_NAMESPACE
from dibs.compat.octostore.locks import LOCKS_MAX
from dibs.core.commands import Freeze, Thaw
from dibs.core.events import ACQUIRED, QUEUED, Event
from dibs.core.limits import ADMIN_GUESSES_MAX
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.records import LockRecord, lock_key, webhook_key
from dibs.core.service.webhooks import Webhook
from dibs.engine.coordinator import run_one
from dibs.engine.webhooks.sender import delivery_headers
from dibs.server.run import greeting
from dibs.server.settings import PublicElections, ServerSettings
from dibs.wire.webhooks import payload
from tests.server.harness import running
from tests.server.sse import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Response, Server

OCTOSTORE = OctoStoreContract(users=(("alice", "tok-a"), ("bob", "tok-b")), admin_key="adm")
KEY = {"X-Admin-Key": "adm"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = ServerSettings(contract=OCTOSTORE, local_registration=True)
    with running(tmp_path_factory.mktemp("octostore"), settings=settings) as server:
        server.guard.fixed = OCTOSTORE.callers
        yield server


def acquire(server: Server, name: str, who: str = "tok-a", **fields: Any) -> Response:
    return server.ask("POST", f"/locks/{name}/acquire", fields, who=who)


def test_a_user_with_a_namespace_uses_names_below_it(served: Server) -> None:
    body = {"username": "carol", "namespace": "team"}
    token = served.ask("POST", "/auth/register", body, who=None).json["token"]
    assert acquire(served, "team.job", token).json["status"] == "acquired"
    assert acquire(served, "other.job", token).status == 403
    assert acquire(served, "team.job").json["status"] == "held"  # one space of names for all
    acquire(served, "outside")
    listed = served.ask("GET", "/locks", who=token).json
    assert (listed["prefix"], [each["name"] for each in listed["locks"]]) == ("team.", ["team.job"])
    assert served.ask("GET", "/locks?prefix=other", who=token).status == 403
    assert served.ask("GET", "/locks?prefix=team.j", who=token).json["total"] == 1


def test_a_user_holds_a_hundred_locks_and_can_keep_them(served: Server) -> None:
    for number in range(LOCKS_MAX):
        assert acquire(served, f"many-{number}", "tok-b").json["status"] == "acquired"
    full = acquire(served, "many-more", "tok-b")
    assert (full.status, full.json["code"]) == (403, "lock_limit_exceeded")
    assert full.json["details"] == "Lock limit exceeded (max 100 per user)"
    again = acquire(served, "many-7", "tok-b").json
    assert again["status"] == "acquired"
    served.ask("POST", "/locks/many-7/release", {"lease_id": again["lease_id"]}, who="tok-b")
    assert acquire(served, "many-more", "tok-b").json["status"] == "acquired"


@pytest.mark.promise("max-hold")
def test_a_lock_ends_at_the_ceiling_of_its_token_too(served: Server) -> None:
    asked = {"name": "brief", "max_hold_seconds": 30}
    token = served.ask("POST", "/tokens", asked, who="admin").json["token"]
    acquire(served, "capped", token, ttl_seconds=300)
    key = lock_key(DEFAULT_NAMESPACE, "capped")
    record = served.engine.store.read([key]).records[key].record
    assert isinstance(record, LockRecord)
    (holder,) = record.holders
    assert holder.ends_ms == holder.since_ms + 30_000


def test_the_admins_key_claims_for_the_admin_and_is_no_token(served: Server) -> None:
    mine = served.ask("POST", "/locks/admins/acquire", {}, who=None, headers=KEY).json
    assert mine["status"] == "acquired"
    assert acquire(served, "admins").json["status"] == "held"
    assert served.ask("GET", "/locks/admins", who="adm").status == 401
    body = {"lease_id": acquire(served, "not-admins").json["lease_id"]}
    assert served.ask("POST", "/locks/not-admins/release", body, who=None, headers=KEY).status == 400
    assert served.ask("GET", "/metrics", who=None, headers=KEY).status == 200
    status = served.ask("GET", "/admin/status", who=None, headers=KEY).json
    assert {"name", "holder_username"} <= status["locks"][0].keys()


def test_the_admins_key_is_no_token_for_any_route(served: Server) -> None:
    for path in ("/admin/status", "/metrics", "/metrics/prometheus", "/locks/x/history", "/whoami"):
        assert served.ask("GET", path, who="adm").status == 401, path


def test_many_workers_with_one_token_have_one_lease(served: Server) -> None:
    def claim(name: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        headers = {"Authorization": "Bearer tok-a", "Content-Type": "application/json"}
        connection.request("POST", f"/locks/{name}/acquire", b"{}", headers)
        reply: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return reply

    with ThreadPoolExecutor(20) as workers:
        for number in range(5):
            replies = list(workers.map(claim, [f"swarm-{number}"] * 20))
            assert {reply["status"] for reply in replies} == {"acquired"}
            assert len({reply["lease_id"] for reply in replies}) == 1


def test_a_registered_namespace_opens_none_of_dibs_own(served: Server) -> None:
    for namespace in (DEFAULT_NAMESPACE, PUBLIC_NAMESPACE):
        body = {"username": f"of-{namespace}", "namespace": namespace}
        assert served.ask("POST", "/auth/register", body, who=None).status == 409


def test_the_admins_key_cannot_be_guessed_for_long(tmp_path: Path) -> None:
    with running(tmp_path, settings=ServerSettings(contract=OCTOSTORE)) as server:
        server.guard.fixed = OCTOSTORE.callers
        for number in range(ADMIN_GUESSES_MAX):
            wrong = {"X-Admin-Key": f"ad{number}"}
            assert server.ask("GET", "/locks/x", who=None, headers=wrong).status == 401
        assert server.ask("GET", "/locks/x", who=None, headers=KEY).status == 429
        assert server.ask("GET", "/locks/x", who="tok-a").status == 200


def test_elections_that_are_switched_off_are_forbidden(served: Server) -> None:
    reply = served.ask("POST", "/elections", who="tok-a")
    assert (reply.status, reply.json["details"]) == (
        403,
        "Forbidden: Public elections are disabled on this server",
    )


def test_a_stream_has_data_alone(served: Server) -> None:
    with StreamReader(served.port, "/locks/seen/watch", who="tok-a") as stream:
        assert stream.next().document["event"] == "released"
        lease = acquire(served, "seen", "tok-a", ttl_seconds=9).json
        assert stream.next().document["fencing_token"] == lease["fencing_token"]
        acquire(served, "seen", "tok-a", ttl_seconds=5)
        assert stream.next().document["event"] == "renewed"
        served.ask("POST", "/locks/seen/release", {"lease_id": lease["lease_id"]}, who="tok-a")
        assert stream.next().document["event"] == "released"
        assert all(line.startswith(b"data: ") or not line for line in stream.text.split(b"\n"))


def test_tokens_of_all_locks_and_elections_are_one_counter(tmp_path: Path) -> None:
    settings = ServerSettings(contract=OCTOSTORE, public_elections=PublicElections(requests=2))
    with running(tmp_path, settings=settings) as server:
        server.guard.fixed = OCTOSTORE.callers
        room = {"candidate_id": "a"}
        terms = [
            acquire(server, "one").json["fencing_token"],
            server.ask("POST", "/elections/room-1234/campaign", room, who=None).json["leader"]["term"],
            acquire(server, "two").json["fencing_token"],
        ]
        assert terms == [1, 2, 3]
        assert server.ask("GET", "/locks/free", who="tok-a").json["fencing_token"] == 4
        assert server.ask("POST", "/elections", who=None).status == 201
        limited = server.ask("POST", "/elections", who=None)
        assert (limited.status, limited.headers["retry-after"]) == (429, "60")
        assert limited.json["details"] == "Rate limit exceeded; retry in 60 seconds"


def test_what_dibs_has_besides_is_still_there(served: Server) -> None:
    assert served.ask("GET", "/locks/seen/history", who="tok-a").status == 200
    assert served.ask("GET", "/openapi.json", who=None).status == 200


def test_its_variables_are_read() -> None:
    environ = {
        "STATIC_TOKENS": "ann:t1, bare\n# nobody\nbob:t2",
        "ADMIN_KEY": "k",
        "PUBLIC_ELECTIONS": "on",
        "MAX_PUBLIC_ELECTIONS": "7",
        "PUBLIC_ELECTION_WATCH_MAX_SECONDS": "3",
        "BIND_ADDR": "127.0.0.1:9",
    }
    chosen = settings_from(environ)
    assert chosen["contract"].users == (("ann", "t1"), ("bare", "bare"), ("bob", "t2"))
    assert (chosen["bind"], chosen["public_elections"].rooms) == ("127.0.0.1:9", 7)
    assert chosen["public_elections"].stream_ms == 3_000
    assert not chosen["webhook_allow_private"]
    assert settings_from({"OCTOSTORE_WEBHOOK_ALLOW_PRIVATE_NETWORKS": "1"})["webhook_allow_private"]
    assert "t1" not in repr(chosen)
    assert "k" not in repr(chosen["contract"].__repr__()).replace("octostore", "").split("(")[1]
    plain = settings_from({})
    assert (plain["bind"], plain["local_registration"]) == (BIND_DEFAULT, False)
    assert plain["public_elections"] == PublicElections()
    names = {caller.principal for caller in chosen["contract"].callers.values()}
    assert "bare" not in names  # a name that is the token would show the token
    assert {"ann", "bob"} < names


@pytest.mark.parametrize(
    "environ",
    [
        {"STATIC_TOKENS": ""},
        {"STATIC_TOKENS": "a:"},
        {"STATIC_TOKENS": ":secret-token"},
        {"STATIC_TOKENS": "a:secret token"},
        {"STATIC_TOKENS": "a:x,b:x"},
        {"STATIC_TOKENS": "Alice:t1,alice:t2"},
        {"OCTOSTORE_CA_BUNDLE": "/nowhere"},
        {"OCTOSTORE_CA_BUNDLE": __file__},
        {"STATIC_TOKENS_FILE": "/nowhere"},
        {"ADMIN_KEY": " "},
        {"ADMIN_KEY": "secret-token", "STATIC_TOKENS": "a:secret-token"},
        {"LOCAL_REGISTRATION": "maybe"},
        {"LOCAL_REGISTRATION": "1", "STATIC_TOKENS": "a:b"},
        {"MAX_PUBLIC_ELECTIONS": "0"},
        {"MAX_PUBLIC_ELECTIONS": "many"},
        {"GITHUB_CLIENT_ID": "x"},
    ],
    ids=str,
)
def test_a_malformed_variable_ends_the_start_and_shows_no_secret(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        settings_from(environ)
    assert "secret" not in str(refused.value)


def test_a_file_of_tokens_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# users\nann:t1\nbob:t2,eve:t3\n")
    users = settings_from({"STATIC_TOKENS_FILE": str(file), "STATIC_TOKENS": "zoe:t0"})["contract"].users
    assert [name for name, _ in users] == ["zoe", "ann", "bob", "eve"]


def test_a_webhook_reports_its_users_own_locks(tmp_path: Path) -> None:
    with running(tmp_path, settings=ServerSettings(contract=OCTOSTORE)) as server:
        server.guard.fixed = OCTOSTORE.callers
        body = {"url": "https://hooks.example.com/x", "lock_pattern": "job-*"}
        made = server.ask("POST", "/webhooks", body, who="tok-a").json
        key = webhook_key(made["id"])
        webhook = server.store.read((key,)).records[key].record
        assert isinstance(webhook, Webhook)
        taken = Event(at_ms=0, kind=ACQUIRED, ns=webhook.ns, job="job-1", principal="alice")
        assert webhook.takes(taken)
        assert not webhook.takes(taken.replace(principal="bob"))
        assert not webhook.takes(taken.replace(kind=QUEUED))
        # A delivery has the fields and headers of OctoStore's, and no others.
        sent = payload(webhook, taken.replace(token=7, owner="alice"))
        told = json.loads(sent)
        assert told.keys() == {"event", "lock", "holder_id", "fencing_token", "timestamp"}
        assert told["timestamp"] == "1970-01-01T00:00:00.000+00:00"
        headers = delivery_headers(webhook.replace(secret="s"), taken, 1, sent, 0)
        assert headers.keys() == {"User-Agent", "X-OctoStore-Signature"}


def test_the_greeting_names_a_command_that_works_and_the_clients_that_may_only_look() -> None:
    says = OCTOSTORE.says
    text = greeting(ServerSettings(contract=OCTOSTORE), "http://127.0.0.1:3000", "memory:", says, has_own_token=True)
    assert "try      curl -H 'Authorization: Bearer TOKEN' http://127.0.0.1:3000/locks" in text
    assert "may only look" in text
    assert "dibs claim" not in text


@pytest.fixture
def two_bobs(tmp_path: Path) -> Iterator[Server]:
    """Users of one name, each with a namespace of its own."""
    with running(tmp_path, settings=ServerSettings(contract=OCTOSTORE)) as server:
        yield server


@pytest.mark.promise("webhook:scope")
@pytest.mark.fault("F-091")
def test_a_webhook_reports_nothing_of_a_namesake_in_another_namespace(two_bobs: Server) -> None:
    body = {"url": "https://hooks.example.com/x"}
    made = two_bobs.ask("POST", "/webhooks", body, who="bob-b").json
    key = webhook_key(made["id"])
    webhook = two_bobs.store.read((key,)).records[key].record
    assert isinstance(webhook, Webhook)
    taken = Event(at_ms=0, kind=ACQUIRED, ns=webhook.ns, job="team-b.job", principal="bob")
    assert webhook.takes(taken)
    assert not webhook.takes(taken.replace(job="team-a.job"))
    assert not webhook.takes(taken.replace(job="team-bad.job"))


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-747")
def test_no_session_is_unknown_while_an_import_is_not_complete(two_bobs: Server) -> None:
    session = "df5857f9-d9e5-b365-6232-094043c5c5bc"  # not brought in yet
    run_one(two_bobs.store, Freeze(id="import", over=None, incomplete=True))
    assert two_bobs.ask("GET", f"/sessions/{session}", who="bob-a").status == 503
    fields = {"session_id": session, "ephemeral": True}
    assert acquire(two_bobs, "team-a.job", "tok-bob-a", **fields).status == 503
    run_one(two_bobs.store, Thaw(id="import"))
    assert two_bobs.ask("GET", f"/sessions/{session}", who="bob-a").status == 404


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-765")
def test_no_change_of_a_frozen_store_is_refused_as_if_what_it_changes_were_gone(two_bobs: Server) -> None:
    hook = {"url": "https://hooks.example.com/x"}
    session = two_bobs.ask("POST", "/sessions", {}, who="bob-a").json["session_id"]
    acquire(two_bobs, "team-a.job", "bob-a")
    run_one(two_bobs.store, Freeze(id="move"))
    assert two_bobs.ask("GET", f"/sessions/{session}", who="bob-a").status == 200
    for method, path, body in (
        ("POST", "/sessions", {}),
        ("POST", f"/sessions/{session}/keepalive", {}),
        ("DELETE", f"/sessions/{session}", None),
        ("PUT", "/locks/team-a.job/acl", {"acl": {"acquire": ["user:bob"]}}),
        ("POST", "/webhooks", hook),
    ):
        reply = two_bobs.ask(method, path, body, who="bob-a")
        assert (method, path, reply.status, reply.json["code"]) == (method, path, 503, "upstream_unavailable")
        assert "frozen" in reply.json["details"]


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-766")
@pytest.mark.parametrize("incomplete", [False, True])
def test_a_webhook_that_was_not_removed_is_not_said_to_be(two_bobs: Server, incomplete: bool) -> None:
    made = two_bobs.ask("POST", "/webhooks", {"url": "https://hooks.example.com/x"}, who="bob-a").json
    run_one(two_bobs.store, Freeze(id="move", incomplete=incomplete))
    assert two_bobs.ask("DELETE", f"/webhooks/{made['id']}", who="bob-a").status == 503
    run_one(two_bobs.store, Thaw(id="move"))
    assert two_bobs.ask("DELETE", f"/webhooks/{made['id']}", who="bob-a").status == 204


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-768")
def test_nothing_that_an_import_may_still_bring_is_missing_for_users_of_octostore(two_bobs: Server) -> None:
    run_one(two_bobs.store, Freeze(id="import", incomplete=True))
    hook = "df5857f9-d9e5-b365-6232-094043c5c5bc"
    asked = (("GET", "/webhooks"), ("DELETE", f"/webhooks/{hook}"), ("GET", "/locks/team-a.job/watch"))
    for method, path in asked:
        reply = two_bobs.ask(method, path, who="bob-a")
        assert (path, reply.status, reply.json["code"]) == (path, 503, "upstream_unavailable")


@pytest.mark.promise("session")
@pytest.mark.fault("F-092")
def test_a_namesake_in_another_namespace_neither_sees_nor_ends_a_session(two_bobs: Server) -> None:
    session = two_bobs.ask("POST", "/sessions", {}, who="bob-a").json["session_id"]
    fields = {"session_id": session, "ephemeral": True}
    assert acquire(two_bobs, "team-a.job", "tok-bob-a", **fields).json["status"] == "acquired"
    path = f"/sessions/{session}"
    assert two_bobs.ask("GET", path, who="bob-b").status == 404
    assert two_bobs.ask("POST", f"{path}/keepalive", {}, who="bob-b").status == 404
    assert two_bobs.ask("DELETE", path, who="bob-b").status == 404
    assert acquire(two_bobs, "team-b.job", "tok-bob-b", **fields).status == 404
    assert two_bobs.ask("GET", path, who="bob-a").json["lock_count"] == 1
    assert two_bobs.ask("POST", f"{path}/keepalive", {}, who="bob-a").status == 200
    assert two_bobs.ask("DELETE", path, who="bob-a").status == 204
