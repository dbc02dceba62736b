"""claim-any and claim-all, as typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.typist import Typing

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
    terminal("release", "long name", "--lease", lease, "--done=1h")
    ran = terminal("claim-any", "a", "long name")
    assert ran.exit == 1
    assert ran.out.splitlines() == [
        "None of these jobs is available.",
        "  a          agent-7 has it for another 2m.",
        "  long name  it was done by agent-8, just now. It counts as done for another 1h.",
    ]
    error = terminal("claim-any", "a", "long name", "--json").error
    assert error["code"] == "held"
    assert error["message"] == "None of these jobs is available: a (held by agent-7), long name (done)."
    assert [entry["status"] for entry in error["details"]["refused"]] == ["held", "done"]
    assert terminal("claim-any", "-q", "a").out == ""


@pytest.mark.fault("F-758")
def test_a_job_that_is_closed_itself_is_not_said_to_be_closed_with_another(terminal: Terminal) -> None:
    terminal("close", "a", "--for", "2h", "--reason", "migration")
    terminal("close", "deploy/", "--for", "2h", "--reason", "migration")
    _, itself, below = terminal("claim-any", "a", "deploy/web").out.splitlines()
    assert itself.startswith("  a           it is closed for another 2h, until ")
    assert below.startswith("  deploy/web  it is closed, with deploy/, for another 2h, until ")


@pytest.mark.fault("F-763")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("claim-all", "x", "y", "--units", "2"), "conflict"),
        (("claim-all", "x", "pool", "--units", "2"), "conflict"),
        (("claim-any", "x", "y", "--units", "2"), "conflict"),
        (("claim-any", "x", "pool", "--units", "2"), "held"),
        (("claim-any", "x", "pool", "--units", "2", "--count", "2"), "conflict"),
    ],
    ids=str,
)
def test_what_no_wait_would_bring_is_refused_as_a_claim_of_one_job_is(
    terminal: Terminal, words: tuple[str, ...], code: str
) -> None:
    terminal("pool", "set", "pool", "--slots", "2")
    terminal.claim("pool", "--units", "2")
    ran = terminal(*words, "--json")
    one = terminal("claim", "x" if code == "conflict" else "pool", "--units", "2", "--json")
    assert (ran.exit, ran.error["code"]) == (one.exit, one.error["code"]) == ({"conflict": 2, "held": 1}[code], code)
    assert ("retry_after_ms" in ran.error["details"]) is (code == "held")
    assert ran.error["details"]["status"] == code


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
    assert ran.out.startswith("Claimed b until the session ends")
    assert ran.out.rstrip().endswith("dibs release b")


@pytest.mark.promise("all-or-nothing")
def test_all_takes_every_one_or_none(terminal: Terminal) -> None:
    lease = terminal.claim("b", "--owner", "agent-7", "--ttl", "2m")
    ran = terminal("claim-all", "a", "b", "c")
    assert ran.exit == 1
    assert ran.out.splitlines() == [
        "Nothing was claimed, because not all of these jobs are available.",
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
        ((), b"x" * 2_000_000, "longer than"),
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


def test_any_says_which_names_it_skipped_and_why(terminal: Terminal) -> None:
    terminal.claim("a", "--owner", "agent-7", "--ttl", "2m")
    lease = terminal.claim("b", "--owner", "agent-8")
    terminal("release", "b", "--lease", lease, "--done=1h")
    ran = terminal("claim-any", "a", "b", "c", "--owner", "bob")
    assert ran.exit == 0
    assert ran.out.splitlines()[3:5] == [
        "  skipped        a: agent-7 has it for another 2m.",
        "  skipped        b: it was done by agent-8, just now. It counts as done for another 1h.",
    ]
    names = [f"n{number}" for number in range(9)]
    for name in names[:-1]:
        terminal.claim(name)
    many = terminal("claim-any", *names)
    assert many.out.count("  skipped") == 6
    assert "  skipped        3 more\n" in many.out
    terminal.claim("e", "--owner", "agent-7")
    skipped = terminal("claim-any", "a", "b", "e", "f", "--json").data["skipped"]
    assert [(each["name"], each["status"]) for each in skipped] == [
        ("a", "held"),
        ("b", "done"),
        ("e", "held"),
    ]
    assert skipped[0]["owner"] == "agent-7"
    assert "lease_id" not in str(skipped)


def test_any_exits_with_4_when_all_are_done_and_only_then(terminal: Terminal) -> None:
    for name in ("a", "b"):
        lease = terminal.claim(name, "--owner", "agent-8")
        terminal("release", name, "--lease", lease, "--done=1h")
    for command in ("claim-any", "claim-all"):
        ran = terminal(command, "a", "b")
        assert ran.exit == 4
        assert ran.out.splitlines()[0] == "All of these jobs are done."
        assert terminal(command, "a", "b", "--json").error["code"] == "done"
        terminal.claim(f"held-{command}")
        assert terminal(command, "a", f"held-{command}").exit == 1
    assert terminal("claim-all", "a", "free").exit == 1


@pytest.mark.fault("F-171")
def test_what_is_parked_is_said_of_several_as_of_one(terminal: Terminal) -> None:
    lease = terminal.claim("a", "--max-attempts", "1")
    terminal("release", "a", "--lease", lease, "--failed")
    one = terminal("claim", "a", "--json")
    for command in ("claim-any", "claim-all"):
        several = terminal(command, "a", "--json")
        assert (several.exit, several.error["code"]) == (one.exit, one.error["code"]) == (75, "parked")
        assert several.error["details"]["status"] == "parked"
        assert "retry_after_ms" not in several.error["details"]


def test_any_waits_for_the_first_that_is_let_go(terminal: Terminal) -> None:
    terminal.claim("a")
    lease = terminal.claim("b")
    waiter = Typing(terminal, "claim-any", "a", "b", "--wait", "60s", "--json")
    assert waiter.is_alive()
    terminal("release", "b", "--lease", lease)
    assert waiter.ran().data["name"] == "b"


def test_any_does_not_wait_for_what_is_done_or_for_nothing(terminal: Terminal) -> None:
    lease = terminal.claim("a")
    terminal("release", "a", "--lease", lease, "--done=1h")
    assert terminal("claim-any", "a", "--wait", "60s").exit == 4
    terminal.claim("b", "--owner", "agent-7")
    over = terminal("claim-any", "a", "b", "--wait", "1s")
    assert (over.exit, over.out.splitlines()[0]) == (1, "None of these jobs is available.")
    assert terminal("claim-any", "b", "-n", "-w", "5").exit == 64


def test_several_names_for_one_claim_are_answered_with_the_commands_that_take_them(terminal: Terminal) -> None:
    ran = terminal("claim", "a", "b")
    assert ran.exit == 64
    assert "dibs claim-all a b (all or none), or dibs claim-any a b (the first free one)" in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_what_a_claim_all_gave_is_kept_and_released_in_one_command(terminal: Terminal) -> None:
    got = terminal("claim-all", "a", "b", "--ttl", "1m")
    lease = got.out.split("--lease ")[1].split()[0]
    assert got.out.splitlines()[-1] == f"Send a heartbeat within 30s:  dibs heartbeat a b --lease {lease}"
    beat = terminal("heartbeat", "a", "b", "--lease", lease, "--json").data
    assert [(each["name"], each["ok"]) for each in beat["jobs"]] == [("a", True), ("b", True)]
    ran = terminal("release", "a", "b", "--lease", lease)
    assert (ran.exit, len(ran.out.splitlines())) == (0, 2)
    assert terminal("list", "-q").out == ""


def test_a_job_that_cannot_be_released_does_not_stop_the_others(terminal: Terminal) -> None:
    lease = terminal.claim("a")
    terminal.claim("b", "--owner", "agent-7")
    ran = terminal("release", "b", "a", "--lease", lease)
    assert ran.exit == 2
    assert ran.err.startswith("dibs: b: ")
    assert terminal("list", "-q").out == "b\n"
    error = terminal("release", "b", "a", "--lease", lease, "--json").error
    assert error["code"] == "lease_not_current"
    assert [(each["name"], each["ok"]) for each in error["details"]["jobs"]] == [("b", False), ("a", True)]
