"""What is mistyped is told, with what was probably meant; with --json as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs._version import __version__
from dibs.cli.parse import UsageError, parse, split_command
from dibs.cli.table import NAMES, SUMMARIES, load
from dibs.wire import codes

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("clam", "x"), "Did you mean claim?"),
        (("frobnicate",), "`dibs --help` lists them"),
        (("claim", "x", "--tll", "5"), "Did you mean --ttl?"),
        (("claim",), "claim needs JOB"),
        (("claim", "a", "b"), "b is one word too many"),
        (("claim", "a", "--ttl"), "--ttl needs a value"),
        (("claim", "a", "--owner", "--again"), "--owner=--again"),
        (("claim", "a", "--again=yes"), "--again takes no value"),
        (("--jsn", "claim", "a"), "Did you mean --json?"),
        (("--ttl", "5", "claim", "a"), "Flags of a command come after it"),
        (("token",), "token needs one of: new"),
        (("token", "nwe", "x"), "token needs one of: new"),
        (("token", "new", "x", "--role", "king"), "--role is one of agent, operator, admin"),
        (("completion", "tcsh"), "SHELL is one of bash, zsh, fish"),
        (("gc", "x"), "takes no arguments"),
        ((), "Which command?"),
    ],
)
def test_a_mistake_is_told_with_what_helps(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    ran = terminal(*words)
    assert ran.exit == codes.USAGE
    assert ran.out == ""
    assert ran.err.startswith("dibs: ")
    assert says in ran.err
    assert terminal("--json", *words).error["code"] == "invalid_input"


def test_flags_stand_before_or_after_the_command_and_with_an_equals_sign(terminal: Terminal) -> None:
    before = terminal("--json", "--namespace", "n", "claim", "a").data
    after = terminal("claim", "b", "--namespace=n", "--json").data
    assert before.keys() == after.keys()
    assert terminal("list", "-q", "--namespace", "n").out == "a\nb\n"


def test_the_last_of_two_equal_flags_counts(terminal: Terminal) -> None:
    assert terminal("claim", "a", "--ttl", "5", "--ttl", "9", "--json").data["remaining_ms"] == 9000


def test_words_after_two_dashes_are_arguments(terminal: Terminal) -> None:
    assert terminal("claim", "--json", "--", "--json").data["name"] == "--json"


def test_a_value_may_look_like_a_number_with_a_sign() -> None:
    assert parse(load("claim"), ["a", "--ttl", "-5"])["ttl"] == "-5"


def test_a_lone_dash_is_an_argument() -> None:
    assert parse(load("claim"), ["-"])["job"] == "-"


def test_the_command_is_found_behind_global_flags() -> None:
    assert split_command(["--url", "claim", "list", "-q"], NAMES) == ("list", ["--url", "claim", "-q"])
    assert split_command(["-q"], NAMES) == (None, ["-q"])
    assert split_command(["--", "list"], NAMES) == ("list", [])
    with pytest.raises(UsageError):
        split_command(["nope"], NAMES)


def test_version_and_help_work_everywhere(terminal: Terminal) -> None:
    assert terminal("--version").out == f"dibs {__version__}\n"
    assert terminal("--version", "--json").data == {"version": __version__}
    assert terminal("help", "claim").out == terminal("claim", "--help").out
    assert terminal("help").out == terminal("-h").out
    assert "Usage: dibs token new" in terminal("token", "--help").out
    assert "help" in terminal("list", "--help", "--json").data


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_examples_and_exit_codes(terminal: Terminal, name: str) -> None:
    command = load(name)
    assert command.name == name
    assert command.summary == SUMMARIES[name]
    assert command.examples
    assert all(f"dibs {name}" in line for _, line in command.examples[:1])
    assert command.exits[0][0] == 0
    out = terminal(*name.split(" "), "--help").out
    assert all(option.flag in out for option in command.options)
    assert max(map(len, out.splitlines()[1:])) <= 110


def test_a_fault_of_ours_is_one_line_and_70_and_a_traceback_only_when_asked_for(terminal: Terminal) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("two\nlines")

    terminal._open = fail  # type: ignore[method-assign, assignment]
    ran = terminal("list")
    assert ran.exit == codes.FAULT
    assert ran.err.count("\n") == 1
    assert "RuntimeError: two lines" in ran.err
    assert terminal("list", "--json").error["code"] == "internal_error"
    terminal.env["DIBS_DEBUG"] = "1"
    assert "Traceback" in terminal("list").err
