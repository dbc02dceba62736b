"""Pools over HTTP: who may set one, what claims are answered, and how it is listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.harness import Poll, wait_until
from tests.server.test_contract import assert_error

if TYPE_CHECKING:
    from tests.server.harness import Server


@pytest.mark.promise("pool:operator", "roles")
def test_only_an_operator_sets_a_pool(server: Server, name: str) -> None:
    for who in ("agent", "viewer"):
        assert_error(server.ask("PUT", f"/locks/{name}/pool", {"slots": 2}, who=who), 403, "forbidden")
    reply = server.ask("PUT", f"/locks/{name}/pool", {"slots": 2}, who="operator")
    assert (reply.status, reply.json["slots"], reply.json["was"]) == (200, 2, None)
    replies = [server.ask("POST", f"/locks/{name}/acquire", {}).json for _ in range(3)]
    assert [(each["status"], each["slot"]) for each in replies] == [("acquired", 0), ("acquired", 1), ("held", 0)]


@pytest.mark.promise("pool:operator")
def test_a_claim_that_does_not_fit_the_pool_is_told_why(server: Server, name: str) -> None:
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 2}, who="operator")
    for body in ({"slots": 3}, {"units": 3}, {"mode": "shared"}):
        assert_error(server.ask("POST", f"/locks/{name}/acquire", body), 409, "conflict")
    assert_error(server.ask("POST", f"/locks/{name}/acquire", {"mode": "shared", "units": 2}), 400, "invalid_input")
    assert_error(server.ask("PUT", f"/locks/{name}/pool", {"slots": 10_001}, who="operator"), 400, "invalid_input")
    assert_error(server.ask("PUT", f"/locks/{name}/pool", {}, who="operator"), 422, "invalid_input")


@pytest.mark.promise("pool:pause")
def test_pools_are_listed_in_any_state(server: Server, name: str) -> None:
    for job, slots in ((f"{name}-a", 0), (f"{name}-b", 2)):
        server.ask("PUT", f"/locks/{job}/pool", {"slots": slots}, who="operator")
    assert server.ask("POST", f"/locks/{name}-a/acquire", {}).json["paused"]
    server.lease(f"{name}-c")
    listed = server.ask("GET", f"/locks?pools=true&prefix={name}").json["locks"]
    assert [(each["name"], each["slots"], each["status"]) for each in listed] == [
        (f"{name}-a", 0, "free"),
        (f"{name}-b", 2, "free"),
    ]
    assert [each["event"] for each in server.ask("GET", f"/locks/{name}-a/history").json["events"]] == ["pool-set"]
    assert server.ask("PUT", f"/locks/{name}-a/pool", {"slots": None}, who="operator").json["was"] == 0
    assert_error(server.ask("GET", "/locks?pools=perhaps"), 400, "invalid_input")


@pytest.mark.promise("pool:change")
def test_more_slots_answer_a_request_that_waits(server: Server, name: str) -> None:
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 0}, who="operator")
    waiting = Poll(server, f"/locks/{name}/acquire", {"wait_seconds": 20})
    wait_until(lambda: bool(server.ask("GET", f"/locks/{name}").json["waiting"]), "nobody waits")
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 1}, who="operator")
    assert waiting.answer()["slot"] == 0
