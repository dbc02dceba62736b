"""Closing jobs over HTTP, and the ceilings of a server and of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.server.settings import ServerSettings
from tests.server.harness import running
from tests.server.test_waiting import WAIT, wait_for_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

HOUR = {"for_seconds": 3_600, "reason": "migration"}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as server:
        yield server


def close(server: Server, name: str, **fields: Any) -> Any:
    return server.ask("POST", f"/locks/{name}/close", {**HOUR, **fields}, who="operator")


def reopen(server: Server, name: str) -> Any:
    return server.ask("POST", f"/locks/{name}/open", who="operator")


@pytest.mark.promise("closed")
def test_who_asks_is_told_why_and_until_when(alone: Server) -> None:
    lease = alone.lease("deploy/web".replace("/", "%2F"), owner="first")
    closed = close(alone, "deploy%2F").json
    assert (closed["name"], closed["reason"], closed["by"]) == ("deploy/", "migration", "operator")
    assert closed["remaining_ms"] == 3_600_000
    refused = alone.acquire("deploy%2Fdb")
    assert (refused.status, refused.json["status"], refused.json["retry_after_ms"]) == (409, "closed", 3_600_000)
    assert refused.json["closed"] == closed
    renewed = alone.ask("POST", "/locks/deploy%2Fweb/renew", {"lease_id": lease})
    assert renewed.status == 200
    assert alone.ask("GET", "/locks/deploy%2Fweb").json["closed"] == closed
    listed = alone.ask("GET", "/locks?prefix=deploy%2Fw").json
    assert (listed["closures"], listed["locks"][0]["closed"]) == ([closed], closed)
    assert "closures" not in alone.ask("GET", "/locks?prefix=other").json
    assert "closures" not in alone.ask("GET", "/locks?namespace=team-a").json
    assert alone.ask("POST", "/locks/acquire-any", {"names": ["deploy/db", "x"]}).json["skipped"][0]["closed"] == closed
    several = alone.ask("POST", "/locks/acquire-any", {"names": ["deploy/db"]}).json
    assert (several["status"], several["refused"][0]["status"]) == ("held", "closed")
    assert reopen(alone, "deploy%2F").json == {"name": "deploy/", "opened": True}
    assert alone.acquire("deploy%2Fdb").json["status"] == "acquired"
    events = alone.ask("GET", "/locks/deploy%2F/history").json["events"]
    assert [(each["event"], each.get("reason")) for each in events] == [("closed", "migration"), ("opened", None)]
    assert events[0]["until"] == closed["until"]


@pytest.mark.promise("closed")
def test_a_waiter_is_told_and_served_at_the_end(alone: Server) -> None:
    close(alone, "deploy%2F", for_seconds=20)
    (poll,) = wait_for_job(alone, "deploy%2Fdb")
    queued = alone.acquire("deploy%2Fdb", {**WAIT, "wait_seconds": 0.01, "owner": "second"}).json
    assert (queued["status"], queued["position"], queued["closed"]["reason"]) == ("queued", 2, "migration")
    waiter = alone.ask("GET", "/waiters").json["waiters"][0]
    assert waiter["closed"]["name"] == "deploy/"
    alone.pass_time(14_000)
    alone.pass_time(6_000)
    assert poll.answer()["status"] == "acquired"


@pytest.mark.promise("closed")
def test_nobody_is_elected_while_the_election_is_closed(server: Server, name: str) -> None:
    close(server, f"election:{name}")
    follower = server.ask("POST", f"/elections/{name}/campaign", {"candidate_id": "me"})
    assert (follower.status, follower.json["status"], follower.json["leader"]) == (200, "follower", None)
    assert follower.json["retry_after_ms"] > 3_000_000
    reopen(server, f"election:{name}")
    assert server.ask("POST", f"/elections/{name}/campaign", {"candidate_id": "me"}).json["status"] == "leader"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"for_seconds": 60}, "reason"),
        ({"for_seconds": 60, "reason": ""}, "reason"),
        ({"for_seconds": 60, "reason": "x" * 201}, "200 characters"),
        ({"reason": "x"}, "until or for_seconds"),
        ({"reason": "x", "for_seconds": 60, "until": "2030-01-01T00:00:00Z"}, "one of the two"),
        ({"reason": "x", "until": "18:00"}, "2026-11-17T18:00:00Z"),
        ({"reason": "x", "until": "0001-01-01T00:00:00+14:00"}, "over already"),
        ({"reason": "x", "until": "9999-12-31T23:59:59-12:00"}, "30d at most"),
        ({"reason": "x", "for_seconds": 0}, "for_seconds"),
        ({"reason": "x", "for_seconds": 40 * 86_400}, "for_seconds"),
    ],
)
def test_what_is_wrong_with_a_closure_is_said(server: Server, name: str, fields: dict[str, Any], says: str) -> None:
    refused = server.ask("POST", f"/locks/{name}/close", fields, who="operator")
    assert (refused.status, refused.json["code"]) == (400, "invalid_input")
    assert says in refused.json["details"]


@pytest.mark.promise("closed")
def test_closures_are_bounded_in_number(alone: Server) -> None:
    for number in range(50):
        assert close(alone, f"job-{number}").status == 200
    assert close(alone, "job-7").status == 200
    refused = close(alone, "job-50")
    assert (refused.status, "50 closures" in refused.json["details"]) == (400, True)
    reopen(alone, "job-0")
    assert close(alone, "job-50").status == 200


@pytest.mark.promise("max-hold")
def test_the_least_of_the_ceilings_counts(tmp_path: Path) -> None:
    with running(tmp_path, settings=ServerSettings(max_hold_ms=600_000)) as server:
        token = server.ask("POST", "/tokens", {"name": "ci", "max_hold_seconds": 300}, who="admin").json["token"]

        def ends_in(name: str, of: str, **fields: Any) -> Any:
            answer = server.acquire(name, fields, who=of).json
            assert answer["remaining_ms"] == min(60_000, answer["ends_in_ms"])
            return answer["ends_in_ms"]

        assert ends_in("a", "agent") == 600_000
        assert ends_in("b", "agent", max_hold_seconds=10) == 10_000
        assert ends_in("c", "agent", max_hold_seconds=6_000) == 600_000
        assert ends_in("d", token) == 300_000
        assert ends_in("e", token, max_hold_seconds=30) == 30_000
        campaign = server.ask("POST", "/elections/room-1234/campaign", {"candidate_id": "me"}, who=token).json
        assert campaign["status"] == "leader"
        shown = server.ask("GET", "/locks/election:room-1234").json
        assert shown["ends_in_ms"] == 300_000


@pytest.mark.promise("max-hold")
def test_a_hold_ends_at_its_ceiling_and_the_waiter_gets_the_job(alone: Server) -> None:
    lease = alone.lease("job", max_hold_seconds=100)
    (poll,) = wait_for_job(alone, "job")
    for _ in range(9):
        alone.pass_time(10_000)
        assert alone.ask("POST", "/locks/job/renew", {"lease_id": lease}).status == 200
    alone.pass_time(10_000)
    answer = poll.answer()
    assert (answer["previous"]["how"], answer["previous"]["reason"]) == ("expired", "max_hold")
    late = alone.ask("POST", "/locks/job/renew", {"lease_id": lease}).json
    assert (late["ended"], "longest time" in late["details"]) == ("expired", True)
