"""owner, list, history, break, gc, as typed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from dibs.cli.commands import inspect as looking
from dibs.cli.commands import list as listing

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal


@pytest.fixture(autouse=True)
def _one_clock(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a remaining time are shown by this machine's clock. Here it is the same as the store's."""
    for module in (looking, listing):
        monkeypatch.setattr(module, "wall_ms", lambda: terminal.now_ms)


def test_owner_shows_who_has_it(terminal: Terminal) -> None:
    terminal.claim("issue-1", "--owner", "agent-7", "--ttl", "2m", "--metadata", "repo=acme/app")
    terminal.wait(30)
    ran = terminal("owner", "issue-1")
    assert ran.exit == 0
    assert ran.out.splitlines() == [
        "agent-7 has issue-1 for another 1m 30s.",
        "  since          30 seconds ago",
        "  heard          last heartbeat 30 seconds ago",
        "  metadata       repo=acme/app",
        "  fencing token  1",
    ]
    assert terminal("owner", "-q", "issue-1").out == "agent-7\n"
    assert terminal("owner", "issue-1", "--json").data["owner"] == "agent-7"


def test_owner_of_a_free_job_exits_with_1(terminal: Terminal) -> None:
    assert terminal("owner", "issue-1").out == "Nobody has issue-1.\n"
    lease = terminal.claim("issue-1", "--owner", "agent-7")
    terminal("release", "issue-1", "--lease", lease)
    terminal.wait(120)
    ran = terminal("owner", "issue-1")
    assert ran.exit == 1
    assert ran.out.splitlines()[1].split() == "before agent-7 released it 2 minutes ago".split()
    error = terminal("owner", "issue-1", "--json").error
    assert error["code"] == "free"
    assert error["details"]["status"] == "free"
    assert terminal("owner", "-q", "issue-1").out == ""


def test_owner_of_a_done_job_exits_with_4(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--owner", "agent-7")
    terminal("release", "issue-1", "--lease", lease, "--done=1h", "--result", "PR 77")
    terminal.wait(60)
    ran = terminal("owner", "issue-1")
    assert ran.exit == 4
    assert ran.out.splitlines() == [
        "Done: issue-1 was done by agent-7, 1 minute ago. It counts as done for another 59m.",
        "  result         PR 77",
    ]


def test_list_is_a_table_and_quiet_only_names(terminal: Terminal) -> None:
    assert terminal("list").out == "No job is claimed.\n"
    terminal.claim("issue-2", "--owner", "b", "--metadata", "m" * 100)
    terminal.claim("issue-1", "--owner", "agent-7", "--ttl", "2m")
    terminal.claim("other", "--owner", "c")
    lines = terminal("list", "--prefix", "issue-").out.splitlines()
    assert lines[0].split() == ["JOB", "OWNER", "LEFT", "SINCE", "NOTE"]
    assert lines[1].split() == ["issue-1", "agent-7", "2m", "just", "now"]
    assert lines[2].endswith("mmm…")
    assert terminal("list", "-q").out == "issue-1\nissue-2\nother\n"
    assert terminal("list", "--prefix", "none").out == "No job is claimed whose name begins with none.\n"


def test_list_shows_everything_unless_a_page_is_asked_for(terminal: Terminal) -> None:
    for number in range(5):
        terminal.claim(f"job-{number}")
    everything = terminal("list", "--json").data
    assert [lock["name"] for lock in everything["locks"]] == [f"job-{number}" for number in range(5)]
    assert everything["total"] == 5
    assert everything["next"] is None
    page = terminal("list", "--limit", "2", "--json").data
    assert page["next"] == "job-1"
    assert "More follow: --after job-1" in terminal("list", "--limit", "2").out
    rest = terminal("list", "--limit", "9", "--after", "job-1", "--json").data
    assert [lock["name"] for lock in rest["locks"]] == ["job-2", "job-3", "job-4"]


@pytest.mark.fault("F-658")
def test_the_flag_for_the_next_page_is_one_word_in_a_shell_whatever_others_are_called(terminal: Terminal) -> None:
    hostile = "a'; touch x; '$(id)"
    for name in (hostile, "b", "c"):
        assert terminal("claim", name, "--actor", name).exit == 0
    for command in ("list", "agents"):
        words = shlex.split(terminal(command, "--limit", "1").out.splitlines()[-1].removeprefix("More follow: "))
        assert words[0] == "--after"
        assert words[1].endswith(hostile)
        assert len(words) == 2
        assert hostile not in terminal(command, "--limit", "1", *words).out


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "10001", "٣", ""])
def test_a_limit_that_cannot_be_is_refused(terminal: Terminal, limit: str) -> None:
    for words in (("list",), ("history", "job")):
        assert terminal(*words, "--limit", limit, "--json").error["code"] == "invalid_input"


def test_history_shows_everything_in_order(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--owner", "agent-7", "--ttl", "1m")
    terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "half way")
    terminal.wait(90)
    lease = terminal.claim("issue-1", "--owner", "agent-8")
    terminal("release", "issue-1", "--lease", lease, "--done=1h", "--result", "PR 77")
    told = [line.split("  ", 2)[2].strip() for line in terminal("history", "issue-1").out.splitlines()]
    assert told == [
        "agent-7 claimed it for 1m (token 1)",
        "agent-7 made progress: checkpoint half way",
        "the claim of agent-7 expired without a heartbeat: checkpoint half way",
        "agent-8 claimed it for 1m (token 2, attempt 2)",
        "agent-8 released it as done: result PR 77",
    ]
    assert len(terminal("history", "issue-1", "--limit", "2", "--json").data["events"]) == 2
    assert terminal("history", "other").out == "Nothing is on record about other.\n"


def test_break_takes_a_job_away_and_the_old_owner_is_told_why(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--owner", "agent-7")
    assert terminal("break", "issue-1").exit == 64
    ran = terminal("break", "issue-1", "--reason", "it hangs")
    assert ran.out == "Broken: agent-7 has lost issue-1. Its next heartbeat is refused with your reason.\n"
    late = terminal("heartbeat", "issue-1", "--lease", lease)
    assert late.exit == 2
    assert "it hangs" in late.err
    assert terminal("break", "issue-1", "--reason", "x").out == "Nobody has issue-1. Nothing was changed.\n"
    assert "took it from agent-7" in terminal("history", "issue-1").out


def test_gc_turns_what_is_due_into_events(terminal: Terminal) -> None:
    assert terminal("gc").out == "Nothing was due.\n"
    terminal.claim("a", "--ttl", "5s")
    terminal.claim("b", "--ttl", "5s")
    terminal.wait(6)
    assert terminal("gc").out == "Ended 2 claims that had expired, forgot 0 idle jobs.\n"
    terminal.wait(2 * 24 * 3600)
    assert terminal("gc", "--json").data == {"jobs": 2, "expired": 0, "forgotten": 2, "recounted": []}


def test_what_strangers_wrote_cannot_move_the_cursor(terminal: Terminal) -> None:
    terminal.claim("job", "--owner", "evil\x1b[2J\rroot", "--metadata", "a\nb")
    for command in (("owner", "job"), ("list",), ("history", "job"), ("claim", "job")):
        out = terminal(*command).out
        assert "\x1b" not in out
        assert "\r" not in out
        assert "evil\\u001b[2J\\rroot" in out


@pytest.mark.promise("overdue")
def test_whether_a_job_ran_in_time_is_said_in_words_and_by_the_exit_code(terminal: Terminal) -> None:
    ran = terminal("overdue", "nightly-report")
    assert (ran.exit, ran.out) == (
        6,
        "Overdue: nightly-report has no success on record, and the history is empty.\n",
    )
    lease = terminal.claim("nightly-report", "--owner", "ci-7")
    ran = terminal("overdue", "nightly-report", "--within", "26h")
    assert ran.exit == 6
    assert "has no success on record since 2025-" in ran.out
    assert "ci-7 has had it for" in ran.out
    assert terminal("release", "nightly-report", "--lease", lease, "--done", "--result", "all green").exit == 0
    ran = terminal("overdue", "nightly-report", "--within", "26h")
    assert (ran.exit, ran.out.splitlines()[0].partition(" succeeded ")[0]) == (0, "In time: nightly-report")
    assert ran.out.splitlines()[1].split() == ["result", "all", "green"]
    assert terminal("overdue", "-q", "nightly-report").out.startswith("2025-")
    asked = terminal("overdue", "nightly-report", "never", "--json")
    assert (asked.exit, [job["ok"] for job in asked.data["jobs"]]) == (6, [True, False])
    assert asked.data["jobs"][0]["last_success"]["owner"] == "ci-7"
    for wrong in ("0s", "400d", "soon"):
        assert terminal("overdue", "nightly-report", "--within", wrong).exit == 64


@pytest.mark.fault("F-688")
def test_a_job_that_an_operator_keeps_everybody_from_is_not_called_free(terminal: Terminal) -> None:
    terminal("release", "deploy/web", "--lease", terminal.claim("deploy/web", "--owner", "ann"))
    terminal("pool", "set", "gpu", "--slots", "0")
    terminal("close", "deploy/", "--for", "2h", "--reason", "migration")
    for job, word, sentence in (
        ("gpu", "paused", "gpu is paused: its pool has no slots until an operator gives it some."),
        ("deploy/web", "closed", "deploy/web is closed, with deploy/, for another 2h,"),
    ):
        ran = terminal("owner", job)
        assert (ran.exit, ran.out.startswith(sentence), "Nobody has" in ran.out) == (1, True, False)
        assert terminal("owner", job, "--json").error["code"] == word
        assert terminal("wait", "-q", job).out == f"{word}\n"
    rows = {line.split()[0]: line.split()[1:] for line in terminal("list", "--all").out.splitlines()}
    assert rows["gpu"][0] == "paused"
    assert (rows["deploy/web"][:3], rows["deploy/web"][-1]) == (["closed", "ann", "2h"], "migration")
    terminal("export", "--freeze")
    assert terminal("owner", "new", "--json").error["code"] == "frozen"
    assert "its store is frozen" in terminal("owner", "new").out
    assert terminal("wait", "-q", "gpu").out == "frozen\n"
    assert [lock["status"] for lock in terminal("list", "--all", "--json").data["locks"]] == ["frozen"] * 2


@pytest.mark.fault("F-787")
def test_what_else_keeps_others_from_a_job_is_said_below(terminal: Terminal) -> None:
    terminal("release", "cut", "--lease", terminal.claim("cut", "--owner", "ann"), "--done")
    lease = terminal.claim("tired", "--owner", "ann")
    terminal("release", "tired", "--lease", lease, "--failed", "--retry-after", "2h")
    terminal("pool", "set", "idle", "--slots", "0")
    for job in ("cut", "tired", "idle"):
        terminal("close", job, "--for", "1h", "--reason", "migration")
    for job, first, below in (
        ("cut", "Done: cut was done by ann", "  closed         cut is closed for another 1h"),
        ("tired", "tired is closed for another 1h", "  rests          for another 2h"),
        ("idle", "idle is closed for another 1h", "  slots          paused, 0 taken"),
    ):
        said = terminal("owner", job).out
        assert (said.startswith(first), below in said) == (True, True), said


@pytest.mark.fault("F-689")
def test_break_takes_a_job_from_one_of_several_owners(terminal: Terminal) -> None:
    terminal("pool", "set", "gpu", "--slots", "2")
    for owner in ("ann", "bob"):
        terminal.claim("gpu", "--owner", owner)
    told = terminal("owner", "gpu", "--json").data["holders"]
    token = str(next(each["fencing_token"] for each in told if each["owner"] == "bob"))
    broken = ("break", "gpu", "--fencing-token", token, "--reason", "hangs")
    assert terminal(*broken).out.startswith("Broken: bob has lost gpu.")
    assert terminal("owner", "-q", "gpu").out == "ann\n"
    again = terminal(*broken)
    assert (again.exit, again.out) == (0, "That hold has ended. Nothing was changed.\n")
    assert terminal("owner", "-q", "gpu").out == "ann\n"
    for wrong in (("break", "gpu", "x", "--fencing-token", token), ("break", "gpu", "--fencing-token", "0")):
        assert terminal(*wrong, "--reason", "r").exit == 64
