"""`dibs once`: words and exit codes. Which step is done, failed or in doubt is decided in core (`test_effects.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.wire.codes import IN_DOUBT, NOT_YOURS, USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Ran, Terminal

pytestmark = pytest.mark.promise("effect:once", "effect:doubt-told")


def once(terminal: Terminal, *command: str, actor: str = "one", flags: tuple[str, ...] = ()) -> Ran:
    return terminal("once", "release-7", "tag", "--actor", actor, *flags, "--", *command)


@pytest.fixture
def owned(terminal: Terminal) -> Terminal:
    assert terminal("claim", "release-7", "--actor", "one").exit == 0
    return terminal


def in_doubt(terminal: Terminal) -> Terminal:
    """The owner was killed in the middle; another has the job."""
    once(terminal, "sh", "-c", "kill -9 $$")
    terminal("break", "release-7", "--reason", "it is gone")
    assert terminal("claim", "release-7", "--actor", "two").exit == 0
    return terminal


def test_a_step_runs_once_and_its_output_is_given_again(owned: Terminal, tmp_path: Path) -> None:
    count = ("sh", "-c", f"echo x >> {tmp_path}/ran; echo tagged v7")
    first = once(owned, *count)
    assert (first.exit, first.out, first.err) == (0, "tagged v7\n", "")
    again = once(owned, *count)
    assert (again.exit, again.out) == (0, "tagged v7\n")
    assert again.err == "dibs: tag was done just now by one: tagged v7. Not run again.\n"
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_step_that_fails_ends_with_the_code_of_its_command_and_may_be_tried_again(owned: Terminal) -> None:
    failed = once(owned, "sh", "-c", "exit 3")
    assert (failed.exit, failed.out) == (3, "")
    assert failed.err == "dibs: The step tag ended with 3: tag failed just now for one: exit 3.\n"
    assert once(owned, "true").exit == 0


def test_a_step_in_doubt_is_not_run(owned: Terminal, tmp_path: Path) -> None:
    told = once(in_doubt(owned), "touch", f"{tmp_path}/ran", actor="two")
    assert (told.exit, told.out) == (IN_DOUBT, "")
    assert told.err == (
        "dibs: in doubt: tag, begun just now by one (token 1): exit 137. Nothing was run.\n"
        "Look whether it happened. Then --again runs it; --probe COMMAND decides (exit 0: it happened).\n"
    )
    assert not (tmp_path / "ran").exists()
    assert once(owned, "true", actor="two").exit == IN_DOUBT  # and it stays so


def test_the_next_owner_sees_the_steps_with_its_claim_and_in_the_history(owned: Terminal) -> None:
    once(owned, "echo", "v7")
    terminal = owned
    terminal("release", "release-7", "--actor", "one", "--failed")
    assert "  step           tag was done just now by one: v7\n" in terminal("claim", "release-7", "--actor", "two").out
    assert "  step           tag was done just now by one: v7\n" in terminal("owner", "release-7").out
    history = terminal("history", "release-7").out
    assert "one began the step tag\n" in history
    assert "one did the step tag: result v7\n" in history


@pytest.mark.parametrize(
    ("probe", "exit_code", "ran", "result"),
    [
        ("echo found; true", 0, False, "found"),
        ("false", 0, True, "sent"),
        ("exit 7", IN_DOUBT, False, None),
    ],
)
def test_a_probe_decides_what_is_in_doubt(
    owned: Terminal, tmp_path: Path, probe: str, exit_code: int, ran: bool, result: str | None
) -> None:
    work = ("sh", "-c", f"touch {tmp_path}/ran; echo sent")
    told = once(in_doubt(owned), *work, actor="two", flags=("--probe", probe))
    assert told.exit == exit_code
    assert (tmp_path / "ran").exists() is ran
    (step,) = owned("owner", "release-7", "--json").data["effects"]
    assert step.get("result") == result


def test_again_runs_what_is_in_doubt(owned: Terminal) -> None:
    assert once(in_doubt(owned), "echo", "v7", actor="two", flags=("--again",)).out == "v7\n"


def test_with_json_the_output_of_the_command_is_beside_the_document(owned: Terminal) -> None:
    ran = once(owned, "echo", "v7", flags=("--json",))
    assert ran.err == "v7\n"
    ran.err = ""
    assert ran.data["ran"] is True
    assert ran.data["effect"]["result"] == "v7"


def test_what_is_not_the_callers_is_not_run(owned: Terminal, tmp_path: Path) -> None:
    assert owned("claim", "other", "--actor", "stranger").exit == 0
    assert once(owned, "touch", f"{tmp_path}/ran", actor="stranger").exit == NOT_YOURS
    assert not (tmp_path / "ran").exists()


def test_a_command_that_is_not_there_is_told(owned: Terminal) -> None:
    assert once(owned, "/no/such").exit == 127
    assert owned("once", "release-7", "tag", "--actor", "one").exit == USAGE
