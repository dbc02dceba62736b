"""A claim asks the tracker before it is granted, where the repository wants it. With a stand-in for gh, not GitHub."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.tracker.tracked_claim import TrackerGuard
from tests.plugins.tracker.conftest import end

if TYPE_CHECKING:
    from tests.plugins.tracker.conftest import Clone, GitHubStandIn

pytestmark = pytest.mark.full

ISSUE = "github://acme/app/issues/42"
PULL = "https://github.com/acme/app/pull/77"


def open_pull(login: str | None = "bob") -> dict[str, object]:
    return {"state": "OPEN", "url": PULL, "login": login}


def test_without_the_setting_nothing_is_asked(clone: Clone, github: GitHubStandIn) -> None:
    clone.settings('on_no_answer = "refuse"')
    assert clone("claim", "#42").exit == 0
    (clone.folder / ".dibs.toml").unlink()
    assert clone("claim", "#43").exit == 0
    assert github.calls() == []


def test_names_that_are_no_github_issue_are_not_asked_about(clone: Clone, github: GitHubStandIn) -> None:
    for name in ("issue-7", "gitlab://gitlab.com/acme/app/issues/42", "path:src", "github://acme/app"):
        assert clone("claim", name).exit == 0
    assert github.calls() == []


@pytest.mark.promise("tracker:asked")
@pytest.mark.parametrize("command", ["claim", "hold", "run", "claim-any", "claim-all"])
def test_a_closed_issue_is_done(clone: Clone, github: GitHubStandIn, command: str) -> None:
    github.issue(42, state="CLOSED", stateReason="COMPLETED")
    words = ["--", "true"] if command == "run" else []
    ran = clone(command, "#42", *words)
    assert ran.exit == 4
    assert "closed as completed" in ran.out + ran.err
    assert clone("owner", ISSUE, "--json").data["status"] == "free"


def test_the_answer_has_the_fields_of_a_done_job(clone: Clone, github: GitHubStandIn) -> None:
    merged = {"state": "MERGED", "url": PULL, "login": "bob"}
    github.issue(42, state="CLOSED", stateReason="COMPLETED", pulls=[merged])
    told = clone("claim", "#42", "--json").data
    lease = clone.claim("issue-1")
    assert clone("release", "issue-1", "--lease", lease, "--done", "--result", "PR 1").exit == 0
    stored = clone("claim", "issue-1", "--json").data
    assert set(stored) <= set(told)
    assert set(told) - set(stored) == {"tracker"}
    assert (told["status"], told["owner"], told["result"]) == ("done", "bob", PULL)
    assert told["done_at"] == "2026-11-01T10:00:00.000Z"


def test_an_issue_closed_as_not_planned_has_its_own_address_as_result(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42, state="CLOSED", stateReason="NOT_PLANNED")
    told = clone("claim", "#42", "--json")
    assert told.exit == 4
    assert told.data["result"] == "https://github.com/acme/app/issues/42"
    assert told.data["tracker"]["how"] == "closed as not planned"


@pytest.mark.promise("tracker:reopened")
def test_a_reopened_issue_is_not_done_although_a_merged_pull_request_closed_it(
    clone: Clone, github: GitHubStandIn
) -> None:
    github.issue(42, state="CLOSED", stateReason="COMPLETED")
    assert clone("claim", "#42").exit == 4
    github.issue(42, state="OPEN", stateReason="REOPENED", pulls=[{"state": "MERGED", "url": PULL, "login": "bob"}])
    assert clone("claim", "#42").exit == 0


@pytest.mark.promise("tracker:asked")
def test_an_open_pull_request_that_closes_the_issue_holds_it(clone: Clone, github: GitHubStandIn) -> None:
    closed = {"state": "CLOSED", "url": "https://github.com/acme/app/pull/70", "login": "eve"}
    github.issue(42, pulls=[closed, open_pull()])
    ran = clone("claim", "#42", "--json")
    assert ran.exit == 1
    assert (ran.data["status"], ran.data["owner"], ran.data["tracker"]["url"]) == ("held", "bob", PULL)
    assert f"bob has an open pull request that closes {ISSUE}: {PULL}" in clone("claim", "#42").out
    assert clone("claim", "#42", "--again").exit == 1
    assert clone("owner", ISSUE, "--json").data["status"] == "free"


def test_a_pull_request_of_a_deleted_account_is_somebodys(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42, pulls=[open_pull(None)])
    assert clone("claim", "#42", "--json").data["owner"] == "somebody"


def test_a_pull_request_can_be_claimed_while_it_is_open(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(77, pull=True, state="OPEN")
    github.issue(78, pull=True, state="MERGED", login="bob")
    github.issue(79, pull=True, state="CLOSED")
    assert clone("claim", "https://github.com/acme/app/pull/77/files").exit == 0
    merged = clone("claim", "#78", "--json")
    assert (merged.exit, merged.data["result"]) == (4, "https://github.com/acme/app/pull/78")
    assert clone("claim", "#79").exit == 4


def test_again_claims_a_closed_issue(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42, state="CLOSED", stateReason="COMPLETED")
    assert clone("claim", "#42", "--again").exit == 0


@pytest.mark.promise("tracker:own-pull-request")
def test_the_pull_request_of_the_session_that_has_the_job_does_not_block_it(
    clone: Clone, github: GitHubStandIn
) -> None:
    github.issue(42)
    assert clone("claim", "#42", "--actor", "ann").exit == 0
    github.issue(42, pulls=[open_pull("ann")])
    assert clone("claim", "#42", "--actor", "ann").exit == 0
    assert len(github.calls()) == 1
    lease = clone("claim", "#42", "--actor", "eve", "--json")
    assert lease.exit == 1
    assert len(github.calls()) == 1, "what is held in dibs needs no answer from elsewhere"


def test_a_repeated_request_keeps_the_lease_that_it_got(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    lease = clone.claim("#42", "--request-key", "k1")
    github.issue(42, pulls=[open_pull()])
    assert clone.claim("#42", "--request-key", "k1") == lease
    assert clone("heartbeat", "#42", "--lease", lease).exit == 0
    github.issue(43, pulls=[open_pull()])
    assert clone("claim", "#43", "--request-key", "k2").exit == 1


def test_what_is_given_back_leaves_no_trace_in_attempts_and_checkpoints(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    lease = clone.claim("#42")
    assert clone("release", "#42", "--lease", lease, "--failed", "--checkpoint", "half").exit == 0
    github.issue(42, pulls=[open_pull()])
    assert clone("claim", "#42").exit == 1
    github.issue(42, pulls=[])
    got = clone("claim", "#42", "--json").data
    assert (got["attempt"], got["previous"]["checkpoint"]) == (2, "half")


@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
def test_what_another_process_of_the_session_claimed_meanwhile_is_not_given_back(
    clone: Clone, github: GitHubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process asks the tracker, another of the same actor is told that the job is its own."""
    github.issue(42, state="CLOSED")
    look = TrackerGuard.look

    def late(guard: TrackerGuard, *asked: Any, **how: Any) -> Any:
        monkeypatch.setattr(TrackerGuard, "look", look)
        assert clone("claim", "#42", "--actor", "w1").exit == 0
        return look(guard, *asked, **how)

    monkeypatch.setattr(TrackerGuard, "look", late)
    assert clone("claim", "#42", "--actor", "w1").exit == 4
    assert clone("heartbeat", "#42", "--actor", "w1").exit == 0


def test_the_tracker_is_asked_when_the_turn_has_come(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    lease = clone.claim("#42")
    waiter = clone.start("claim", "#42", "--wait", "20s", "--json")
    try:
        while not clone("owner", ISSUE, "--json").data.get("waiting"):
            pass
        asked = len(github.calls())
        github.issue(42, state="CLOSED", stateReason="COMPLETED")
        assert clone("release", "#42", "--lease", lease).exit == 0
        out, _ = waiter.communicate(timeout=60)
    finally:
        end(waiter)
    assert waiter.returncode == 4
    assert json.loads(out)["data"]["tracker"]["title"] == "GitHub"
    assert len(github.calls()) == asked + 1


def test_claim_any_passes_over_what_is_settled_in_one_question(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(1, state="CLOSED", stateReason="COMPLETED")
    github.issue(2, pulls=[open_pull()])
    github.issue(3)
    got = clone("claim-any", "#1", "#2", "#3", "#9", "--json").data
    assert got["name"] == "github://acme/app/issues/3"
    assert [(each["name"][-1], each["status"]) for each in got["skipped"]] == [("1", "done"), ("2", "held")]
    assert len(github.calls()) == 2
    refused = clone("claim-any", "#1", "#2", "#3")
    assert refused.exit == 1
    assert "closed as completed" in refused.out
    assert "w1 has it" in refused.out
    assert clone("claim-any", "#1").exit == 4


def test_claim_all_claims_nothing_if_one_is_settled(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(1)
    github.issue(2, pulls=[open_pull()])
    refused = clone("claim-all", "#1", "#2", "issue-7", "--json")
    assert refused.exit == 1
    assert [each["name"] for each in refused.data["refused"]] == ["github://acme/app/issues/2"]
    assert clone("list", "-q").out == ""


@pytest.mark.promise("tracker:no-answer")
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("exit4", "gh is not logged in to github.com: run `gh auth login`"),
        ("exit1", "no such luck"),
        ("limited", "API rate limit exceeded"),
        ("half", "gh printed something that is no answer"),
        ("empty", "gh printed something that is no answer"),
        ("list", "gh printed something that is no answer"),
    ],
)
def test_without_an_answer_the_policy_decides(clone: Clone, github: GitHubStandIn, mode: str, why: str) -> None:
    github.fails(always=mode)
    granted = clone("claim", "#42")
    assert granted.exit == 0
    assert granted.err.count("dibs: GitHub") == 1
    assert why in granted.err
    assert "\x1b" not in granted.err + granted.out
    clone.settings('check = "github"', 'on_no_answer = "refuse"')
    refused = clone("claim", "#43", "--json")
    assert refused.exit == 69
    assert why in refused.data["message"]
    assert clone("owner", "#43", "--json").data["status"] == "free"
    assert clone("run", "#44", "--", "true").exit == 69
    assert clone("claim-any", "#44", "#45").exit == 69


def test_an_issue_that_the_account_cannot_see_is_no_answer(clone: Clone) -> None:
    ran = clone("claim", "#404")
    assert ran.exit == 0
    assert "GitHub has no github://acme/app/issues/404, or this account may not see it" in ran.err
    clone.settings('check = "github"', 'on_no_answer = "refuse"')
    assert clone("claim", "#405").exit == 69


def test_a_gh_that_is_missing_is_no_answer(clone: Clone, github: GitHubStandIn) -> None:
    (github.bin / "gh").unlink()
    ran = clone("claim", "#42", PATH="/usr/bin:/bin")
    assert ran.exit == 0
    assert "The gh program is not installed" in ran.err


def test_a_gh_that_hangs_is_killed_in_time_for_the_claim(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    github.fails("hang")
    ran = clone("claim", "#42", "--ttl", "9s", "--json")
    assert ran.exit == 0
    said = re.search(r"gh gave no answer within (\S+) s", ran.err)
    assert said is not None, ran.err
    assert float(said[1]) <= 3
    assert 0 < ran.data["remaining_ms"] <= 6_100


def test_gh_is_asked_without_a_terminal_and_without_debug_output(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42)
    assert clone("claim", "#42", GH_DEBUG="api", GH_FORCE_TTY="1").exit == 0
    (call,) = github.calls()
    assert call["env"] == {"GH_PROMPT_DISABLED": "1", "GH_DEBUG": None, "GH_FORCE_TTY": None}
    assert call["words"] == ["api", "--hostname", "github.com", "graphql", "--input", "-"]


@pytest.mark.promise("tracker:host")
def test_a_host_that_only_a_tracked_file_names_is_never_asked(clone: Clone, github: GitHubStandIn) -> None:
    (clone.folder / ".dibs.toml").write_text(
        '[tracker]\ncheck = "github"\n[names]\ngithub = ["evil.example"]\n', encoding="utf-8"
    )
    assert clone("claim", "https://evil.example/acme/app/issues/42").exit == 0
    assert github.calls() == []
    assert clone("claim", "https://evil.example/acme/app/issues/43", GH_HOST="evil.example").exit == 0
    assert [call["words"][2] for call in github.calls()] == ["evil.example"]


def test_hostile_text_of_github_moves_no_cursor(clone: Clone, github: GitHubStandIn) -> None:
    github.issue(42, pulls=[{"state": "OPEN", "url": "https://x\x1b]0;owned\x07", "login": "bob\x1b[2J\nroot"}])
    ran = clone("claim", "#42")
    assert ran.exit == 1
    assert "\x1b" not in ran.out
    assert ran.out.count("\n") == 1


def test_git_config_of_one_clone_wins_over_the_file(clone: Clone, github: GitHubStandIn) -> None:
    clone.git("config", "dibs.tracker.check", "off")
    assert clone("claim", "#42").exit == 0
    assert github.calls() == []
    clone.git("config", "dibs.tracker.check", "github")
    clone.git("config", "dibs.tracker.on-no-answer", "refuse")
    github.fails(always="exit1")
    assert clone("claim", "#43").exit == 69


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('check = "gitlab"', "check is one of off, github"),
        ('on_no_answer = "maybe"', "on_no_answer is one of grant, refuse"),
        ("comment = 7", "comment is true or false"),
        ("label = 7", "label is a text"),
        ('token = "x"', "[tracker] has no setting 'token'"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_before_anything_is_claimed(
    clone: Clone, line: str, why: str
) -> None:
    clone.settings(line)
    ran = clone("claim", "#42")
    assert ran.exit == 64
    assert why in ran.err
    (clone.folder / ".dibs.toml").unlink()
    assert clone("list", "-q").out == ""
