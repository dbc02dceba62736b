"""The gateway over HTTP: their routes, bodies and status codes, and none of their bugs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Freeze, Thaw
from dibs.core.limits import RUN_KEEP_MS, RUN_TTL_MS, WANT_MS
from dibs.engine.coordinator import run_one
from dibs.server.monitor.server_log import without_secrets_in_path
from dibs.wire.parts import timestamp
from tests.server.harness import Response, Server, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TTL_MS = 300_000
WRONG = new_id()


class Gate:
    """A server with the gateway, and its runs by the name of their holder."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.secrets: dict[str, str] = {}

    def run(self, holder: str, **more: Any) -> str:
        reply = self.server.ask("POST", "/gateway/runs", {"holder": holder}, who="admin", **more)
        assert reply.status == 201, reply.json
        self.secrets[holder] = reply.json["secret"]
        return self.secrets[holder]

    def end(self, holder: str) -> Response:
        return self.server.ask("DELETE", f"/gateway/runs/{holder}", who="admin")

    def ask(self, verb: str, holder: str, key: str, **more: Any) -> tuple[int, Any]:
        secret = self.secrets.get(holder) or self.run(holder)
        return self.post(verb, {"secret": secret, "resourceKey": key, **more})

    def post(self, verb: str, body: Any, place: str = "/gateway") -> tuple[int, Any]:
        # Without Content-Type, which their gateway does not look at.
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        reply = self.server.ask("POST", f"{place}/locks/{verb}", body, who=None)
        return reply.status, reply.json

    def acquire(self, holder: str, key: str, **more: Any) -> tuple[int, Any]:
        return self.ask("acquire", holder, key, **more)

    def takes(self, holder: str, key: str) -> None:
        assert self.acquire(holder, key) == (200, {"ok": True, "resourceKey": key})

    def own(self, holder: str) -> Any:
        reply = self.server.ask("GET", f"/gateway/locks/list?secret={self.secrets[holder]}", who=None)
        assert reply.status == 200
        return reply.json


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("gateway"), gateway_ttl_ms=TTL_MS) as server:
        yield server


@pytest.fixture
def gate(served: Server) -> Gate:
    return Gate(served)


@pytest.fixture
def key(name: str) -> str:
    return f"github://acme/app/{name}"


def test_acquire_heartbeat_and_release_answer_as_theirs_do(gate: Gate, key: str) -> None:
    gate.takes("dev-1", key)
    now_ms = gate.server.clock()
    status, body = gate.ask("heartbeat", "dev-1", key)
    assert (status, body) == (200, {"ok": True, "expiresAt": now_ms + TTL_MS})
    assert gate.ask("release", "dev-1", key) == (200, {"ok": True})
    assert gate.ask("release", "dev-1", key) == (404, {"ok": False, "reason": "lock not found"})
    assert gate.ask("heartbeat", "dev-1", key) == (404, {"ok": False, "reason": "lock not found"})


@pytest.mark.promise("excl")
def test_another_run_is_told_who_holds_it_and_since_when(gate: Gate, key: str) -> None:
    since_ms = gate.server.clock()
    gate.takes("dev-2", key)
    status, body = gate.acquire("dev-3", key)
    assert (status, body) == (
        409,
        {"ok": False, "holder": "dev-2", "heldSince": since_ms, "reason": "held by dev-2"},
    )
    for verb in ("release", "heartbeat"):
        assert gate.ask(verb, "dev-3", key) == (409, {"ok": False, "reason": "held by dev-2"})
    assert gate.ask("release", "dev-2", key) == (200, {"ok": True})
    gate.takes("dev-3", key)
    assert gate.ask("release", "dev-2", key) == (409, {"ok": False, "reason": "held by dev-3"})


@pytest.mark.promise("excl:same-token")
def test_two_runs_of_the_same_holder_exclude_each_other(gate: Gate, key: str) -> None:
    first = gate.run("dev-twin")
    second = gate.run("dev-twin")
    assert gate.post("acquire", {"secret": first, "resourceKey": key})[0] == 200
    assert gate.post("acquire", {"secret": second, "resourceKey": key})[0] == 409
    assert gate.post("release", {"secret": second, "resourceKey": key})[0] == 409


def test_asking_again_for_what_is_mine_succeeds_and_starts_its_time_anew(gate: Gate, key: str) -> None:
    gate.takes("dev-4", key)
    gate.server.pass_time(10_000)
    gate.takes("dev-4", key)
    [entry] = gate.own("dev-4")
    assert entry["expiresAt"] == gate.server.clock() + TTL_MS
    assert gate.ask("release", "dev-4", key)[0] == 200  # not counted: one is enough
    assert gate.own("dev-4") == []


def test_a_lock_that_ran_out_is_anybodys(gate: Gate, key: str) -> None:
    assert gate.acquire("dev-5", key, ttl=2)[0] == 200
    gate.server.pass_time(2_000)
    assert gate.ask("heartbeat", "dev-5", key) == (404, {"ok": False, "reason": "lock not found"})
    gate.takes("dev-6", key)


def test_the_order_of_the_checks_is_theirs(gate: Gate, key: str) -> None:
    for verb in ("acquire", "release", "heartbeat"):
        for body in (b"", b"{", b"\xff", b"null", b'{"secret":"a","secret":"b"}'):
            status, said = gate.post(verb, body)
            assert (status, said["ok"], said["error"]) == (400, False, "invalid JSON body")
        assert gate.post(verb, {})[1]["error"] == "missing secret"
        assert gate.post(verb, {"secret": WRONG})[1]["error"] == "missing resourceKey"
        said = gate.post(verb, {"secret": WRONG, "resourceKey": "nope"})[1]
        assert said["error"] == "Invalid URI format: Invalid URL"
        status, said = gate.post(verb, {"secret": WRONG, "resourceKey": key})
        assert (status, said["ok"], said["error"]) == (403, False, "invalid secret")
        assert said["reason"]
        assert WRONG not in str(said)


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-747")
def test_nobodys_secret_is_wrong_while_an_import_is_not_complete(tmp_path: Path, key: str) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS) as server:
        gate = Gate(server)
        gate.takes("dev-7", key)
        run_one(server.store, Freeze(id="import", over=None, incomplete=True))
        gate.secrets["dev-8"] = WRONG  # of a run that was not brought in yet
        for verb in ("acquire", "heartbeat", "release"):
            assert gate.ask(verb, "dev-8", key)[0] == 503
        run_one(server.store, Thaw(id="import"))
        assert gate.ask("heartbeat", "dev-7", key)[0] == 200


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-767")
def test_a_run_that_did_not_begin_or_end_in_a_frozen_store_is_not_said_to_have(tmp_path: Path) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS) as server:
        gate = Gate(server)
        gate.run("dev-7")
        run_one(server.store, Freeze(id="move"))
        for method, path, body in (
            ("POST", "/gateway/runs", {"holder": "dev-8"}),
            ("DELETE", "/gateway/runs/dev-7", None),
        ):
            reply = server.ask(method, path, body, who="admin")
            assert (method, reply.status, reply.json["code"]) == (method, 503, "upstream_unavailable")
            assert "frozen" in reply.json["details"]
        run_one(server.store, Thaw(id="move"))
        assert server.ask("DELETE", "/gateway/runs/dev-7", who="admin").json["ended"] == 1


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-768")
def test_no_run_is_missing_while_an_import_is_not_complete(tmp_path: Path) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS) as server:
        run_one(server.store, Freeze(id="import", incomplete=True))
        assert server.ask("GET", "/gateway/runs", who="admin").status == 503
        assert server.ask("DELETE", "/gateway/runs/dev-7", who="admin").status == 503


def test_a_gateway_url_that_ends_in_a_slash_works(gate: Gate, key: str) -> None:
    body = {"secret": gate.run("dev-7"), "resourceKey": key}
    assert gate.post("acquire", body, place="/gateway/")[0] == 200


def test_w4_no_ttl_makes_a_lock_immortal_or_already_over(gate: Gate, key: str) -> None:
    """Theirs takes "abc" for never, -5 for now and 1e12 for 31,700 years."""
    for ttl in ("abc", "10", -5, 0, 0.5, True, 1e12, 90_000):
        for verb in ("acquire", "heartbeat"):
            status, body = gate.ask(verb, "dev-8", key, ttl=ttl)
            assert (status, body["error"]) == (400, "invalid ttl"), ttl
    assert gate.own("dev-8") == []
    assert gate.acquire("dev-8", key, ttl=60)[0] == 200
    assert gate.own("dev-8")[0]["expiresAt"] == gate.server.clock() + 60_000
    status, body = gate.ask("heartbeat", "dev-8", key)
    assert body["expiresAt"] == gate.server.clock() + 60_000  # its own TTL, not the default


@pytest.mark.promise("session")
def test_w1_the_end_of_a_run_frees_nothing_that_another_took_since(gate: Gate, key: str) -> None:
    """Theirs: A's lock runs out, A heartbeats too late, B takes it, A exits, and B's lock is gone."""
    assert gate.acquire("A", key, ttl=1)[0] == 200
    gate.server.pass_time(1_000)
    assert gate.ask("heartbeat", "A", key)[0] == 404
    gate.takes("B", key)
    assert gate.end("A").json == {"holder": "A", "ended": 1, "released": []}
    assert gate.acquire("C", key)[1]["holder"] == "B"
    assert gate.ask("heartbeat", "B", key)[0] == 200


def two_and_two(gate: Gate, key: str, *holders: str) -> tuple[str, str]:
    one, two = f"{key}/1", f"{key}/2"
    for holder, each in zip(holders, (one, two), strict=True):
        assert gate.acquire(holder, each, ttl=24 * 3_600)[0] == 200
    return one, two


@pytest.mark.promise("deadlock")
def test_a_wait_in_a_circle_is_reported_with_the_circle(gate: Gate, key: str) -> None:
    r1, r2 = two_and_two(gate, key, "A1", "B1")
    assert gate.acquire("A1", r2)[1]["holder"] == "B1"
    status, body = gate.acquire("B1", r1)
    assert status == 409
    assert body == {
        "ok": False,
        "reason": f"possible deadlock: B1 → {r1} → A1 → {r2} → B1",
        "deadlock": True,
        "cycle": ["B1", r1, "A1", r2],
    }


@pytest.mark.full
@pytest.mark.promise("deadlock")
def test_runs_that_think_between_two_asks_are_told_each_time_one_asks(gate: Gate, key: str) -> None:
    r1, r2 = two_and_two(gate, key, "A6", "B6")
    gate.acquire("A6", r2)
    for _ in range(3):
        gate.server.pass_time(WANT_MS - 1_000)
        assert gate.acquire("B6", r1)[1]["cycle"] == ["B6", r1, "A6", r2]
        gate.server.pass_time(WANT_MS - 1_000)
        assert gate.acquire("A6", r2)[1]["cycle"] == ["A6", r2, "B6", r1]
    assert gate.ask("release", "A6", r1)[0] == 200
    gate.takes("B6", r1)
    assert gate.acquire("A6", r2)[1]["holder"] == "B6"


@pytest.mark.promise("deadlock")
def test_w2_who_skipped_a_lock_long_ago_does_not_wait_for_it(gate: Gate, key: str) -> None:
    """Theirs reports a deadlock for ever after one refusal."""
    r1, r2 = two_and_two(gate, key, "A2", "B2")
    assert gate.acquire("A2", r2)[0] == 409
    gate.server.pass_time(WANT_MS)
    status, body = gate.acquire("B2", r1)
    assert (status, body["holder"]) == (409, "A2")
    assert "deadlock" not in body


@pytest.mark.promise("deadlock")
def test_w2_letting_something_go_ends_the_waiting(gate: Gate, key: str) -> None:
    r1, r2 = two_and_two(gate, key, "A3", "B3")
    gate.takes("A3", f"{key}/other")
    assert gate.acquire("A3", r2)[0] == 409
    assert gate.ask("release", "A3", f"{key}/other")[0] == 200
    assert "deadlock" not in gate.acquire("B3", r1)[1]


@pytest.mark.promise("deadlock")
def test_w2_a_lock_that_changed_hands_does_not_put_its_new_holder_into_a_circle(gate: Gate, key: str) -> None:
    """Theirs tells C, who came later, of a deadlock with A, who has long moved on."""
    r1, r2 = two_and_two(gate, key, "A4", "B4")
    assert gate.acquire("A4", r2)[0] == 409
    gate.server.pass_time(1)
    assert gate.ask("release", "B4", r2)[0] == 200
    gate.takes("C4", r2)
    assert "deadlock" not in gate.acquire("C4", r1)[1]


@pytest.mark.promise("deadlock")
def test_w2_a_circle_is_found_though_one_of_it_asked_for_something_else_in_between(gate: Gate, key: str) -> None:
    """Theirs forgets the first of two waits, and finds no circle however long both go on asking."""
    r1, r2 = two_and_two(gate, key, "A5", "B5")
    gate.takes("C5", f"{key}/3")
    assert gate.acquire("A5", r2)[0] == 409
    assert gate.acquire("A5", f"{key}/3")[0] == 409
    assert gate.acquire("B5", r1)[0] == 409
    assert gate.acquire("A5", r2)[1]["cycle"] == ["A5", r2, "B5", r1]


def test_w5_a_key_cannot_bring_fields_of_its_own(gate: Gate, key: str) -> None:
    """What their scripts send for such keys: the text of the key pasted between two quotes."""
    secret = gate.run("dev-9")
    for tail in (
        '","ttl":86400,"z":"',
        '","ttl":"86400',
        '","resourceKey":"x:y',
        '","secret":"' + new_id(),
        '"',
        "\\",
    ):
        sent = f'{{"secret":"{secret}","resourceKey":"{key}{tail}"}}'
        status, body = gate.post("acquire", sent.encode())
        assert (status, body["ok"]) == (400, False), tail
    assert gate.own("dev-9") == []


def test_a_key_may_hold_quotes_when_it_is_escaped(gate: Gate, key: str) -> None:
    odd = key + '/"quoted"'
    gate.takes("dev-10", odd)
    assert gate.own("dev-10")[0]["resourceKey"] == odd


def test_a_list_has_ones_own_and_the_status_has_all(gate: Gate, key: str, name: str) -> None:
    gate.takes("dev-chat-12ab34cd", key)
    now_ms = gate.server.clock()
    entry = {"resourceKey": key, "holder": "dev-chat-12ab34cd", "heldSince": now_ms}
    assert gate.own("dev-chat-12ab34cd") == [entry | {"expiresAt": now_ms + TTL_MS}]
    status = gate.server.ask("GET", "/gateway/locks/status", who="operator")
    assert entry | {"agentName": "dev-chat"} in status.json["locks"]
    assert "secret" not in str(status.json)
    gate.server.lease(f"{name}-claimed", owner="some-one")
    status = gate.server.ask("GET", "/gateway/locks/status", who="operator")
    [other] = [entry for entry in status.json["locks"] if entry["resourceKey"] == f"{name}-claimed"]
    assert (other["agentName"], other["holder"]) == ("some-one", "some-one")


def test_listing_needs_a_secret_and_the_status_a_token_of_an_operator(gate: Gate) -> None:
    reply = gate.server.ask("GET", "/gateway/locks/list", who=None)
    assert (reply.status, reply.json["error"]) == (400, "missing secret")
    reply = gate.server.ask("GET", f"/gateway/locks/list?secret={WRONG}", who=None)
    assert (reply.status, reply.json["error"]) == (403, "invalid secret")
    reply = gate.server.ask("GET", "/gateway/locks/status", who=None)
    assert (reply.status, reply.json["ok"], reply.json["error"]) == (401, False, "Unauthorized")
    reply = gate.server.ask("GET", "/gateway/locks/status", who="agent")
    assert (reply.status, reply.json["ok"]) == (403, False)


@pytest.mark.parametrize("who", ["agent", "operator", None])
def test_only_an_admin_begins_and_ends_runs(gate: Gate, who: str | None) -> None:
    refused = 401 if who is None else 403
    assert gate.server.ask("POST", "/gateway/runs", {"holder": "x"}, who=who).status == refused
    assert gate.server.ask("DELETE", "/gateway/runs/x", who=who).status == refused
    listed = gate.server.ask("GET", "/gateway/runs", who=who)
    assert listed.status == (200 if who == "operator" else refused)


@pytest.mark.promise("session")
def test_ending_a_run_frees_all_it_held_and_spends_its_secret(gate: Gate, key: str) -> None:
    gate.takes("dev-11", f"{key}/1")
    gate.takes("dev-11", f"{key}/2")
    runs = gate.server.ask("GET", "/gateway/runs", who="admin").json["runs"]
    [run] = [run for run in runs if run["holder"] == "dev-11"]
    assert run["locks"] == [f"{key}/1", f"{key}/2"]
    assert gate.secrets["dev-11"] not in str(runs)
    assert gate.end("dev-11").json["released"] == [f"{key}/1", f"{key}/2"]
    assert gate.ask("acquire", "dev-11", key)[0] == 403
    gate.takes("dev-12", f"{key}/1")
    gone = gate.end("dev-11")
    assert (gone.status, gone.json["code"]) == (404, "not_found")


def test_a_run_may_have_a_secret_that_somebody_else_made(gate: Gate, key: str) -> None:
    secret = new_id()
    document = {"holder": "dev-13", "secret": secret}
    assert gate.server.ask("POST", "/gateway/runs", document, who="admin").status == 201
    assert gate.server.ask("POST", "/gateway/runs", document, who="admin").status == 201  # a repeat
    assert gate.post("acquire", {"secret": secret, "resourceKey": key})[0] == 200
    taken = gate.server.ask("POST", "/gateway/runs", {**document, "holder": "dev-14"}, who="admin")
    assert taken.status == 400
    gate.end("dev-13")
    assert gate.server.ask("POST", "/gateway/runs", document, who="admin").status == 400  # spent


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"holder": 5},
        {"holder": ""},
        {"holder": " x"},
        {"holder": "a\nb"},
        {"holder": "x" * 257},
        {"holder": "x", "secret": "short"},
        {"holder": "x", "secret": "with a blank in the middle"},
        {"holder": "x", "secret": 5},
        {"holder": "x", "secret": "s" * 257},
    ],
)
def test_a_run_that_cannot_be_is_refused_with_a_reason(gate: Gate, document: Any) -> None:
    reply = gate.server.ask("POST", "/gateway/runs", document, who="admin")
    assert reply.status in (400, 422)
    assert reply.json["details"]
    secret = document.get("secret") if isinstance(document, dict) else None
    assert not isinstance(secret, str) or secret not in str(reply.json)


def test_runs_of_different_namespaces_do_not_meet(gate: Gate, key: str) -> None:
    gate.run("dev-15", headers={"X-Dibs-Namespace": "team-b"})
    gate.takes("dev-15", key)
    gate.takes("dev-16", key)
    assert gate.end("dev-15").status == 404  # of the default namespace there is none


@pytest.mark.promise("same-answer")
def test_the_gateway_and_the_lock_routes_see_the_same_jobs(gate: Gate, key: str) -> None:
    name = key.replace("/", "%2F")
    gate.takes("dev-17", key)
    seen = gate.server.ask("GET", f"/locks/{name}").json
    assert (seen["status"], seen["owner"]) == ("held", "dev-17")
    assert gate.ask("release", "dev-17", key)[0] == 200
    gate.server.lease(name, owner="agent-7")
    assert gate.acquire("dev-17", key)[1]["holder"] == "agent-7"


def test_a_run_lives_by_its_calls(gate: Gate, key: str) -> None:
    def expires_at() -> str:
        runs = gate.server.ask("GET", "/gateway/runs", who="admin").json["runs"]
        return str(next(run["expires_at"] for run in runs if run["holder"] == "dev-18"))

    gate.run("dev-18")
    first = expires_at()
    gate.takes("dev-18", key)
    assert expires_at() == first  # not every call is worth a write of its own
    gate.server.pass_time(RUN_KEEP_MS)
    assert gate.ask("heartbeat", "dev-18", key)[0] == 200
    assert expires_at() == timestamp(gate.server.clock() + RUN_TTL_MS)


def test_large_values_are_refused_and_leave_nothing_behind(gate: Gate, key: str) -> None:
    large = "x" * 60_000
    secret = gate.run("dev-19")
    assert gate.post("acquire", {"secret": secret, "resourceKey": f"x:{large}"})[0] == 400
    assert gate.post("acquire", {"secret": large, "resourceKey": key})[0] == 403
    status, body = gate.post("acquire", {"secret": large * 2, "resourceKey": f"x:{large}"})
    assert (status, body["ok"]) == (413, False)
    assert gate.own("dev-19") == []


def test_a_client_that_leaves_in_mid_request_leaves_nothing_behind(gate: Gate, key: str) -> None:
    secret = gate.run("dev-21")
    body = json.dumps({"secret": secret, "resourceKey": key}).encode()
    head = f"POST /gateway/locks/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    before = gate.server.connections()
    with gate.server.raw() as connection:
        connection.sendall(head.encode() + body[:-5])
        wait_until(lambda: gate.server.connections() > before, "the server has seen it")
    wait_until(lambda: gate.server.connections() == before, "the server has seen it go")
    assert gate.own("dev-21") == []


def test_a_credential_holds_no_more_jobs_than_it_may(tmp_path: Any) -> None:
    with running(tmp_path, gateway_ttl_ms=TTL_MS, locks_per_principal=1, real_time=True) as server:
        gate = Gate(server)
        gate.takes("dev-20", "a:1")
        status, body = gate.acquire("dev-20", "a:2")
        assert (status, body["ok"]) == (409, False)
        assert "as many jobs as it may" in body["reason"]


def test_without_the_flag_there_is_no_gateway(fast: Server) -> None:
    for path in ("/gateway/locks/acquire", "/gateway/runs"):
        reply = fast.ask("POST", path, {"holder": "x"}, who="admin")
        assert (reply.status, reply.json["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        ("/gateway/locks/list?x=1&secret=abc-123&y=2", "/gateway/locks/list?x=1&secret=...&y=2"),
        ("/gateway/locks/list?secr%65t=abc-123", "/gateway/locks/list?secr%65t=..."),
        ("/gateway/locks/list?%53ECRET=abc-123", "/gateway/locks/list?%53ECRET=..."),
        ("/gateway/locks/list?+secret=abc-123", "/gateway/locks/list?+secret=..."),
        ("/gateway/locks/list?a=1?secret=abc", "/gateway/locks/list?a=..."),
        ("/gateway/calls/x?a=1;secret=abc", "/gateway/calls/x?a=..."),
        ("/gateway/locks/list?secret%3Dabc", "/gateway/locks/list?secret=..."),
        ("/locks?token=abc-123", "/locks?token=..."),
        ("/sessions/0a1b2c3d-0000-4000-8000-000000000000/keepalive", "/sessions/0a1b2c3d.../keepalive"),
        ("/locks?prefix=x", "/locks?prefix=x"),
    ],
)
def test_the_access_log_does_not_hold_a_secret(sent: str, logged: str) -> None:
    assert without_secrets_in_path(sent) == logged


def test_refusals_and_heartbeats_of_a_run_are_in_the_history(gate: Gate, key: str) -> None:
    gate.takes("dev-1", key)
    assert gate.acquire("dev-2", key)[0] == 409
    assert gate.ask("heartbeat", "dev-1", key)[0] == 200
    assert gate.ask("release", "dev-1", key)[0] == 200
    name = key.replace("/", "%2F")
    events = gate.server.ask("GET", f"/locks/{name}/history", who="admin").json["events"]
    assert [(each["event"], each["owner"]) for each in events] == [
        ("acquired", "dev-1"),
        ("refused", "dev-2"),
        ("renewed", "dev-1"),
        ("released", "dev-1"),
    ]
    assert events[1]["reason"] == "held by dev-1"
