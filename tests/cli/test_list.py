"""list and history: which jobs, in which order, within which width."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from dibs.cli.main import run
from dibs.cli.text.listing import fitted
from dibs.cli.text.words import natural_key, table
from tests.cli.conftest import Screen

if TYPE_CHECKING:
    from tests.cli.conftest import Ran, Terminal


def names(ran: Ran) -> list[str]:
    assert ran.exit == 0
    return ran.out.split()


@pytest.fixture
def backlog(terminal: Terminal) -> Terminal:
    """Two held, one parked, one done, one free that was held before."""
    terminal.claim("poison", "--ttl", "1s", "--max-attempts", "1", "--owner", "agent-9")
    terminal.wait(2)
    assert terminal("claim", "poison").exit == 75
    terminal.claim("issue-10", "--owner", "agent-7", "--ttl", "1h")
    terminal.claim("issue-2", "--owner", "agent-8", "--ttl", "1h")
    lease = terminal.claim("issue-3", "--owner", "agent-7")
    terminal("release", "issue-3", "--lease", lease, "--done=1h", "--result", "PR 77")
    lease = terminal.claim("issue-4", "--owner", "agent-8")
    terminal("release", "issue-4", "--lease", lease)
    return terminal


def test_a_list_shows_what_is_held_and_what_is_parked(backlog: Terminal) -> None:
    assert names(backlog("list", "-q")) == ["issue-2", "issue-10", "poison"]
    lines = backlog("list").out.splitlines()
    assert lines[0].split() == ["JOB", "STATE", "OWNER", "LEFT", "SINCE", "NOTE"]
    assert lines[3].split()[:4] == ["poison", "parked", "agent-9", "-"]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (("--parked",), ["poison"]),
        (("--done",), ["issue-3"]),
        (("--done", "--parked"), ["issue-3", "poison"]),
        (("--all",), ["issue-2", "issue-3", "issue-4", "issue-10", "poison"]),
        (("--owner", "agent-7"), ["issue-10"]),
        (("--owner", "agent-7", "--all"), ["issue-3", "issue-10"]),
        (("--owner", "agent-8", "--all", "--prefix", "issue-"), ["issue-2", "issue-4"]),
        (("--owner", "nobody"), []),
        (("--all", "--limit", "2"), ["issue-10", "issue-2"]),
        (("--owner", "agent-8", "--all", "--limit", "1"), ["issue-2"]),
    ],
)
def test_flags_of_a_list_choose_jobs(backlog: Terminal, flags: tuple[str, ...], wanted: list[str]) -> None:
    assert names(backlog("list", "-q", *flags)) == wanted


def test_pages_of_one_owner_go_on_where_the_last_ended(backlog: Terminal) -> None:
    page = backlog("list", "--owner", "agent-8", "--all", "--limit", "1", "--json").data
    rest = backlog("list", "--owner", "agent-8", "--all", "--limit", "9", "--after", page["next"], "--json").data
    assert [lock["name"] for lock in rest["locks"]] == ["issue-4"]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "No job is claimed."),
        (("--parked",), "No job is parked."),
        (("--done", "--prefix", "x"), "No job is marked as done whose name begins with x."),
        (("--all",), "No job is on record."),
        (("--owner", "ann"), "No job is claimed by ann."),
    ],
)
def test_an_empty_list_says_of_what(terminal: Terminal, flags: tuple[str, ...], says: str) -> None:
    assert terminal("list", *flags).out == f"{says}\n"


def test_names_sort_as_people_count() -> None:
    shuffled = ["a10", "a9b2", "a9b10", "b", "", "10", "9", "a", "a9", "é2", "é10", "007", "7"]
    wanted = ["", "007", "7", "9", "10", "a", "a9", "a9b2", "a9b10", "a10", "b", "é2", "é10"]
    assert sorted(shuffled, key=natural_key) == wanted


@pytest.mark.parametrize("width", [80, 60])
def test_a_list_fits_the_terminal_and_a_pipe_gets_it_whole(terminal: Terminal, width: int) -> None:
    long = "github://acme/a-long-repository-name/issues/1842"
    terminal.claim(long, "--owner", "agent-with-a-long-name@machine.example.org", "--metadata", "m" * 90)
    screen = Screen()
    env = {**terminal.env, "COLUMNS": str(width), "NO_COLOR": "1"}
    assert run(["list"], env, screen, io.StringIO(), None, terminal._open) == 0
    assert max(map(len, screen.getvalue().splitlines())) <= width
    assert long in terminal("list").out


def test_a_file_that_a_hook_claimed_for_all_and_for_its_checkout_is_one_row(terminal: Terminal) -> None:
    note, checkout, other = "checkout=e586069f0739 clone=0397eae76e08", "path:@e586069f0739", "path:@0123456789ab"
    for name in (f"{checkout}/src/a.py", "path:src/a.py"):
        terminal.claim(name, "--owner", "gemini-a26d in app@main", "--metadata", note, "--namespace", "n")
    # In another work tree, for which the first is no reason to stop.
    terminal.claim(f"{other}/src/a.py", "--owner", "codex-03b3 in app2@main", "--metadata", note, "--namespace", "n")
    _, *rows = terminal("list", "--namespace", "n").out.splitlines()
    assert [row.split()[:2] for row in rows] == [["path:src/a.py", "gemini-a26d"]]
    assert "+1" in rows[0]
    assert "also codex-03b3 in app2@main" in rows[0]
    assert "checkout=" not in "".join(rows)
    assert terminal("list", "--namespace", "n", "--quiet").out.split() == ["path:src/a.py"]
    for command in ("owner", "history", "wait --for 1s"):
        shown = terminal(*command.split(), "path:src/a.py", "--namespace", "n").out
        assert "gemini-a26d" in shown
        assert "e586069f0739" not in shown


def test_columns_are_cut_only_as_far_as_needed() -> None:
    rows: list[tuple[str, ...]] = [
        ("JOB", "OWNER", "LEFT", "SINCE", "NOTE"),
        ("j" * 30, "o" * 20, "1m", "just now", "n" * 40),
    ]
    least = {"NOTE": 12, "OWNER": 10, "JOB": 16}
    assert fitted(rows, None, least) == fitted(rows, 200, least) == [list(row) for row in rows]
    cut = fitted(rows, 80, least)
    assert cut[1][0] == "j" * 30
    assert cut[1][4].endswith("…")
    assert max(map(len, table(cut))) == 80
    narrow = fitted(rows, 40, least, ("NOTE", "SINCE"))
    assert narrow[0] == ["JOB", "OWNER", "LEFT"]
    assert max(map(len, table(narrow))) <= 40


def test_a_very_long_name_moves_only_its_own_line_in_a_pipe(terminal: Terminal) -> None:
    for name in ("n" * 500, "short"):
        terminal.claim(name, "--owner", "ann")
    head, *lines = terminal("list").out.splitlines()
    assert [line.startswith("short  ann") for line in lines] == [False, True]
    assert len(head) < 60


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("issue-", ["issue-2", "issue-10"]),
        ("issue-*", ["issue-2", "issue-10"]),
        ("*-2", ["issue-2"]),
        ("issue-?", ["issue-2"]),
        ("*", ["issue-2", "issue-10", "poison"]),
        ("i[s]sue*", []),
    ],
)
def test_a_pattern_is_a_beginning_or_has_stars(backlog: Terminal, pattern: str, wanted: list[str]) -> None:
    assert names(backlog("list", pattern, "-o", "name")) == wanted
    assert [lock["name"] for lock in backlog("list", pattern, "-o", "json").data["locks"]] == wanted
    assert names(backlog("top", "--once", pattern, "-q")) == wanted


def test_a_pattern_that_nothing_is_like_is_named(backlog: Terminal) -> None:
    assert backlog("list", "*x").out == "No job is claimed whose name is like *x.\n"
    assert backlog("list", "a", "--prefix", "b").exit == 64
    assert "-o takes json, name or wide, not yaml" in backlog("list", "-o", "yaml").err
    assert backlog("list", "-o", "wide").out.split("\n")[0].split()[-2:] == ["TOKEN", "NOTE"]


def test_owner_free_and_break_take_several_jobs(backlog: Terminal) -> None:
    ran = backlog("owner", "issue-2", "issue-10", "-q")
    assert (ran.exit, ran.out) == (0, "agent-8\nagent-7\n")
    mixed = backlog("owner", "issue-2", "nothing", "--json")
    assert (mixed.exit, [each["ok"] for each in mixed.everything["jobs"]]) == (1, [True, False])
    assert backlog("free", "poison", "issue-2").out.splitlines() == [
        "Freed: poison can be claimed again. Its failure count is 0.",
        "issue-2 is not parked. Nothing was changed.",
    ]
    assert backlog("break", "issue-2", "issue-10", "--reason", "r").out.count("Broken: ") == 2
    assert backlog("history", "nothing").exit == backlog("owner", "nothing").exit == 1


def test_history_shows_what_happened_since(terminal: Terminal) -> None:
    terminal.now_ms = 1_900_000_000_000  # later than the machine's clock, which is what --since counts from
    lease = terminal.claim("job")
    terminal("release", "job", "--lease", lease)
    assert len(terminal("history", "job", "--since", "1h").out.splitlines()) == 2
    assert len(terminal("history", "job", "--since", "2030-03-17", "--json").data["events"]) == 2
    assert len(terminal("history", "job", "--since", "2030-03-17T17:46:40Z", "--json").data["events"]) == 2
    assert terminal("history", "job", "--since", "2031-01-01 10:00").out == (
        "Nothing is on record about job since 2031-01-01 10:00.\n"
    )
    for wrong in ("yesterday", "2030-99", "2030/03/17", ""):
        assert terminal("history", "job", "--since", wrong).exit == 64
