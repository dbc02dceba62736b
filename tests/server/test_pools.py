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
        (f"{name}-a", 0, "paused"),
        (f"{name}-b", 2, "free"),
    ]
    paused = server.ask("GET", f"/locks?status=paused&prefix={name}").json["locks"]
    assert [each["name"] for each in paused] == [f"{name}-a"]
    assert server.ask("GET", f"/locks/{name}-a").json["status"] == "paused"
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


@pytest.mark.fault("F-689")
def test_one_of_several_owners_is_broken_by_its_token(server: Server, name: str) -> None:
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 3}, who="operator")
    tokens = [server.ask("POST", f"/locks/{name}/acquire", {"owner": f"w{n}"}).json["fencing_token"] for n in range(3)]
    asked = {"reason": "hangs", "fencing_token": tokens[1]}
    assert_error(server.ask("POST", f"/locks/{name}/break", asked, who="agent"), 403, "forbidden")
    broken = server.ask("POST", f"/locks/{name}/break", asked, who="operator").json["broken"]
    assert [(each["owner"], each["fencing_token"]) for each in broken] == [("w1", tokens[1])]
    left = server.ask("GET", f"/locks/{name}").json["holders"]
    assert [each["owner"] for each in left] == ["w0", "w2"]
    again = server.ask("POST", f"/locks/{name}/break", asked, who="operator")
    assert (again.status, again.json["broken"]) == (200, [])  # that hold has ended; nobody else loses it
    late = server.ask("POST", f"/locks/{name}/break", {**asked, "fencing_token": 2**40}, who="operator")
    assert (late.status, late.json["broken"]) == (200, [])  # a store's numbers may begin high
    for wrong in (0, 3 * 10**15):
        refused = server.ask("POST", f"/locks/{name}/break", {**asked, "fencing_token": wrong}, who="operator")
        assert_error(refused, 400, "invalid_input")


@pytest.mark.fault("F-688")
def test_a_place_in_line_says_how_many_slots_it_wants_and_how_the_job_stands(server: Server, name: str) -> None:
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 2}, who="operator")
    server.lease(name)
    waiting = Poll(server, f"/locks/{name}/acquire", {"wait_seconds": 20, "units": 2})

    def line() -> list[tuple[int, str]]:
        found = server.ask("GET", f"/waiters?prefix={name}").json["waiters"]
        return [(each["units"], each["job_status"]) for each in found]

    wait_until(lambda: line() == [(2, "held")], "nobody waits")
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 0}, who="operator")
    server.ask("POST", f"/locks/{name}/break", {"reason": "stuck"}, who="operator")
    assert line() == [(2, "paused")]
    server.ask("POST", f"/locks/{name}/close", {"reason": "stop", "for_seconds": 60}, who="operator")
    assert line() == [(2, "closed")]
    server.ask("POST", f"/locks/{name}/open", who="operator")
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 2}, who="operator")
    assert waiting.answer()["slot_numbers"] == [0, 1]


@pytest.mark.fault("F-690")
def test_one_unit_has_one_slot_number(server: Server, name: str) -> None:
    server.ask("PUT", f"/locks/{name}/pool", {"slots": 2}, who="operator")
    claimed = server.ask("POST", f"/locks/{name}/acquire", {}).json
    assert (claimed["slot"], claimed["slot_numbers"]) == (0, [0])
    assert server.ask("GET", f"/locks/{name}").json["slot_numbers"] == [0]
    (event,) = server.ask("GET", f"/locks/{name}/history").json["events"][1:]
    assert event["slot_numbers"] == [0]
