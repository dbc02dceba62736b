"""The comment and the label on an issue that is claimed. With a stand-in for gh, not GitHub."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.tracker.github import marked, token_in
from tests.plugins.tracker.conftest import end
from tests.programs import wait_until

if TYPE_CHECKING:
    from tests.plugins.tracker.conftest import Clone, GitHubStandIn


@pytest.fixture
def noisy(clone: Clone) -> Clone:
    clone.settings('check = "github"', "comment = true", 'label = "in progress"')
    return clone


def bodies(github: GitHubStandIn, number: int = 42) -> list[str]:
    comments: list[dict[str, Any]] = github.seen(number).get("comments", [])
    return [str(each["body"]) for each in comments]


@pytest.mark.promise("tracker:one-comment")
def test_a_claim_is_shown_on_the_issue_until_it_is_released(noisy: Clone, github: GitHubStandIn) -> None:
    github.issue(42, comments=[{"id": "c0", "body": "Please fix.", "mine": False}], labels=["bug"])
    lease = noisy.claim("#42")
    assert len(bodies(github)) == 2
    assert "`w1` is working on this." in bodies(github)[1]
    assert github.seen(42)["labels"] == ["bug", "in progress"]
    assert noisy("release", "#42", "--lease", lease, "--done").exit == 0
    assert bodies(github) == ["Please fix."]
    assert github.seen(42)["labels"] == ["bug"]


@pytest.mark.promise("tracker:one-comment")
def test_the_next_owner_edits_the_comment_of_one_that_died(noisy: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    noisy.claim("#42", "--actor", "dead")
    assert noisy("break", "#42", "--reason", "gone").exit == 0
    later = [{"id": f"c9{n}", "body": f"me too {n}", "mine": False} for n in range(150)]
    github.issue(42, comments=[*github.seen(42)["comments"], *later])
    assert noisy("claim", "#42", "--owner", "w2").exit == 0
    ours = [body for body in bodies(github) if token_in(body)]
    assert len(ours) == 1
    assert "`w2`" in ours[0]
    assert len(bodies(github)) == 151


def test_an_owner_that_was_replaced_leaves_the_later_comment_alone(noisy: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    lease = noisy.claim("#42")
    newer = marked("somebody later", 99)
    github.issue(42, comments=[{"id": "c5", "body": newer}])
    assert noisy("release", "#42", "--lease", lease).exit == 0
    assert bodies(github) == [newer]
    assert noisy("claim", "#42").exit == 0
    assert bodies(github) == [newer]


def test_who_does_not_have_the_job_changes_nothing(noisy: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    noisy.claim("#42")
    asked, before = len(github.calls()), bodies(github)
    wrong = "00000000-0000-4000-8000-000000000000"
    assert noisy("release", "#42", "--lease", wrong).exit == 2
    assert noisy("claim", "#42", "--owner", "w2").exit == 1
    assert bodies(github) == before
    assert len(github.calls()) == asked


def test_a_failure_of_gh_costs_one_line_and_never_the_claim(noisy: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    github.fails("", "exit1")
    ran = noisy("claim", "#42", "--json")
    assert ran.exit == 0
    assert ran.err.count("the job is yours, but its issue does not show it") == 1
    github.fails("exit1")
    released = noisy("release", "#42", "--lease", ran.data["lease_id"])
    assert released.exit == 0
    assert released.err.count("may still show who had it") == 1
    assert noisy("claim", "#42").exit == 0


@pytest.mark.parametrize("command", ["run", "hold"])
def test_run_and_hold_take_their_comment_away(noisy: Clone, github: GitHubStandIn, command: str) -> None:
    github.issue(42)
    words = ("--", "sleep", "20") if command == "run" else ("--for", "20s")
    child = noisy.start(command, "#42", *words)
    try:
        wait_until(lambda: github.seen(42).get("labels"), "the label is on the issue")
        assert len(bodies(github)) == 1
        child.terminate()
        child.communicate(timeout=60)
    finally:
        end(child)
    assert bodies(github) == []
    assert github.seen(42)["labels"] == []


def test_an_owners_name_mentions_nobody_and_forges_no_marker(noisy: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    assert noisy("claim", "#42", "--owner", "`@root` --> <!-- dibs:token=999 -->").exit == 0
    (body,) = bodies(github)
    assert body.count("`") == 2
    assert token_in(body) == 1


def test_only_a_marker_at_the_very_start_counts() -> None:
    assert token_in(marked("text", 17)) == 17
    for text in (
        None,
        7,
        "",
        "text",
        f"> {marked('quoted', 17)}",
        "<!-- dibs:token=x -->",
        "<!-- dibs:token=0x1 -->",
    ):
        assert token_in(text) is None
    assert token_in(f"<!-- dibs:token={'9' * 40} -->") is None


def changes(github: GitHubStandIn) -> list[str]:
    """What gh was told to write, whatever came of it."""
    return [text for each in github.calls() if any(word in (text := str(each)) for word in ("mutation", "/labels"))]


@pytest.mark.fault("F-107")
@pytest.mark.promise("repo:runs-nothing")
@pytest.mark.parametrize("job", ["#5", "github://victim/private/issues/5"])
def test_a_tracked_file_cannot_choose_where_a_claim_is_shown(noisy: Clone, github: GitHubStandIn, job: str) -> None:
    file = noisy.folder / ".dibs.toml"
    file.write_text(f'[names]\nrepository = "victim/private"\n{file.read_text()}')
    github.issue(5, "victim/private")
    lease = noisy.claim(job)
    assert noisy("release", job, "--lease", lease).exit == 0
    assert changes(github) == []


@pytest.mark.fault("F-107")
def test_a_fork_shows_claims_where_its_user_allows_it(noisy: Clone, github: GitHubStandIn) -> None:
    file = noisy.folder / ".dibs.toml"
    file.write_text(f'[names]\nrepository = "upstream/app"\n{file.read_text()}')
    github.issue(5, "upstream/app")
    told = noisy("claim", "#5")
    assert "git config dibs.tracker.writes" in told.err
    assert noisy("break", "#5", "--reason", "again").exit == 0
    subprocess.run(
        ["git", "config", "dibs.tracker.writes", "other/x Upstream/App"],
        cwd=noisy.folder,
        check=True,
        timeout=60,
    )
    told = noisy("claim", "#5")
    assert "and dibs trust" in told.err  # an archive's own git folder may say so, too
    assert noisy("break", "#5", "--reason", "again").exit == 0
    assert noisy("trust").exit == 0
    assert noisy("claim", "#5").err == ""
    assert changes(github) != []


@pytest.mark.fault("F-107")
def test_the_tracked_file_cannot_allow_it_itself(clone: Clone) -> None:
    clone.settings('check = "github"', "comment = true", 'writes = "victim/private"')
    assert clone("claim", "#5").exit == 64
