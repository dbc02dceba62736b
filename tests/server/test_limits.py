"""Limits of a token over HTTP: what it may hold, wait for and open, and how often it may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core.identity import Caller, Limits
from dibs.service.rate import RateLimited, RequestRates
from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from tests.server.harness import running, wait_until
from tests.server.test_tokens import create

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "slow"])
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("limits"), lane=request.param) as server:
        yield server


@pytest.mark.promise("quota")
def test_one_job_more_than_a_token_may_hold_is_refused_until_one_is_released(
    served: Server, name: str
) -> None:
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
def test_a_limit_that_is_set_later_counts_what_is_held_and_takes_nothing_away(
    served: Server, name: str
) -> None:
    token = create(served, name)["token"]
    leases = [served.acquire(f"{name}-{number}", who=token).json["lease_id"] for number in range(3)]
    assert served.ask("POST", f"/tokens/{name}/limits", {"max_held": 2}, who="admin").status == 200
    assert served.acquire(f"{name}-3", who=token).status == 403
    for number, lease in enumerate(leases):
        assert (
            served.ask("POST", f"/locks/{name}-{number}/renew", {"lease_id": lease}, who=token).status == 200
        )
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


@pytest.mark.parametrize(
    ("passes_ms", "allowed"), [(0, 0), (99, 0), (100, 1), (500, 5), (1_000, 10), (60_000, 10)]
)
def test_a_bucket_holds_a_seconds_worth_and_fills_evenly(passes_ms: int, allowed: int) -> None:
    clock = ManualClock(0)
    rates = RequestRates(clock.steady_ms)
    caller = Caller(principal="p", limits=Limits(rate=10))

    def asks() -> int:
        for count in range(100):
            try:
                rates.charge(caller, "acquire")
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
        rates.charge(caller, "renew")
    clock.advance(1_200)
    rates.charge(caller, "acquire")


def test_who_has_no_rate_is_not_kept_in_mind() -> None:
    rates = RequestRates()
    for _ in range(10):
        rates.charge(Caller(principal="p"), "acquire")
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
