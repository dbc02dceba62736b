"""Limits of a token over HTTP: what it may hold, wait for and open, and how often it may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.compat.octostore.contract import OctoStoreContract
from dibs.core.caller_rights import Caller, Limits
from dibs.core.limits import ADMIN_GUESSES_MAX, REGISTRATIONS_MAX
from dibs.engine.auth import RateLimited, RequestRates
from dibs.server.http.admission import counted_as
from dibs.server.settings import ServerSettings
from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from tests.server.hall import Hall
from tests.server.harness import running, wait_until
from tests.server.test_tokens import create

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "slow"])
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("limits"), at_once=request.param) as server:
        yield server


@pytest.mark.promise("quota")
def test_one_job_more_than_a_token_may_hold_is_refused_until_one_is_released(served: Server, name: str) -> None:
    token = create(served, name, max_held=2)["token"]
    leases = [served.acquire(f"{name}-{number}", who=token).json["lease_id"] for number in range(2)]
    refused = served.acquire(f"{name}-2", who=token)
    assert (refused.status, refused.json["code"]) == (403, "lock_limit_exceeded")
    assert "may hold 2 jobs" in refused.json["details"]
    assert served.acquire(f"{name}-0", {"lease_id": leases[0]}, who=token).status == 200
    served.ask("POST", f"/locks/{name}-0/release", {"lease_id": leases[0]}, who=token)
    assert served.acquire(f"{name}-2", who=token).json["status"] == "acquired"


@pytest.mark.promise("quota")
def test_one_place_in_line_more_than_a_token_may_have_is_429(served: Server, name: str) -> None:
    token = create(served, name, max_waiting=1)["token"]
    for number in range(2):
        served.acquire(f"{name}-{number}", {"ttl_seconds": 3600})
    waits = served.acquire(f"{name}-0", {"wait_seconds": 0.01}, who=token)
    assert waits.json["status"] == "queued"
    refused = served.acquire(f"{name}-1", {"wait_seconds": 0.01}, who=token)
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (
        429,
        "rate_limited",
        "1",
    )
    assert refused.json["retry_after_ms"] == 1_000
    assert refused.json["request_id"]


@pytest.mark.promise("quota")
def test_one_session_more_than_a_token_may_open_is_429(served: Server, name: str) -> None:
    token = create(served, name, max_sessions=1)["token"]
    first = served.ask("POST", "/sessions", {}, who=token).json["session_id"]
    refused = served.ask("POST", "/sessions", {}, who=token)
    assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (
        429,
        "rate_limited",
        "1",
    )
    assert served.ask("DELETE", f"/sessions/{first}", who=token).status == 204
    assert served.ask("POST", "/sessions", {}, who=token).status == 201


@pytest.mark.promise("quota")
def test_two_tokens_of_one_name_share_their_limit(served: Server, name: str) -> None:
    one, two = (create(served, name, max_held=1)["token"] for _ in range(2))
    assert served.acquire(f"{name}-0", who=one).json["status"] == "acquired"
    assert served.acquire(f"{name}-1", who=two).status == 403


@pytest.mark.promise("quota")
def test_a_limit_that_is_set_later_counts_what_is_held_and_takes_nothing_away(served: Server, name: str) -> None:
    token = create(served, name)["token"]
    leases = [served.acquire(f"{name}-{number}", who=token).json["lease_id"] for number in range(3)]
    assert served.ask("POST", f"/tokens/{name}/limits", {"max_held": 2}, who="admin").status == 200
    assert served.acquire(f"{name}-3", who=token).status == 403
    for number, lease in enumerate(leases):
        assert served.ask("POST", f"/locks/{name}-{number}/renew", {"lease_id": lease}, who=token).status == 200
    for number in range(2):
        served.ask("POST", f"/locks/{name}-{number}/release", {"lease_id": leases[number]}, who=token)
    assert served.acquire(f"{name}-3", who=token).json["status"] == "acquired"
    assert served.acquire(f"{name}-4", who=token).status == 403


@pytest.mark.promise("quota")
def test_requests_beyond_the_rate_are_429_and_heartbeats_are_not_refused(served: Server, name: str) -> None:
    token = create(served, name, rate_per_second=3)["token"]
    lease = served.acquire(name, who=token).json["lease_id"]
    replies = [served.ask("GET", f"/locks/{name}", who=token) for _ in range(30)]
    refused = [each for each in replies if each.status == 429]
    assert refused
    assert {each.json["code"] for each in refused} == {"rate_limited"}
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    for _ in range(10):
        assert served.ask("POST", f"/locks/{name}/renew", {"lease_id": lease}, who=token).status == 200
    assert served.ask("POST", f"/locks/{name}/release", {"lease_id": lease}, who=token).status == 200
    assert served.ask("GET", f"/locks/{name}").status == 200  # others are not concerned


@pytest.mark.parametrize(("passes_ms", "allowed"), [(0, 0), (99, 0), (100, 1), (500, 5), (1_000, 10), (60_000, 10)])
def test_a_bucket_holds_a_seconds_worth_and_fills_evenly(passes_ms: int, allowed: int) -> None:
    clock = ManualClock(0)
    rates = RequestRates(clock.steady_ms)
    caller = Caller(principal="p", limits=Limits(rate=10))

    def asks() -> int:
        for count in range(100):
            try:
                rates.count(caller, "acquire")
            except RateLimited as refused:
                told.append(refused.retry_after_ms)
                return count
        return 100

    told: list[int] = []
    assert asks() == 10
    clock.advance(passes_ms)
    assert asks() == allowed
    assert all(0 < each <= 100 for each in told)


def test_what_is_never_refused_runs_up_a_debt_of_a_second_at_most() -> None:
    clock = ManualClock(0)
    rates = RequestRates(clock.steady_ms)
    caller = Caller(principal="p", limits=Limits(rate=5))
    for _ in range(1_000):
        rates.count(caller, "renew")
    clock.advance(1_200)
    rates.count(caller, "acquire")


def test_who_has_no_rate_is_not_kept_in_mind() -> None:
    rates = RequestRates()
    for _ in range(10):
        rates.count(Caller(principal="p"), "acquire")
    assert not rates._buckets


@pytest.mark.promise("quota")
def test_a_limit_is_one_limit_at_two_servers_on_one_store(tmp_path: Path) -> None:
    stores = [SqliteStore(str(tmp_path / "dibs.db")) for _ in range(2)]
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    with (
        running(folders[0], store=stores[0], real_time=True) as here,
        running(folders[1], store=stores[1], real_time=True) as there,
    ):
        token = create(here, "ci", max_held=5)["token"]
        wait_until(lambda: there.ask("GET", "/locks/x", who=token).status == 200, "the token is known there")
        replies = [(here, there)[number % 2].acquire(f"job-{number}", who=token) for number in range(20)]
        assert [each.status for each in replies].count(200) == 5
        assert all(each.status == 200 for each in replies[:5])
    for store in stores:
        store.close()


@pytest.mark.fault("F-093")
def test_elections_are_among_the_jobs_that_a_token_may_hold(tmp_path: Path) -> None:
    with running(tmp_path, locks_per_principal=2, gateway_ttl_ms=60_000) as server:
        assert server.acquire("a").status == 200
        campaigns = [
            server.ask("POST", f"/elections/room-{number}/campaign", {"candidate_id": "me"}) for number in range(3)
        ]
        assert [each.status for each in campaigns] == [200, 403, 403]
        assert campaigns[1].json["code"] == "lock_limit_exceeded"
        again = server.ask("POST", "/elections/room-0/campaign", {"candidate_id": "me"})
        assert again.status == 200  # who leads may ask again


@pytest.mark.fault("F-095")
def test_every_request_with_a_token_counts(tmp_path: Path) -> None:
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    asked: list[tuple[str, str, Any, dict[str, str]]] = [
        ("POST", "/mcp", listing, headers),
        ("GET", "/gateway/runs", None, {}),
        ("POST", "/gateway/runs", {"holder": "x"}, {}),
        ("GET", "/gateway/locks/status", None, {}),
    ]
    with running(tmp_path, gateway_ttl_ms=60_000) as server:
        for number, (method, path, body, more) in enumerate(asked):
            server.api._rates._steady = lambda: 0
            token = create(server, f"slow-{number}", role="admin", rate_per_second=1)["token"]
            first, second = [server.ask(method, path, body, who=token, headers=more).status for _ in range(2)]
            assert (first < 300, second) == (True, 429), path


@pytest.mark.fault("F-095")
def test_a_tool_that_asks_one_thing_is_one_request(tmp_path: Path) -> None:
    params = {"name": "claim_job", "arguments": {"job": "x"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    with running(tmp_path) as server:
        server.api._rates._steady = lambda: 0
        token = create(server, "slow", rate_per_second=1)["token"]
        reply = server.ask("POST", "/mcp", call, who=token, headers=headers)
        assert reply.json["result"]["isError"] is False, reply.body
        assert server.acquire("x").json["status"] == "held"
        assert server.ask("POST", "/mcp", call, who=token, headers=headers).status == 429


@pytest.mark.fault("F-094")
def test_of_ipv6_a_network_is_one_client() -> None:
    near, far, mapped = "2001:db8:0:1::7", "2001:db8:0:2::7", "::ffff:10.0.0.7"
    assert counted_as(near) == counted_as("2001:db8:0:1:ffff::1%eth0") != counted_as(far)
    assert counted_as(mapped) == "10.0.0.7"
    assert [counted_as(each) for each in ("10.0.0.7", "user 1000")] == ["10.0.0.7", "user 1000"]
    hall = Hall(most_per_client=2)
    known = [hall.enter(f"2001:db8::{number}", shows_token=True) for number in range(3)]
    assert [each.refusal is None for each in known] == [True, True, False]
    assert hall.enter(far).refusal is None
    hall.leave(known[1])
    assert hall.enter("2001:db8::3").refusal is None


@pytest.mark.fault("F-094")
def test_registrations_admin_keys_and_streams_of_a_network_are_counted_together(tmp_path: Path) -> None:
    settings = ServerSettings(local_registration=True, contract=OctoStoreContract(admin_key="right"))
    with running(tmp_path, settings=settings, proxies=("127.0.0.1",)) as server:

        def ask(number: int, *asked: Any, **more: str) -> int:
            headers = {"X-Forwarded-For": f"2001:db8::{number:x}", **more}
            return server.ask(*asked, who=None, headers=headers).status

        for number in range(ADMIN_GUESSES_MAX):
            assert ask(number, "GET", "/admin/status", **{"X-Admin-Key": "wrong"}) == 401
        assert ask(99, "GET", "/admin/status", **{"X-Admin-Key": "wrong"}) == 429
        for number in range(REGISTRATIONS_MAX):
            assert ask(number, "POST", "/auth/register", {"username": f"user-{number}"}) == 200
        assert ask(99, "POST", "/auth/register", {"username": "one-more"}) == 429
