"""OctoStore's contract, row by row, and what dibs adds to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from dibs._version import __version__
from tests.server.harness import TOKENS, UNKNOWN_LEASE, Poll, read_all, wait_until

if TYPE_CHECKING:
    from tests.server.harness import Response, Server

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def assert_error(reply: Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = reply.json
    assert (reply.status, body.get("code")) == (status, code), body
    more = {"ended"} if code == "lease_not_current" else set()
    if status == 401:
        assert "/llms.txt" in body.pop("help")
    assert set(body) - {"retry_after_ms"} - more == {"error", "code", "details", "request_id"}
    assert body["request_id"] == reply.headers["x-request-id"]
    assert body["details"]
    return body


def test_an_acquired_reply_has_every_field_of_the_contract(server: Server, name: str) -> None:
    reply = server.acquire(name, {"ttl_seconds": 120, "metadata": "repo=acme/app", "owner": "agent-7"})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    body = reply.json
    assert body["status"] == "acquired"
    assert UUID.fullmatch(body["lease_id"])
    assert body["fencing_token"] == 1
    assert TIME.fullmatch(body["expires_at"])
    assert body["remaining_ms"] == 120_000
    assert body["renew_after_ms"] == 60_000
    assert (body["metadata"], body["owner"], body["attempt"]) == ("repo=acme/app", "agent-7", 1)
    assert "previous" not in body


def test_a_held_reply_says_who_since_when_and_how_long_still(server: Server, name: str) -> None:
    lease = server.lease(name, owner="agent-7", metadata="m", ttl_seconds=90)
    server.ask("POST", f"/locks/{name}/renew", {"lease_id": lease, "checkpoint": "half", "ttl_seconds": 90})
    reply = server.acquire(name, {"owner": "agent-8"}, who="other")
    body = reply.json
    assert (reply.status, body["status"]) == (200, "held")
    assert UUID.fullmatch(body["holder_id"])
    assert TIME.fullmatch(body["expires_at"])
    assert TIME.fullmatch(body["since"])
    assert body["retry_after_ms"] == body["remaining_ms"] == 90_000
    assert (body["owner"], body["metadata"], body["checkpoint"]) == ("agent-7", "m", "half")
    assert lease not in reply.body.decode()


@pytest.mark.promise("excl:same-token")
def test_two_callers_with_one_token_keep_each_other_out(server: Server, name: str) -> None:
    assert server.acquire(name).json["status"] == "acquired"
    assert server.acquire(name).json["status"] == "held"


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("where", ["field", "header", "quoted header", "both"])
def test_the_same_request_key_gives_the_same_lease(server: Server, name: str, where: str) -> None:
    fields = {"request_key": "k-1"} if where in ("field", "both") else {}
    headers = {"header": {"Idempotency-Key": "k-1"}, "quoted header": {"Idempotency-Key": '"k-1"'}}
    sent = headers.get(where, headers["header"] if where == "both" else {})
    first = server.acquire(name, fields, headers=sent).json
    again = server.acquire(name, {"request_key": "k-1"}).json
    assert first["status"] == again["status"] == "acquired"
    assert first["lease_id"] == again["lease_id"]
    assert first["fencing_token"] == again["fencing_token"]
    assert server.acquire(name, {"request_key": "k-1"}, who="other").json["status"] == "held"


@pytest.mark.promise("idem:acquire")
def test_a_request_key_whose_lease_has_ended_claims_nothing(server: Server, name: str) -> None:
    lease = server.lease(name, request_key="k-1")
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
    body = assert_error(server.acquire(name, {"request_key": "k-1"}), 409, "conflict")
    assert "new request key" in body["details"]


def test_a_request_key_in_the_header_that_differs_from_the_body_is_refused(server: Server, name: str) -> None:
    reply = server.acquire(name, {"request_key": "a"}, headers={"Idempotency-Key": "b"})
    assert_error(reply, 400, "invalid_input")
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


def test_renewing_starts_the_time_anew(server: Server, name: str) -> None:
    lease = server.lease(name, ttl_seconds=60)
    reply = server.ask("POST", f"/locks/{name}/renew", {"lease_id": lease.upper(), "ttl_seconds": 300})
    body = reply.json
    assert (reply.status, body["lease_id"], body["renew_after_ms"]) == (200, lease, 150_000)
    assert TIME.fullmatch(body["expires_at"])


@pytest.mark.promise("idem:release")
def test_releasing_answers_null_and_may_be_repeated(server: Server, name: str) -> None:
    lease = server.lease(name)
    for _ in range(2):
        reply = server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
        assert (reply.status, reply.body) == (200, b"null")
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


@pytest.mark.promise("proof")
@pytest.mark.parametrize("verb", ["renew", "release"])
def test_a_wrong_lease_is_400_while_occupied_and_404_while_free(server: Server, name: str, verb: str) -> None:
    lease = server.lease(name)
    path = f"/locks/{name}/{verb}"
    assert_error(server.ask("POST", path, {"lease_id": UNKNOWN_LEASE}), 400, "lease_not_current")
    assert_error(server.ask("POST", path, {"lease_id": lease}, who="other"), 400, "lease_not_current")
    assert server.ask("GET", f"/locks/{name}").json["status"] == "held"
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
    assert_error(server.ask("POST", path, {"lease_id": UNKNOWN_LEASE}), 404, "lease_not_current")


@pytest.mark.promise("proof")
@pytest.mark.promise("idem:release")
@pytest.mark.parametrize("verb", ["renew", "release"])
def test_a_late_word_from_a_former_owner_leaves_the_new_one_alone(server: Server, name: str, verb: str) -> None:
    lost = server.lease(name, ttl_seconds=1)
    server.pass_time(1_500)
    successor = server.acquire(name, {"owner": "agent-8"}, who="other").json
    assert successor["previous"]["how"] == "expired"
    body = assert_error(server.ask("POST", f"/locks/{name}/{verb}", {"lease_id": lost}), 400, "lease_not_current")
    assert "expired" in body["details"]
    assert "agent-8" in body["details"]
    status = server.ask("GET", f"/locks/{name}").json
    assert (status["owner"], status["fencing_token"]) == ("agent-8", successor["fencing_token"])


def test_whoever_takes_over_is_told_where_the_last_owner_stopped(server: Server, name: str) -> None:
    lease = server.lease(name, ttl_seconds=2, owner="agent-7")
    server.ask("POST", f"/locks/{name}/renew", {"lease_id": lease, "checkpoint": "step 3 of 5"})
    server.pass_time(2_500)
    body = server.acquire(name).json
    assert body["attempt"] == 2
    previous = body["previous"]
    assert (previous["owner"], previous["how"], previous["checkpoint"]) == (
        "agent-7",
        "expired",
        "step 3 of 5",
    )
    assert previous["fencing_token"] < body["fencing_token"]


def test_a_job_marked_done_answers_done_until_the_mark_runs_out(server: Server, name: str) -> None:
    lease = server.lease(name, owner="agent-7")
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease, "done_seconds": 3, "result": "PR 12"})
    body = server.acquire(name).json
    assert (body["status"], body["owner"], body["result"]) == ("done", "agent-7", "PR 12")
    assert server.ask("GET", f"/locks/{name}").json["status"] == "done"
    server.pass_time(3_000)
    assert server.acquire(name).json["status"] == "acquired"


def test_a_job_rests_after_an_involuntary_loss_and_not_after_a_release(server: Server, name: str) -> None:
    lease = server.lease(name, lock_delay_seconds=30)
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
    server.lease(name, lock_delay_seconds=30, ttl_seconds=1)
    server.pass_time(1_500)
    reply = server.acquire(name)
    body = reply.json
    assert (reply.status, body["status"], body["lock_delay_seconds"]) == (409, "delayed", 30)
    assert 0 < body["retry_after_ms"] <= 30_000
    assert TIME.fullmatch(body["available_at"])
    assert "retry-after" not in reply.headers
    assert "error" not in body


def test_looking_at_a_job_shows_it_free_and_held(server: Server, name: str) -> None:
    body = server.ask("GET", f"/locks/{name}").json
    assert (body["name"], body["status"], body["holder_id"], body["expires_at"]) == (name, "free", None, None)
    assert (body["metadata"], body["fencing_token"]) == (None, 0)
    lease = server.lease(name, metadata="m")
    reply = server.ask("GET", f"/locks/{name}", who="other")
    assert (reply.json["status"], reply.json["metadata"], reply.json["fencing_token"]) == ("held", "m", 1)
    assert lease not in reply.body.decode()
    assert "acl" not in reply.json


def test_the_list_shows_held_jobs_of_a_prefix_page_by_page(server: Server, name: str) -> None:
    for letter in "cab":
        server.lease(f"{name}-{letter}")
    free = server.lease(f"{name}-free")
    server.ask("POST", f"/locks/{name}-free/release", {"lease_id": free})
    body = server.ask("GET", f"/locks?prefix={name}-&limit=2").json
    assert [lock["name"] for lock in body["locks"]] == [f"{name}-a", f"{name}-b"]
    assert (body["total"], body["prefix"], body["next"]) == (None, f"{name}-", f"{name}-b")
    rest = server.ask("GET", f"/locks?prefix={name}-&limit=2&after={body['next']}").json
    assert [lock["name"] for lock in rest["locks"]] == [f"{name}-c"]
    assert (rest["total"], rest["next"]) == (None, None)
    whole = server.ask("GET", f"/locks?prefix={name}-&limit=3").json
    assert (whole["total"], whole["next"]) == (3, None)
    assert all(lock["status"] == "held" and "acl" not in lock for lock in rest["locks"])


def test_an_access_list_lets_in_who_is_on_it(server: Server, name: str) -> None:
    acl = {"acquire": ["user:agent", f"token:{TOKENS['operator']}"]}
    lease = server.lease(name, acl=acl)
    shown = server.ask("GET", f"/locks/{name}", who="other").json["acl"]
    assert shown == {"acquire": ["user:agent", "token:[redacted]"]}
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
    assert_error(server.acquire(name, who="other"), 403, "forbidden")
    assert_error(server.acquire(name, {"acl": {"acquire": ["user:other"]}}), 409, "conflict")
    by_token = server.acquire(name, who="operator").json
    assert by_token["status"] == "acquired"
    server.ask("POST", f"/locks/{name}/release", {"lease_id": by_token["lease_id"]}, who="operator")
    assert server.acquire(name, who="admin").json["status"] == "acquired"


def test_the_owner_or_an_admin_may_change_an_access_list(server: Server, name: str) -> None:
    change = {"acl": {"acquire": ["user:other"]}}
    path = f"/locks/{name}/acl"
    assert_error(server.ask("PUT", path, change), 404, "not_found")
    server.lease(name)
    assert_error(server.ask("PUT", path, change, who="other"), 403, "forbidden")
    reply = server.ask("PUT", path, change)
    assert (reply.status, reply.json) == (200, {"name": name, "acl": {"acquire": ["user:other"]}})
    assert server.ask("PUT", path, {"acl": {"acquire": ["user:agent"]}}, who="admin").status == 200
    assert_error(server.ask("PUT", path, {"acl": {"acquire": [1]}}, who="admin"), 400, "invalid_input")
    assert_error(server.ask("PUT", path, {}), 422, "invalid_input")


@pytest.mark.promise("access")
@pytest.mark.parametrize("none", [None, {"acquire": []}])
def test_an_access_list_can_be_removed(server: Server, name: str, none: dict[str, Any] | None) -> None:
    server.lease(name, acl={"acquire": ["user:agent"]})
    assert server.ask("PUT", f"/locks/{name}/acl", {"acl": none}).json["acl"] == {"acquire": []}
    assert "acl" not in server.ask("GET", f"/locks/{name}").json
    assert server.acquire(name, who="other").json["status"] == "held"


@pytest.mark.promise("access")
def test_who_waits_and_is_not_on_the_new_access_list_is_told_so_and_not_given_the_job(
    server: Server, name: str
) -> None:
    lease = server.lease(name)
    waiting = Poll(server, f"/locks/{name}/acquire", {"wait_seconds": 30}, who="other")
    wait_until(lambda: server.waiting() == 1, "in line")
    assert server.ask("PUT", f"/locks/{name}/acl", {"acl": {"acquire": ["user:agent"]}}).status == 200
    assert waiting.answer()["code"] == "forbidden"
    server.ask("POST", f"/locks/{name}/release", {"lease_id": lease})
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


@pytest.mark.promise("attempts")
def test_work_that_failed_counts_rests_until_its_retry_time_and_is_parked_in_the_end(server: Server, name: str) -> None:
    lease = server.lease(name, owner="agent-7", max_attempts=2)
    path = f"/locks/{name}/release"
    failure = {"lease_id": lease, "failed": True, "reason": "no disk", "retry_after_seconds": 5}
    reply = server.ask("POST", path, failure)
    assert (reply.status, reply.json["status"], reply.json["failures"]) == (200, "failed", 1)
    assert (reply.json["parked"], reply.json["retry_after_ms"]) == (False, 5_000)
    resting = server.acquire(name, who="other")
    assert (resting.status, resting.json["status"]) == (409, "delayed")
    assert 0 < resting.json["retry_after_ms"] <= 5_000
    assert resting.json["previous"]["reason"] == "no disk"
    either = server.ask("POST", "/locks/acquire-any", {"names": [name, f"{name}-2"]}, who="other")
    assert either.json["name"] == f"{name}-2"
    waiting = Poll(server, f"/locks/{name}/acquire", {"wait_seconds": 120}, who="other")
    wait_until(lambda: server.waiting() == 1, "in line")
    server.pass_time(6_000)
    granted = waiting.answer()
    assert (granted["status"], granted["attempt"]) == ("acquired", 2)
    previous = {key: granted["previous"][key] for key in ("owner", "how", "reason", "attempt")}
    assert previous == {"owner": "agent-7", "how": "failed", "reason": "no disk", "attempt": 1}
    again = {"lease_id": granted["lease_id"], "failed": True}
    assert server.ask("POST", path, again, who="other").json["parked"] is True
    assert server.acquire(name).json["status"] == "parked"
    kinds = [event["event"] for event in server.ask("GET", f"/locks/{name}/history").json["events"]]
    assert kinds == ["acquired", "failed", "queued", "acquired", "failed", "parked"]


def test_only_an_operator_breaks_a_claim_and_the_owner_is_told_why(server: Server, name: str) -> None:
    lease = server.lease(name, owner="agent-7")
    path = f"/locks/{name}/break"
    assert_error(server.ask("POST", path, {"reason": "stuck"}), 403, "forbidden")
    assert_error(server.ask("POST", path, {}, who="operator"), 400, "invalid_input")
    reply = server.ask("POST", path, {"reason": "stuck since noon"}, who="operator")
    assert (reply.status, reply.json["broken"][0]["owner"]) == (200, "agent-7")
    renewed = server.ask("POST", f"/locks/{name}/renew", {"lease_id": lease})
    assert "stuck since noon" in assert_error(renewed, 404, "lease_not_current")["details"]
    assert server.ask("POST", path, {"reason": "again"}, who="operator").json["broken"] == []


def test_history_shows_the_newest_events_and_can_be_read_on(server: Server, name: str) -> None:
    leases = [server.lease(name)]
    server.ask("POST", f"/locks/{name}/release", {"lease_id": leases[-1]})
    for _ in range(2):
        leases.append(server.lease(name))
        server.ask("POST", f"/locks/{name}/release", {"lease_id": leases[-1]})
    reply = server.ask("GET", f"/locks/{name}/history?limit=2")
    assert [event["event"] for event in reply.json["events"]] == ["acquired", "released"]
    everything = server.ask("GET", f"/locks/{name}/history").json["events"]
    assert [event["event"] for event in everything] == ["acquired", "released"] * 3
    assert everything[-2:] == reply.json["events"]
    rest = server.ask("GET", f"/locks/{name}/history?limit=2&after={everything[0]['seq']}").json["events"]
    assert rest == everything[1:3]
    assert not any(lease in reply.body.decode() for lease in leases)


def test_names_in_two_namespaces_are_two_jobs(server: Server, name: str) -> None:
    assert server.acquire(name).json["status"] == "acquired"
    in_header = server.acquire(name, headers={"X-Dibs-Namespace": "b"}).json
    assert in_header["status"] == "acquired"
    assert server.ask("POST", f"/locks/{name}/acquire?namespace=b", {}).json["status"] == "held"
    assert server.ask("GET", f"/locks/{name}?namespace=c").json["status"] == "free"
    assert server.ask("GET", f"/locks?namespace=b&prefix={name}").json["total"] == 1
    assert len(server.ask("GET", f"/locks/{name}/history?namespace=b").json["events"]) == 1


def test_a_token_with_a_namespace_works_in_it_and_nowhere_else(server: Server, name: str) -> None:
    assert server.acquire(name, who="scoped").json["status"] == "acquired"
    assert server.ask("GET", f"/locks/{name}?namespace=team-a").json["status"] == "held"
    assert_error(server.acquire(name, who="scoped", headers={"X-Dibs-Namespace": "b"}), 403, "forbidden")
    assert_error(server.ask("GET", "/locks?namespace=b", who="scoped"), 403, "forbidden")
    reply = server.ask("GET", f"/locks/{name}?namespace=b", headers={"X-Dibs-Namespace": "c"})
    assert_error(reply, 400, "invalid_input")
    assert_error(server.acquire(name, headers={"X-Dibs-Namespace": "no/slash"}), 400, "invalid_lock_name")


@pytest.mark.parametrize(
    "text", ["a/b", "github://acme/app/issues/42", "jöb 1", "100%", "日本", "a+b", "🐙", "..", "a?b#c"]
)
def test_a_name_may_be_any_printable_text_sent_percent_encoded(server: Server, name: str, text: str) -> None:
    whole = f"{text} {name}"
    reply = server.acquire(quote(whole, safe=""))
    assert (reply.status, reply.json["name"]) == (200, whole)
    assert server.ask("GET", f"/locks/{quote(whole, safe='')}").json["status"] == "held"
    listed = server.ask("GET", f"/locks?prefix={quote(whole, safe='')}").json
    assert [lock["name"] for lock in listed["locks"]] == [whole]


@pytest.mark.promise("names:one-name")
def test_names_are_folded_over_http_only_on_request(server: Server, name: str) -> None:
    written, one = f"https://github.com/Acme/{name}/pull/42", f"github://acme/{name}/issues/42"
    path, asks = quote(written, safe=""), {"X-Dibs-Names": "one"}
    assert server.acquire(path).json["name"] == written
    assert server.acquire(path, headers=asks).json["name"] == one
    assert server.ask("GET", f"/locks/{path}", headers=asks).json["name"] == one
    assert server.ask("GET", f"/locks/{path}/history", headers=asks).json["name"] == one
    assert server.acquire(quote("#42", safe=""), headers=asks).json["name"] == "#42"
    assert_error(server.acquire(path, headers={"X-Dibs-Names": "all"}), 400, "invalid_input")
    assert_error(server.acquire(quote("https://a:b@c.d/e", safe=""), headers=asks), 400, "invalid_lock_name")


def test_every_response_has_a_request_id_of_its_own(server: Server, name: str) -> None:
    seen = set()
    for method, path in (
        ("GET", f"/locks/{name}"),
        ("GET", "/nowhere"),
        ("GET", "/health"),
        ("DELETE", "/locks"),
    ):
        reply = server.ask(method, path, headers={"X-Request-Id": "mine"})
        assert re.fullmatch(r"req_[0-9a-f]{32}", reply.headers["x-request-id"])
        seen.add(reply.headers["x-request-id"])
    assert len(seen) == 4


def test_the_open_addresses_need_no_token(server: Server) -> None:
    health = server.ask("GET", "/health", who=None)
    assert health.json["dibs"] == __version__
    assert (health.status, health.json["status"], health.json["storage"]) == (200, "ok", "memory")
    assert isinstance(health.json["db_size_bytes"], int)
    assert server.ask("GET", "/healthz", who=None).status == 200
    assert server.ask("GET", "/readyz", who=None).status == 200
    status = server.ask("GET", "/status", who=None).json
    counts = {
        *("status", "uptime_seconds", "version"),
        *("active_locks", "waiting", "sessions", "total_acquires", "total_releases", "total_failures"),
    }
    assert set(status) == counts
    assert set(server.ask("GET", "/status").json) == {*counts, "total_users"}


def test_head_gets_the_head_of_get(server: Server, name: str) -> None:
    for path in ("/health", f"/locks/{name}"):
        reply = server.ask("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
        assert int(reply.headers["content-length"]) > 0


@pytest.mark.fault("F-098")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/locks/x", None),
        ("POST", "/locks/x/acquire", {}),
        ("POST", "/locks/x/renew", {}),
        ("GET", "/locks", None),
        ("GET", "/nowhere", None),
        ("GET", "/metrics", None),
        ("POST", "/tokens", {"name": "kept-by-nobody"}),
        ("POST", "/logout", None),
        ("GET", "/openapi.json", None),
    ],
)
def test_nobody_keeps_an_answer_or_guesses_its_type(
    server: Server, method: str, path: str, body: dict[str, str] | None
) -> None:
    headers = server.ask(method, path, body, who="admin", headers={"X-Dibs-Request": "1"}).headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


@pytest.mark.fault("F-098")
def test_a_file_of_the_page_says_once_how_it_is_kept(server: Server) -> None:
    with server.raw() as connection:
        connection.sendall(b"GET /ui/app.js HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head = read_all(connection).lower().partition(b"\r\n\r\n")[0]
    assert head.count(b"cache-control:") == head.count(b"x-content-type-options:") == 1
