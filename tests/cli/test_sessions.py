"""session open, keep, end, show, list, and claims that go by name inside one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

UNKNOWN = "00000000-0000-4000-8000-000000000000"


def test_opening_prints_the_id_and_what_to_do_with_it(terminal: Terminal) -> None:
    ran = terminal("session", "open", "--owner", "agent-7", "--ttl", "90s")
    head, export, after = ran.out.splitlines()
    assert head == "Opened a session for agent-7; it ends 1m 30s after its last renewal."
    assert export.startswith("  export DIBS_SESSION=")
    assert after == "Renew it within 45s:  dibs session keep"
    data = terminal("session", "open", "--json").data
    assert data["active"] is True
    assert data["owner"].startswith("ann@")


@pytest.mark.promise("session")
def test_inside_a_session_names_are_enough_and_its_end_lets_go_of_all(terminal: Terminal) -> None:
    terminal.env["DIBS_SESSION"] = terminal.session("--owner", "agent-7")
    ran = terminal("claim", "a")
    assert ran.out.splitlines() == [
        "Claimed a until the session ends, as agent-7.",
        "  fencing token  1",
        "When it is done:  dibs release a",
    ]
    timed = terminal("claim", "b", "--ttl", "20s").out.splitlines()
    assert (timed[0], timed[-1]) == (
        "Claimed b for 20s, as agent-7.",
        "Send a heartbeat within 10s:  dibs heartbeat b",
    )
    assert terminal("heartbeat", "a", "--checkpoint", "half way").exit == 0
    assert terminal("release", "b").exit == 0
    shown = terminal("session", "show").out.splitlines()
    assert shown[0] == "Alive: agent-7, for another 1m."
    assert shown[-1] == "  holds          a (token 1)"
    assert terminal("session", "show", "-q").out == "a\n"
    assert terminal("session", "end").out == "Ended. Everything the session held is released.\n"
    assert terminal("owner", "a").exit == 1
    assert terminal("session", "end").exit == 0  # ending it again changes nothing
    for words in (("session", "keep"), ("session", "show"), ("claim", "c")):
        assert terminal(*words).exit == 2
        assert terminal(*words, "--json").error["code"] == "session_expired"


@pytest.mark.promise("session")
def test_a_silent_session_loses_all_and_a_kept_one_keeps_it(terminal: Terminal) -> None:
    session = terminal.session("--ttl", "30s")
    terminal.claim("a", "--session", session)
    terminal.wait(25)
    assert terminal("session", "keep", session).out == "Alive for another 30s.\n"
    terminal.wait(25)
    assert terminal("owner", "a").exit == 0
    terminal.wait(6)
    assert terminal("claim", "a").exit == 0
    late = terminal("release", "a", "--session", session)
    assert late.exit == 2
    assert "expired" in late.err
    assert terminal("owner", "a").exit == 0


def test_a_lease_that_is_given_wins_over_the_session(terminal: Terminal) -> None:
    lease = terminal.claim("a")
    terminal.env["DIBS_SESSION"] = terminal.session()
    assert terminal("release", "a").exit == 2
    assert terminal("heartbeat", "a", "--lease", lease).exit == 0
    terminal.env["DIBS_LEASE"] = lease
    assert terminal("heartbeat", "a", "--session", terminal.env["DIBS_SESSION"]).exit == 2
    assert terminal("release", "a").exit == 0


def test_the_list_says_who_holds_what(terminal: Terminal) -> None:
    assert terminal("session", "list").out == "No session is open.\n"
    session = terminal.session("--owner", "agent-7")
    for name in "abcd":
        terminal.claim(name, "--session", session)
    head, line = terminal("session", "list").out.splitlines()
    assert head.split() == ["SESSION", "OWNER", "LEFT", "HOLDS", "WAITS", "FOR"]
    assert line.split() == [session, "agent-7", "1m", "a,", "b,", "c", "and", "1", "more", "-"]
    assert terminal("session", "list", "-q").out == f"{session}\n"
    assert len(terminal("session", "list", "--json").data["sessions"]) == 1


@pytest.mark.promise("session")
def test_a_session_of_a_process_that_died_is_over_for_its_neighbours(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = terminal.session("--pid", str(os.getpid()))
    terminal.claim("a", "--session", session)
    assert terminal("claim", "a").exit == 1
    monkeypatch.setattr("dibs.system.session_mark._number_is_free", lambda pid: True)
    assert terminal("claim", "a").exit == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("session",), "session needs one of: run, open, keep"),
        (("session", "keep"), "DIBS_SESSION"),
        (("session", "keep", "nonsense"), "not a session id"),
        (("session", "keep", "a", "b"), "one argument too many"),
        (("session", "open", "--ttl", "0s"), "from 1s to 1d"),
        (("session", "open", "--ttl", "25h"), "from 1s to 1d"),
        (("session", "open", "--ttl", "x"), "--ttl"),
        (("session", "open", "--pid", "0"), "--pid"),
        (("session", "open", "--pid", "x"), "--pid"),
        (("session", "open", "--pid", "4194305"), "no such process"),
        (("session", "open", "--owner", "o" * 257), "256"),
        (("session", "run"), "needs COMMAND after --"),
        (("session", "run", "ls"), "dibs session run -- ls"),
        (("session", "run", "--ttl", "999ms", "--", "ls"), "from 1s to 1d"),
        (("transfer", "a"), "--to OWNER"),
        (("transfer", "a", "--to", "x"), "must know that the claim is yours"),
        (("transfer", "a", "--to-session", "x", "--lease", UNKNOWN), "not a session id"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    ran = terminal(*words)
    assert ran.exit == 64
    assert says in ran.err
    assert terminal.store.events(0, 10) == []
    assert terminal("--json", *words).error["code"] in ("invalid_input", "invalid_ttl")


def test_a_session_that_is_not_yours_is_unknown_and_nothing_changes(terminal: Terminal) -> None:
    for words in (
        ("claim", "a", "--session", UNKNOWN),
        ("claim", "a", "--wait", "5s", "--session", UNKNOWN),
        ("claim-any", "a", "--session", UNKNOWN),
        ("claim-all", "a", "b", "--session", UNKNOWN),
        ("session", "keep", UNKNOWN),
        ("session", "end", UNKNOWN),
        ("session", "show", UNKNOWN),
    ):
        ran = terminal(*words)
        assert ran.exit == 2
        assert "no such session" in ran.err
    assert terminal.store.events(0, 10) == []


@pytest.mark.fault("F-772")
def test_a_transfer_that_would_leave_two_owners_in_a_tree_says_who_is_in_the_way(terminal: Terminal) -> None:
    session = terminal.session("--owner", "ann")
    for name in ("path:zy", "path:zy/src"):
        assert terminal("claim", name, "--session", session).exit == 0
    refused = terminal("transfer", "path:zy", "--to", "bob", "--session", session)
    assert (refused.exit, refused.out) == (1, "")
    assert "ann has path:zy/src" in refused.err
    assert terminal("transfer", "path:zy", "--to", "bob", "--session", session, "--json").error["code"] == "held"


def test_a_transfer_to_an_owner_prints_the_lease_id_that_is_to_be_handed_on(terminal: Terminal) -> None:
    lease = terminal.claim("a", "--owner", "agent-7", "--ttl", "2m")
    terminal("heartbeat", "a", "--lease", lease, "--checkpoint", "half way")
    ran = terminal("transfer", "a", "--to", "agent-8", "--lease", lease)
    assert ran.out.startswith("Handed over: a is agent-8's now, for another 2m.\n  fencing token  2\n")
    new = ran.out.splitlines()[2].split()[1]
    late = terminal("heartbeat", "a", "--lease", lease)
    assert late.exit == 2
    assert "handed to agent-8" in late.err
    assert terminal("heartbeat", "a", "--lease", new, "--json").data["checkpoint"] == "half way"
    assert "agent-7 handed it to agent-8" in terminal("history", "a").out
    assert len(terminal("transfer", "a", "-q", "--to", "c", "--lease", new).out.strip()) == 36
    terminal.wait(300)
    assert "before         c went silent" in terminal("claim", "a").out


def test_a_transfer_to_a_session_goes_by_name(terminal: Terminal) -> None:
    one, two = terminal.session("--owner", "one"), terminal.session("--owner", "two")
    terminal.claim("a", "--session", one)
    ran = terminal("transfer", "a", "--session", one, "--to-session", two)
    assert ran.out.startswith("Handed over: a is two's now")
    assert "lease" not in ran.out
    assert terminal("release", "a", "--session", one).exit == 2
    assert terminal("transfer", "a", "--session", two, "--to-session", UNKNOWN).exit == 2
    assert terminal("release", "a", "--session", two).exit == 0


def test_history_shows_the_line_as_well(terminal: Terminal) -> None:
    terminal.claim("a", "--owner", "agent-7", "--ttl", "2m")
    assert terminal("claim", "a", "--wait", "1s", "--owner", "bob").exit == 1
    told = [line.split("  ", 2)[2].strip() for line in terminal("history", "a").out.splitlines()]
    assert told == ["agent-7 claimed it for 2m (token 1)", "bob got in line", "bob left the line"]
