"""Blocks on resources: a file is never done, and whatever a block does, the file is free after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.sdk import locks
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.client import Client

pytestmark = over("memory", "server")
FILE = "path:src/a.py"
BRANCH = "branch:main"  # before the names of most jobs


def attempt(client: Client, name: str) -> int:
    with client.claim(name) as claim:
        return claim.attempt


@pytest.mark.fault("F-290")
def test_a_block_on_a_resource_that_raises_lets_it_go_and_counts_as_nothing(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.claim(FILE):
        raise ZeroDivisionError
    assert client.owner(FILE).status == "free"
    assert attempt(client, FILE) == 1
    assert client.overdue("path:src/never", within=60).at is None


@pytest.mark.fault("F-290")
@pytest.mark.parametrize("end", ["done", "fail"])
def test_a_resource_is_not_done_and_does_not_fail_and_stays_held_until_its_block_ends(client: Client, end: str) -> None:
    with client.claim(FILE) as claim:
        with pytest.raises(dibs.InvalidInput, match="is a resource, not a job"):
            getattr(claim, end)()
        assert client.owner(FILE).held
    assert client.owner(FILE).status == "free"


@pytest.mark.parametrize("end", ["done", "fail"])
def test_of_jobs_and_resources_claimed_together_only_the_jobs_are_done_or_fail(client: Client, end: str) -> None:
    with client.claim_all([FILE, "issue-1"]) as claim:
        getattr(claim, end)(checkpoint="so far")
    assert client.owner(FILE).status == "free"
    assert attempt(client, FILE) == 1
    if end == "done":
        assert client.owner("issue-1").status == "done"
    else:
        assert attempt(client, "issue-1") == 2


@pytest.mark.fault("F-376")
@pytest.mark.parametrize(
    "end",
    [
        lambda claim: claim.done("r" * 5_000),
        lambda claim: claim.done(done="10000d"),
        lambda claim: claim.fail(retry_after="10w"),
    ],
)
def test_an_end_that_is_refused_for_the_job_leaves_the_resource_beside_it_held(
    client: Client, end: Callable[[dibs.Claim], None]
) -> None:
    with client.claim_all([BRANCH, "issue-1"]) as claim:
        with pytest.raises(dibs.InvalidInput):
            end(claim)
        assert client.owner(BRANCH).held
        assert client.owner("issue-1").held
        claim.done()
    assert client.owner("issue-1").status == "done"


def test_a_block_on_a_job_and_a_resource_that_raises_fails_at_the_job_alone(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.claim_all([FILE, "issue-1"]):
        raise ZeroDivisionError
    assert (attempt(client, FILE), attempt(client, "issue-1")) == (1, 2)


def test_a_limit_of_attempts_for_a_resource_is_refused(client: Client) -> None:
    with pytest.raises(dibs.InvalidInput, match="Leave out max_attempts"), client.claim(FILE, max_attempts=3):
        raise AssertionError("it was claimed")


def test_exclusive_refuses_done_for_a_resource_before_the_function_runs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "claim", client.claim)
    ran: list[int] = []

    @dibs.exclusive(FILE, done=True)
    def work() -> None:
        ran.append(1)

    with pytest.raises(dibs.InvalidInput, match="Leave out done"):
        work()
    assert not ran
    assert client.owner(FILE).status == "free"


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    return connect()
