"""`dibs gh next` claims the first open issue that nobody works on. With a stand-in for gh, not GitHub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugins.tracker.conftest import end

if TYPE_CHECKING:
    from tests.plugins.tracker.conftest import Clone, GitHubStandIn


def name(number: int) -> str:
    return f"github://acme/app/issues/{number}"


@pytest.mark.promise("tracker:next")
def test_the_oldest_free_issue_with_the_label_is_claimed(clone: Clone, github: GitHubStandIn) -> None:
    pull = {"state": "OPEN", "url": "https://github.com/acme/app/pull/9", "login": "bob"}
    github.issue(1)
    github.issue(2, labels=["ready"], pulls=[pull])
    github.issue(3, labels=["ready"], state="CLOSED")
    for number in (4, 5, 6):
        github.issue(number, labels=["ready"], title=f"Work \x1b[2J {number}")
    clone.claim("#4", "--owner", "w2")
    lease = clone.claim("#5")
    assert clone("release", "#5", "--lease", lease, "--done").exit == 0
    asked = len(github.calls())
    ran = clone("gh", "next", "--label", "ready")
    assert ran.exit == 0
    assert f"Claimed {name(6)}" in ran.out
    assert "\x1b" not in ran.out
    assert "bob has an open pull request" in ran.out
    assert "w2 has it" in ran.out
    assert len(github.calls()) == asked + 2
    assert clone("gh", "next", "--label", "ready").exit == 1


def test_its_json_is_that_of_a_claim_any(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(1, labels=["ready"], title="Make it so")
    clone.claim("issue-1")
    other = clone("claim-any", "issue-1", "issue-2", "--json").data
    ran = clone("gh", "next", "--label", "ready", "--json").data
    assert set(ran) - set(other) == {"title"}
    assert ran["title"] == "Make it so"
    assert clone("gh", "next", "--repo", "acme/app", "-q").exit == 1
    github.issue(2)
    assert clone("gh", "next", "--repo", "Acme/App", "-q").out.startswith(f"{name(2)}\t")


def test_nothing_to_do_is_a_no_and_all_done_says_so(clone: Clone, github: GitHubStandIn) -> None:
    ran = clone("gh", "next", "--label", "ready")
    assert ran.exit == 1
    assert ran.out == "github.com/acme/app has no open issue with the label ready.\n"
    github.issue(1)
    lease = clone.claim("#1")
    assert clone("release", "#1", "--lease", lease, "--done").exit == 0
    assert clone("gh", "next").exit == 4
    assert clone("gh", "next", "--again").exit == 0


def test_issues_of_one_user_or_of_nobody(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(1, assignee="bob")
    github.issue(2, assignee="ann")
    github.issue(3, assignee=None)
    assert clone("gh", "next", "--assignee", "@me", "--json").data["name"] == name(2)
    assert clone("gh", "next", "--assignee", "none", "--json").data["name"] == name(3)
    assert clone("gh", "next", "--assignee", "bob", "--json").data["name"] == name(1)


def test_a_thousand_issues_are_read_page_by_page_only_as_far_as_needed(clone: Clone, github: GitHubStandIn) -> None:
    taken = [{"state": "OPEN", "url": "https://github.com/acme/app/pull/9", "login": "bob"}]
    issues = {str(n): {"pulls": taken} for n in range(1, 951)} | {str(n): {} for n in range(951, 1_001)}
    github.write({"issues": {"acme/app": issues}})
    assert clone("gh", "next", "--json").data["name"] == name(951)
    assert len(github.calls()) == 11
    assert clone("gh", "next", "--limit", "300").exit == 1
    assert len(github.calls()) == 14


def test_an_issue_that_is_settled_after_the_list_is_passed_over(clone: Clone, github: GitHubStandIn) -> None:
    """The list is old when the claim succeeds, so GitHub is asked once more about the issue that was claimed."""
    github.issue(1)
    github.issue(2)
    listed = github.read()["issues"]["acme/app"]
    github.write(github.read() | {"frozen_list": listed})
    github.issue(1, state="CLOSED", stateReason="COMPLETED")
    assert clone("gh", "next", "--json").data["name"] == name(2)


@pytest.mark.parametrize("mode", ["exit1", "exit4", "half", "limited"])
def test_without_a_list_nothing_is_claimed(clone: Clone, github: GitHubStandIn, mode: str) -> None:
    github.issue(1)
    github.fails(always=mode)
    ran = clone("gh", "next")
    assert ran.exit == 69
    assert "Nothing was claimed" in ran.err
    assert clone("list", "-q").out == ""


def test_a_repository_that_is_not_there_or_not_named(clone: Clone) -> None:
    assert "has no repository" in clone("gh", "next", "--repo", "acme/nothing").err
    for wrong in ("acme", "a/b/c/d", "a b/c", "/x", "nodot/acme/app"):
        assert clone("gh", "next", "--repo", wrong).exit != 0
    clone.git("remote", "remove", "origin")
    ran = clone("gh", "next")
    assert ran.exit == 64
    assert "--repo OWNER/NAME" in ran.err
    assert "is not the host of this clone" in clone("gh", "next", "--repo", "evil.example/acme/app").err


@pytest.mark.promise("tracker:next")
def test_racers_get_one_issue_each(clone: Clone, github: GitHubStandIn) -> None:
    for number in range(1, 5):
        github.issue(number)
    racers = [clone.start("gh", "next", "-q", DIBS_OWNER=f"w{n}") for n in range(6)]
    try:
        got = [child.communicate(timeout=60)[0].split("\t")[0] for child in racers]
    finally:
        for child in racers:
            end(child)
    assert sorted(filter(None, got)) == [name(number) for number in range(1, 5)]
    assert sorted(child.returncode for child in racers) == [0, 0, 0, 0, 1, 1]
