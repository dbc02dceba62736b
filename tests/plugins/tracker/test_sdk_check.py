"""Claims in Python ask the tracker as commands do. With a stand-in for gh, not GitHub."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.client.embedded import EmbeddedTransport
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.client import Client
from dibs.wire.documents import Reply

if TYPE_CHECKING:
    from dibs.client.transport import Ask
    from tests.plugins.tracker.conftest import Clone, GitHubStandIn

PULL = {"state": "OPEN", "url": "https://github.com/acme/app/pull/77", "login": "bob"}


@pytest.fixture
def inside(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> Clone:
    monkeypatch.chdir(clone.folder)
    for key in ("PATH", "DIBS_URL", "STAND_IN_GH"):
        monkeypatch.setenv(key, clone.env[key])
    return clone


@pytest.mark.promise("tracker:asked")
@pytest.mark.usefixtures("inside")
def test_a_closed_issue_is_done_and_a_pull_request_holds_it(github: GitHubStandIn) -> None:
    github.issue(1, state="CLOSED", stateReason="COMPLETED")
    github.issue(2, pulls=[PULL])
    github.issue(3)
    with Client() as client:
        with pytest.raises(dibs.JobDone) as done, client.claim("#1"):
            pass
        assert done.value.result == "https://github.com/acme/app/issues/1"
        with pytest.raises(dibs.JobHeld, match="bob has an open pull request") as held, client.claim("#2"):
            pass
        assert held.value.owner == "bob"
        with client.claim_any(["#1", "#2", "#3"]) as claim:
            assert claim.name == "github://acme/app/issues/3"
            assert claim.remaining() > 0
        assert client.list() == []


@pytest.mark.usefixtures("inside")
def test_the_same_in_an_event_loop_and_in_a_session(github: GitHubStandIn) -> None:
    github.issue(1, pulls=[PULL])
    github.issue(2)

    async def work() -> None:
        async with AsyncClient() as client, client.session() as session:
            with pytest.raises(dibs.JobHeld, match="bob"):
                await client.acquire("#1")
            with pytest.raises(dibs.JobHeld, match="bob"):
                async with session.claim("#1"):
                    pass
            async with session.claim_any(["#1", "#2"]) as claim:
                assert claim.name == "github://acme/app/issues/2"
            assert await client.list() == []

    asyncio.run(work())


@pytest.mark.fault("F-465")
@pytest.mark.promise("idem:withdraw")
@pytest.mark.usefixtures("inside")
def test_an_issue_that_is_taken_is_given_back_though_the_store_is_busy_then(
    github: GitHubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.issue(2, pulls=[PULL])
    asks, busy = EmbeddedTransport.ask, [Reply(503, {"code": "capacity_exceeded", "details": "Try again later."})]

    def ask(transport: EmbeddedTransport, asked: Ask) -> Reply:
        return busy.pop() if asked.verb == "withdraw" and busy else asks(transport, asked)

    monkeypatch.setattr(EmbeddedTransport, "ask", ask)
    with Client() as client:
        with pytest.raises(dibs.Unavailable), client.claim("#2"):
            pass
        assert (busy, client.list()) == ([], [])


def test_without_an_answer_the_policy_decides_in_python_too(
    inside: Clone, github: GitHubStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    github.fails(always="exit4")
    with Client() as client:
        with client.claim("#1"):
            pass
        assert "gh is not logged in" in caplog.text
        inside.settings('check = "github"', 'on_no_answer = "refuse"')
    with Client() as client, pytest.raises(dibs.Unavailable, match="gh is not logged in"), client.claim("#1"):
        pass
