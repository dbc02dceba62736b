"""Sessions over HTTP: OctoStore's contract (its section 1.2), and what ends with a session."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.server.harness import JSON, UNKNOWN_LEASE, Poll, running, wait_until
from tests.server.test_contract import assert_error

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.harness import Response, Server

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def open_session(server: Server, who: str = "agent", **fields: Any) -> str:
    reply = server.ask("POST", "/sessions", fields, who=who)
    assert reply.status == 201, reply.json
    return str(reply.json["session_id"])


def keep(server: Server, session: str, **more: Any) -> Response:
    return server.ask("POST", f"/sessions/{session}/keepalive", **more)


@pytest.mark.parametrize(
    ("asked", "ttl"),
    [
        ({}, 60),
        ({"ttl_seconds": None}, 60),
        ({"ttl_seconds": 0}, 10),
        ({"ttl_seconds": 9}, 10),
        ({"ttl_seconds": 90}, 90),
        ({"ttl_seconds": 301}, 300),
        ({"ttl_seconds": 2**32 - 1}, 300),
    ],
)
def test_opening_a_session_clamps_its_time(server: Server, asked: dict[str, Any], ttl: int) -> None:
    reply = server.ask("POST", "/sessions", asked)
    assert reply.status == 201
    assert re.fullmatch(UUID, reply.json["session_id"])
    assert re.fullmatch(TIME, reply.json["expires_at"])
    assert (reply.json["keepalive_interval_secs"], reply.json["remaining_ms"]) == (ttl // 2, ttl * 1000)


def test_a_session_is_shown_with_what_it_holds(server: Server, name: str) -> None:
    session = open_session(server, owner="agent-7", metadata="m")
    server.lease(name, session_id=session)
    server.lease(f"{name}-2", session_id=session, ephemeral=False)
    body = server.ask("GET", f"/sessions/{session}").json
    assert (body["session_id"], body["user_id"], body["active"]) == (session, "agent", True)
    assert (body["lock_count"], body["owner"], body["metadata"]) == (2, "agent-7", "m")
    assert [hold["name"] for hold in body["holds"]] == [name, f"{name}-2"]
    assert "lease_id" not in str(body)


@pytest.mark.parametrize("body", [None, b"", b"{}", b'{"surprise":1}'])
def test_a_keepalive_needs_no_body_and_starts_the_time_anew(server: Server, body: bytes | None) -> None:
    session = open_session(server, ttl_seconds=20)
    server.pass_time(8_000)
    reply = keep(server, session, body=body, headers=JSON if body else {})
    assert (reply.status, reply.json["session_id"], reply.json["remaining_ms"]) == (200, session, 20_000)
    assert re.fullmatch(TIME, reply.json["expires_at"])


@pytest.mark.promise("session")
def test_two_tokens_of_one_name_in_two_namespaces_do_not_share_a_session(server: Server, name: str) -> None:
    session = open_session(server, "bob-a")
    assert server.acquire(name, {"session_id": session}, who="bob-a").json["status"] == "acquired"
    assert_error(keep(server, session, who="bob-b"), 404, "not_found")
    assert_error(server.ask("GET", f"/sessions/{session}", who="bob-b"), 404, "not_found")
    assert_error(server.ask("DELETE", f"/sessions/{session}", who="bob-b"), 404, "not_found")
    assert_error(server.acquire(name, {"session_id": session}, who="bob-b"), 404, "not_found")
    mine = server.acquire(name, who="bob-b").json
    handed = {"lease_id": mine["lease_id"], "to_session": session}
    assert_error(server.ask("POST", f"/locks/{name}/transfer", handed, who="bob-b"), 404, "not_found")
    assert server.ask("GET", "/sessions", who="bob-b").json["sessions"] == []
    assert keep(server, session, who="bob-a").status == 200


@pytest.mark.promise("session")
def test_an_operator_of_one_namespace_sees_its_sessions_and_no_others(server: Server, name: str) -> None:
    ours, theirs = (
        open_session(server, "bob-a", owner=f"{name}-a"),
        open_session(server, "bob-b", owner=f"{name}-b"),
    )
    server.acquire(f"{name}-secret", {"session_id": theirs}, who="bob-b")
    seen = server.ask("GET", "/sessions", who="operator-a")
    assert f"{name}-a" in [each["owner"] for each in seen.json["sessions"]]
    assert f"{name}-b" not in seen.body.decode()
    assert f"{name}-secret" not in seen.body.decode()
    everybody = [each["owner"] for each in server.ask("GET", "/sessions", who="operator").json["sessions"]]
    assert {f"{name}-a", f"{name}-b"} <= set(everybody)
    for session, who in ((ours, "bob-a"), (theirs, "bob-b")):
        assert server.ask("DELETE", f"/sessions/{session}", who=who).status == 204


def test_a_session_id_is_known_in_capitals_too(server: Server) -> None:
    assert keep(server, open_session(server).upper()).status == 200


@pytest.mark.promise("session")
def test_ending_a_session_is_204_and_frees_what_it_had(server: Server, name: str) -> None:
    session = open_session(server)
    server.lease(name, session_id=session)
    server.lease(f"{name}-own-time", session_id=session, ephemeral=False)
    other = server.lease(f"{name}-other")
    reply = server.ask("DELETE", f"/sessions/{session}")
    assert (reply.status, reply.body) == (204, b"")
    assert "content-length" not in reply.headers
    assert "content-type" not in reply.headers
    assert re.fullmatch(r"req_[0-9a-f]{32}", reply.headers["x-request-id"])
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"
    assert server.ask("GET", f"/locks/{name}-own-time").json["status"] == "held"
    assert server.ask("POST", f"/locks/{name}-other/renew", {"lease_id": other}).status == 200, (
        "nothing that is not its own"
    )


@pytest.mark.promise("session")
def test_ending_a_session_takes_it_out_of_every_line_and_moves_them(server: Server, name: str) -> None:
    session = open_session(server)
    lease = server.lease(f"{name}-held", session_id=session)
    blocking = server.lease(f"{name}-wanted")
    before = server.waiting()
    inside = Poll(server, f"/locks/{name}-wanted/acquire", {"wait_seconds": 60, "session_id": session, "owner": "in"})
    wait_until(lambda: server.waiting() == before + 1, "it does not wait")
    outside = [
        Poll(server, f"/locks/{name}-{job}/acquire", {"wait_seconds": 60, "owner": "out"}) for job in ("held", "wanted")
    ]
    wait_until(lambda: server.waiting() == before + 3, "they do not wait")
    assert server.ask("GET", f"/sessions/{session}").json["waits"] == [f"{name}-wanted"]
    assert server.ask("DELETE", f"/sessions/{session}").status == 204
    assert inside.answer()["code"] == "session_expired"
    assert outside[0].answer()["status"] == "acquired"
    server.ask("POST", f"/locks/{name}-wanted/release", {"lease_id": blocking})
    assert outside[1].answer()["owner"] == "out"
    assert server.ask("POST", f"/locks/{name}-held/renew", {"lease_id": lease}).status == 400


@pytest.mark.promise("session")
def test_a_silent_session_is_over_and_so_is_what_it_held(server: Server, name: str) -> None:
    session = open_session(server, ttl_seconds=10)
    server.lease(name, session_id=session)
    server.pass_time(10_500)
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"
    assert_error(keep(server, session), 410, "session_expired")
    assert_error(server.acquire(name, {"session_id": session}), 410, "session_expired")
    shown = server.ask("GET", f"/sessions/{session}").json
    assert (shown["active"], shown["lock_count"], shown["remaining_ms"]) == (False, 0, 0)
    assert_error(server.ask("DELETE", f"/sessions/{session}"), 410, "session_expired")


def test_a_session_that_was_ended_says_so(server: Server) -> None:
    session = open_session(server)
    assert server.ask("DELETE", f"/sessions/{session}").status == 204
    body = assert_error(keep(server, session), 410, "session_expired")
    assert (body["error"], body["code"]) == ("Session expired", "session_expired")
    assert server.ask("DELETE", f"/sessions/{session}").status == 204  # its first reply may have been lost


ROUTES = [("POST", "/sessions/{}/keepalive"), ("GET", "/sessions/{}"), ("DELETE", "/sessions/{}")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_session_that_is_unknown_or_somebody_elses_is_not_found(server: Server, method: str, path: str) -> None:
    foreign = open_session(server, who="other")
    for session, who in ((UNKNOWN_LEASE, "agent"), (foreign, "agent"), (foreign, "admin")):
        body = assert_error(server.ask(method, path.format(session), who=who), 404, "not_found")
        assert body["error"] == "Session not found"
    assert keep(server, foreign, who="other").status == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("bad", ["x", "", "%zz", "%ff", UNKNOWN_LEASE[:-1], f"{UNKNOWN_LEASE}0"])
def test_a_session_id_that_is_none_is_refused(server: Server, method: str, path: str, bad: str) -> None:
    assert_error(server.ask(method, path.format(bad)), 400, "invalid_input")


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/sessions")])
def test_sessions_are_for_callers_who_are_known(server: Server, method: str, path: str) -> None:
    where = path.format("not-an-id")  # who asks is looked at before what is asked
    assert_error(server.ask(method, where, who=None), 401, "authentication_required")
    assert_error(server.ask(method, where, who="nobody"), 401, "authentication_failed")


@pytest.mark.parametrize(
    ("body", "headers", "who", "status"),
    [
        (b"{}", {}, None, 415),
        (b"{", JSON, None, 400),
        (b"[]", JSON, None, 422),
        (b'{"ttl_seconds":-1}', JSON, None, 422),
        (b'{"ttl_seconds":"60"}', JSON, None, 422),
        (b'{"owner":7}', JSON, None, 422),
        (b"{}", JSON, None, 401),
        (b'{"owner":"%b"}' % (b"x" * 257), JSON, "agent", 400),
        (b'{"metadata":"%b"}' % (b"x" * 1025), JSON, "agent", 400),
    ],
)
def test_what_is_wrong_with_opening_a_session_is_reported_in_the_contracts_order(
    server: Server, body: bytes, headers: dict[str, str], who: str | None, status: int
) -> None:
    reply = server.ask("POST", "/sessions", body, who=who, headers=headers)
    assert reply.status == status
    help_for_strangers = {"help"} if status == 401 else set()
    assert set(reply.json) == {"error", "code", "details", "request_id"} | help_for_strangers


def test_a_body_of_a_keepalive_that_is_there_must_be_json(server: Server) -> None:
    session = open_session(server)
    assert keep(server, session, body=b"x", headers={"Content-Type": "text/plain"}).status == 415
    assert keep(server, session, body=b"{", headers=JSON).status == 400
    assert keep(server, session, body=b"[]", headers=JSON).status == 422


def test_the_list_of_sessions_is_the_callers_own_or_for_operators_everybodys(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        mine, theirs = open_session(server), open_session(server, who="other")
        ended = open_session(server)
        server.lease("job", session_id=mine)
        assert server.ask("GET", "/status").json["sessions"] == 3
        server.ask("DELETE", f"/sessions/{ended}")
        assert server.ask("GET", "/status").json["sessions"] == 2
        cut = {f"{each[:8]}…" for each in (mine, theirs)}  # the id proves the session, and is not for others
        for who, expected in (("agent", {mine}), ("operator", cut), ("admin", cut)):
            found = server.ask("GET", "/sessions", who=who).json["sessions"]
            assert {each["session_id"] for each in found} == expected
        (shown,) = server.ask("GET", "/sessions").json["sessions"]
        assert (shown["lock_count"], shown["active"]) == (1, True)


@pytest.mark.promise("session")
def test_inside_a_session_a_job_is_kept_and_let_go_by_name(server: Server, name: str) -> None:
    session = open_session(server)
    server.lease(name, session_id=session)
    assert server.acquire(name, {"session_id": session}).json["status"] == "acquired"
    assert server.acquire(name).json["status"] == "held", "the same token is not the same owner"
    proof = {"session_id": session}
    assert server.ask("POST", f"/locks/{name}/renew", proof).status == 200
    assert server.ask("POST", f"/locks/{name}/release", proof).status == 200
    assert server.ask("GET", f"/locks/{name}").json["status"] == "free"


@pytest.mark.promise("proof")
def test_a_session_of_somebody_else_claims_nothing(server: Server, name: str) -> None:
    theirs = open_session(server, who="other")
    for fields in ({}, {"wait_seconds": 5}):
        reply = server.acquire(name, {"session_id": theirs, **fields})
        assert_error(reply, 404, "not_found")
    for verb in ("any", "all"):
        reply = server.ask("POST", f"/locks/acquire-{verb}", {"names": [name], "session_id": theirs})
        assert_error(reply, 404, "not_found")
    assert server.ask("GET", f"/locks/{name}").json["fencing_token"] == 0


@pytest.mark.promise("deadlock")
def test_a_wait_that_would_never_end_is_refused_with_the_cycle(server: Server, name: str) -> None:
    one, two = (open_session(server, owner=owner) for owner in ("one", "two"))
    first, second = f"{name}-1", f"{name}-2"
    server.lease(first, session_id=one, owner="one")
    lease = server.lease(second, session_id=two, owner="two")
    before = server.waiting()
    poll = Poll(server, f"/locks/{second}/acquire", {"wait_seconds": 60, "session_id": one, "owner": "one"})
    wait_until(lambda: server.waiting() == before + 1, "it does not wait")
    reply = server.acquire(first, {"wait_seconds": 60, "session_id": two, "owner": "two"})
    assert reply.status == 409
    assert set(reply.json) == {"error", "code", "details", "request_id", "cycle"}
    assert (reply.json["code"], reply.json["cycle"]) == ("deadlock", ["two", first, "one", second])
    server.ask("POST", f"/locks/{second}/release", {"lease_id": lease})
    assert poll.answer()["status"] == "acquired"


NOTE = '{"agent":"claude","work_tree":"~/app","branch":"main","action":"edit src/a"}'


def test_agents_are_listed_page_by_page_to_those_who_may_see_their_sessions(server: Server, name: str) -> None:
    mine = open_session(server, owner="claude-1 in app", metadata=NOTE)
    open_session(server, owner="claude-1/2 in app", metadata=NOTE, parent_id=mine)
    open_session(server, "operator", owner="claude-3 in web", metadata=NOTE)
    open_session(server, owner="worker", metadata="nightly")
    server.lease(name, session_id=mine)
    rows = server.ask("GET", "/agents").json["agents"]
    assert [(row["name"], row["parent"]) for row in rows] == [("claude-1", None), ("claude-1/2", "claude-1")]
    assert (rows[0]["jobs"], rows[0]["work_tree"], rows[0]["action"]) == ([name], "~/app", "edit src/a")
    first = server.ask("GET", "/agents?limit=2", who="operator").json
    assert mine not in str(first)
    rest = server.ask("GET", f"/agents?limit=2&after={quote(first['next'])}", who="operator").json
    assert [row["name"] for row in rest["agents"]] == ["claude-3"]
    assert rest["next"] is None
    keep(server, mine, body=json.dumps({"metadata": NOTE.replace("main", "fix")}).encode(), headers=JSON)
    assert server.ask("GET", "/agents").json["agents"][0]["branch"] == "fix"
    assert_error(server.ask("GET", "/agents?after=x"), 400, "invalid_input")
    assert_error(server.ask("GET", "/agents?limit=0"), 400, "invalid_input")
