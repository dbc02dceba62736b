"""`dibs once`: words and exit codes. Which step is done, failed or in doubt is decided in core (`test_effects.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.client.embedded import EmbeddedTransport
from dibs.wire.codes import IN_DOUBT, INTERNAL, NOT_YOURS, USAGE
from dibs.wire.documents import Reply, reply_for_error

if TYPE_CHECKING:
    from pathlib import Path

    from dibs.cli.framework.context import Call
    from dibs.client.transport import Ask
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
        "Look whether it happened; if not, --again runs it. --probe COMMAND looks for you (exit 0: it happened).\n"
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


@pytest.mark.fault("F-632")
def test_that_a_step_in_doubt_was_not_run_now_is_not_what_is_said_of_it_later(owned: Terminal) -> None:
    terminal = in_doubt(owned)
    for _ in range(2):
        assert ": exit 137. Nothing was run." in once(terminal, "true", actor="two").err


@pytest.fixture
def killed(owned: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """`dibs once` was killed while its command ran; the lease lives on."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dibs.cli.commands.once._run", dies)
        with pytest.raises(KeyboardInterrupt):
            once(owned, "true")
    return owned


@pytest.mark.fault("F-634")
def test_a_try_that_was_killed_is_told_from_one_that_runs_by_who_asks(killed: Terminal) -> None:
    refused = once(killed, "true", flags=("--probe", "true"))
    assert refused.exit == NOT_YOURS
    assert refused.err == (
        "dibs: tag was begun just now by one and is not ended. One try at a time.\n"
        "If it was killed: --again runs it all the same. Or release the job as failed and claim it again; then --probe "
        "can look.\n"
    )
    assert once(killed, "echo", "v7", flags=("--again",)).out == "v7\n"
    assert once(killed, "echo", "v8").out == "v7\n"


@pytest.mark.fault("F-634")
def test_a_note_that_nobody_answers_is_sent_again(owned: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, lost = EmbeddedTransport.ask, [2]

    def asked(transport: EmbeddedTransport, step: Ask) -> Reply:
        reply = ask(transport, step)
        if step.verb == "renew" and lost[0]:
            lost[0] -= 1
            return reply_for_error(StoreUnavailable("Nobody answers."))
        return reply

    monkeypatch.setattr("dibs.cli.commands.once.sleep", lambda seconds: None)
    monkeypatch.setattr(EmbeddedTransport, "ask", asked)
    assert once(owned, "echo", "v7").out == "v7\n"
    lost[0] = 3
    away = once(owned, "echo", "v8")
    assert away.exit not in (0, IN_DOUBT)


@pytest.mark.fault("F-638")
@pytest.mark.parametrize(
    ("error", "exit_code"), [(BrokenPipeError, 0), (OSError(28, "No space left on device"), INTERNAL)]
)
def test_a_step_whose_output_nobody_takes_runs_to_its_end(
    owned: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    def fails(call: Call, part: bytes) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("dibs.cli.framework.context.Call.pass_on", fails)
        ran = once(owned, "sh", "-c", f"echo one; echo two; touch {tmp_path}/ran")
    assert ran.exit == exit_code
    assert (tmp_path / "ran").exists()
    assert once(owned, "true").out == "one\ntwo\n"


@pytest.mark.fault("F-640")
def test_the_steps_of_a_job_are_shown_while_it_is_done_or_shared_and_long_ones_are_cut(owned: Terminal) -> None:
    once(owned, "echo", "v" * 300)
    line = f"  step           tag was done just now by one: {'v' * 120}…\n"
    assert owned("heartbeat", "release-7", "--actor", "one", "--shared").exit == 0
    assert owned("claim", "release-7", "--actor", "two", "--shared").exit == 0
    assert line in owned("owner", "release-7").out
    assert owned("release", "release-7", "--actor", "one", "--done").exit == 0
    assert owned("release", "release-7", "--actor", "two", "--done").exit == 0
    assert "  step           tag was done " in owned("owner", "release-7").out
