"""Tools over `dibs mcp` ask the tracker as commands do: real processes, and a stand-in for gh, not GitHub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugins.agents.test_processes import Connection
from tests.programs import DIBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugins.tracker.conftest import Clone, GitHubStandIn

pytestmark = pytest.mark.e2e
PULL = {"state": "OPEN", "url": "https://github.com/acme/app/pull/77", "login": "bob"}


@pytest.fixture
def agent(clone: Clone) -> Iterator[Connection]:
    with Connection(clone.env, [*DIBS, "mcp"], clone.folder) as connection:
        yield connection.begin()


@pytest.mark.promise("tracker:asked")
def test_each_tool_that_claims_asks_first(agent: Connection, clone: Clone, github: GitHubStandIn) -> None:
    github.issue(1, state="CLOSED", stateReason="COMPLETED")
    github.issue(2, pulls=[PULL])
    github.issue(3)
    github.issue(4)
    assert agent.call("claim_job", job="#1")["status"] == "done"
    all_of = agent.call("claim_all_jobs", jobs=["#3", "#2"])
    assert (all_of["claimed"], all_of["status"]) == (False, "held")
    assert "bob" in str(all_of)
    assert clone("list", "--json").data["locks"] == []
    any_of = agent.call("claim_any_job", jobs=["#1", "#2", "#3"])
    assert (any_of["claimed"], any_of["job"]) == (True, "github://acme/app/issues/3")
    both = agent.call("claim_all_jobs", jobs=["#3", "#4", "plain"])
    assert both["claimed"] is True
    held = [each["name"] for each in clone("list", "--json").data["locks"]]
    assert sorted(held) == ["github://acme/app/issues/3", "github://acme/app/issues/4", "plain"]


def test_what_the_agent_has_is_not_asked_about_again(agent: Connection, github: GitHubStandIn) -> None:
    github.issue(3)
    assert agent.call("claim_job", job="#3")["claimed"] is True
    github.issue(3, pulls=[PULL])  # its own
    assert agent.call("claim_all_jobs", jobs=["#3", "plain"])["claimed"] is True


def test_without_an_answer_nothing_is_claimed_if_the_repository_wants_that(
    agent: Connection, clone: Clone, github: GitHubStandIn
) -> None:
    clone.settings('check = "github"', 'on_no_answer = "refuse"')
    github.fails(always="exit4")
    asked = {"name": "claim_all_jobs", "arguments": {"jobs": ["#3", "plain"]}}
    result = agent.ask("tools/call", asked)
    assert result["isError"] is True
    assert "gh is not logged in" in result["content"][0]["text"]
    assert clone("list", "--json").data["locks"] == []
