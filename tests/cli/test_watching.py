"""wait, and what is shown of claims that overlap, are shared or are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.typist import Typing

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal


def test_wait_says_how_the_job_stands_when_nobody_has_it(terminal: Terminal) -> None:
    assert terminal("wait", "job").out == "Nobody has job.\n"
    lease = terminal.claim("job", "--owner", "agent-7")
    waiter = Typing(terminal, "wait", "job", "-q", "--for", "60s")
    assert waiter.is_alive()
    terminal("release", "job", "--lease", lease, "--done=1h")
    ran = waiter.ran()
    assert (ran.exit, ran.out) == (0, "done\n")


def test_wait_for_nothing_says_who_still_has_it(terminal: Terminal) -> None:
    terminal.claim("job", "--owner", "agent-7", "--ttl", "2m")
    ran = terminal("wait", "job", "--for", "0")
    assert ran.exit == 1
    assert ran.out.startswith("Not yet: agent-7 has job for another 2m.")
    error = terminal("wait", "job", "--for", "0", "--json").error
    assert (error["code"], error["details"]["owner"]) == ("held", "agent-7")
    for wrong in ("x", "-1", "1500ms"):
        assert terminal("wait", "job", "--for", wrong).exit == 64


@pytest.mark.promise("tree")
def test_wait_and_claim_see_what_overlaps(terminal: Terminal) -> None:
    lease = terminal.claim("path:src/auth", "--owner", "agent-7", "--ttl", "2m")
    ran = terminal("claim", "path:src", "--owner", "bob")
    assert ran.exit == 1
    assert ran.out.startswith("Held: agent-7 has path:src/auth, which overlaps path:src, for another 2m.")
    assert "overlaps       path:src/auth, which agent-7 has" in terminal("owner", "path:src").out
    assert terminal("wait", "path:src", "--for", "0").exit == 1
    assert terminal("claim", "path:src/other").exit == 0
    for name in ("path:../x", "path:src/../../x", "path:", "repo:"):
        assert terminal("claim", name, "--json").error["code"] == "invalid_lock_name"
    waiter = Typing(terminal, "wait", "path:src/auth/x", "--for", "60s")
    terminal("release", "path:src/auth", "--lease", lease)
    assert waiter.ran().exit == 0


def test_shared_and_counted_claims_are_shown_as_what_they_are(terminal: Terminal) -> None:
    for owner in ("one", "two"):
        terminal.claim("docs", "--shared", "--owner", owner, "--ttl", "2m")
    for owner in ("one", "two"):
        terminal.claim("gpu", "--slots", "3", "--owner", owner)
    terminal.claim("plain", "--owner", "three")
    alone = terminal("claim", "docs", "--owner", "writer")
    assert alone.exit == 1
    assert alone.out.startswith("Held: one and 1 other have docs for another 2m.")
    shown = terminal("owner", "docs").out.splitlines()
    assert shown[0] == "2 have docs (shared by 2):"
    assert [line.split()[0] for line in shown[1:]] == ["OWNER", "one", "two"]
    assert terminal("owner", "gpu").out.startswith("2 have gpu (2 of 3 slots):")
    rows = [line.split("  ") for line in terminal("list").out.splitlines()]
    told = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert told[0] == ["JOB", "OWNER", "LEFT", "SINCE", "MODE", "NOTE"]
    assert [(row[0], row[1], row[4]) for row in told[1:]] == [
        ("docs", "one +1", "shared by 2"),
        ("gpu", "one +1", "2 of 3 slots"),
        ("plain", "three", "exclusive"),
    ]
    other = terminal("claim", "gpu", "--slots", "2")
    assert other.exit == 2
    assert "held with slots 3, and slots 2 was asked for" in other.err
    terminal.claim("gpu", "--slots", "3")
    assert terminal("claim", "gpu", "--slots", "3").exit == 1


def test_wait_for_several_ends_when_nobody_has_any_of_them(terminal: Terminal) -> None:
    one, two = terminal.claim("a"), terminal.claim("b")
    waiter = Typing(terminal, "wait", "a", "b", "c", "-q", "--for", "60s")
    terminal("release", "a", "--lease", one, "--done=1h")
    assert waiter.is_alive()
    assert terminal("wait", "a", "b", "--for", "0").exit == 1
    terminal("release", "b", "--lease", two)
    ran = waiter.ran()
    assert (ran.exit, ran.out) == (0, "a\tdone\nb\tfree\nc\tfree\n")
    jobs = terminal("wait", "a", "b", "--json").data["jobs"]
    assert [each["status"] for each in jobs] == ["done", "free"]


def test_wait_tells_done_from_free_by_its_exit_code_where_that_is_asked_for(terminal: Terminal) -> None:
    lease = terminal.claim("a")
    terminal("release", "a", "--lease", lease, "--done=1h")
    assert terminal("wait", "a").exit == 0
    assert terminal("wait", "a", "--done-exit-code", "4").exit == 4
    assert terminal("wait", "a", "--done-exit-code", "4", "--json").error["code"] == "done"
    assert terminal("wait", "a", "b", "--done-exit-code", "4").exit == 0
    assert terminal("wait", "b", "--done-exit-code", "4").exit == 0
    assert terminal("wait", "a", "--done-exit-code", "256").exit == 64
