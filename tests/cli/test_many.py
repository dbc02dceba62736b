"""claim-any and claim-all, as typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.typist import Typing

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal


def test_any_takes_the_first_free_one_and_prints_its_name(terminal: Terminal) -> None:
    terminal.claim("a", "--owner", "agent-7", "--ttl", "2m")
    ran = terminal("claim-any", "a", "b", "c", "--owner", "bob")
    assert ran.exit == 0
    assert ran.out.startswith("Claimed b for 1m, as bob.\n")
    name, lease = terminal("claim-any", "-q", "a", "b", "c").out.rstrip("\n").split("\t")
    assert name == "c"
    assert terminal("release", "c", "--lease", lease).exit == 0


def test_any_refused_says_of_each_who_has_it(terminal: Terminal) -> None:
    terminal.claim("a", "--owner", "agent-7", "--ttl", "2m")
    lease = terminal.claim("long name", "--owner", "agent-8")
    terminal("release", "long name", "--lease", lease, "--done", "1h")
    ran = terminal("claim-any", "a", "long name")
    assert ran.exit == 1
    assert ran.out.splitlines() == [
        "None is to be had now.",
        "  a          agent-7 has it for another 2m.",
        "  long name  it was done by agent-8, just now. It counts as done for another 1h.",
    ]
    error = terminal("claim-any", "a", "long name", "--json").error
    assert error["code"] == "held"
    assert error["message"] == "None is to be had now: a, long name."
    assert [entry["status"] for entry in error["details"]["refused"]] == ["held", "done"]
    assert terminal("claim-any", "-q", "a").out == ""


@pytest.mark.parametrize("words", [(), ("-",)])
def test_names_may_come_from_stdin_one_a_line(terminal: Terminal, words: tuple[str, ...]) -> None:
    terminal.claim("a")
    ran = terminal("claim-any", *words, "--json", stdin=b"a\n\n  b c \r\nd\n")
    assert ran.data["name"] == "b c"


def test_inside_a_session_asking_again_gives_the_next_one(terminal: Terminal) -> None:
    session = terminal.session()
    terminal.env["DIBS_SESSION"] = session
    assert terminal("claim-any", "a", "b", "--json").data["name"] == "a"
    ran = terminal("claim-any", "a", "b")
    assert ran.out.startswith("Claimed b for as long as the session lives")
    assert ran.out.rstrip().endswith("dibs release b")


@pytest.mark.promise("all-or-nothing")
def test_all_takes_every_one_or_none(terminal: Terminal) -> None:
    lease = terminal.claim("b", "--owner", "agent-7", "--ttl", "2m")
    ran = terminal("claim-all", "a", "b", "c")
    assert ran.exit == 1
    assert ran.out.splitlines() == [
        "Nothing was claimed: not all can be had now.",
        "  b  agent-7 has it for another 2m.",
    ]
    assert terminal("list", "-q").out == "b\n"
    terminal("release", "b", "--lease", lease)
    got = terminal("claim-all", "c", "a", "b", "--owner", "bob")
    assert got.out.startswith("Claimed all 3 for 1m, as bob.\n")
    assert terminal("list", "-q").out == "a\nb\nc\n"
    for line in terminal("claim-all", "-q", "x", "y").out.splitlines():
        name, lease = line.split("\t")
        assert terminal("release", name, "--lease", lease).exit == 0


@pytest.mark.promise("all-or-nothing")
def test_all_waits_with_nothing_in_hand_until_all_are_free(terminal: Terminal) -> None:
    lease = terminal.claim("b")
    waiter = Typing(terminal, "claim-all", "b", "a", "--wait", "60s", "--owner", "bob", "--json")
    terminal.until_in_line("b", 1)
    assert terminal("owner", "a").exit == 1
    terminal("release", "b", "--lease", lease)
    assert [each["name"] for each in waiter.ran().data["leases"]] == ["a", "b"]


def test_all_gives_its_places_up_when_the_time_is_over_and_goes_on_from_a_ticket(terminal: Terminal) -> None:
    lease = terminal.claim("b", "--ttl", "2m")
    assert terminal("claim-all", "b", "a", "--wait", "1s").exit == 1
    for name in ("a", "b"):
        assert terminal("owner", name, "--json").everything["waiting"] == 0
    ticket = terminal("claim-all", "b", "a", "-q", "--wait", "1s", "--keep-place").out.strip()
    terminal("release", "b", "--lease", lease)
    assert terminal("claim-all", "b", "a", "--ticket", ticket).exit == 0


@pytest.mark.parametrize("command", ["claim-any", "claim-all"])
@pytest.mark.parametrize(
    ("names", "stdin", "says"),
    [
        ((), b"", "empty"),
        ((), b"\n \n", "empty"),
        ((), None, "needs names"),
        ((), b"\xff\xfe", "not UTF-8"),
        (("a", "a"), b"", "twice"),
        (("path:a/b", "path:a//b/"), b"", "twice"),
        (("a", ""), b"", "may not be empty"),
        (("a", "b\x1b"), b"", "control characters"),
        (("a", "path:../b"), b"", "lead out of its tree"),
        ((), "".join(f"n{number}\n" for number in range(10_000)).encode(), "1 to"),
        ((), b"x" * 2_000_000, "more than"),
    ],
)
def test_lists_that_cannot_be_are_refused_and_claim_nothing(
    terminal: Terminal, command: str, names: tuple[str, ...], stdin: bytes | None, says: str
) -> None:
    ran = terminal(command, *names, stdin=stdin)
    assert ran.exit == 64
    assert says in ran.err
    assert terminal.store.events(0, 10) == []


def test_all_refuses_two_names_that_overlap(terminal: Terminal) -> None:
    ran = terminal("claim-all", "path:src", "path:src/a")
    assert ran.exit == 64
    assert "overlap" in ran.err
