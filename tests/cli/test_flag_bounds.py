"""A flag takes the bounds of the field that it gives: the least and the most are taken, one beyond them is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.cli.framework import flags
from dibs.cli.framework.registry import load, shipped_names
from dibs.wire.fields import NUMBERS

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

NUMBERED = {
    option.flag: option.field.partition(".")[2]
    for option in (*flags.CLAIM_TERMS, flags.RETRY_AFTER, flags.DONE)
    if option.value in ("N", "TIME") and option.field.partition(".")[2] in NUMBERS
}
OF_TOKENS = {
    "--max-held": "max_held",
    "--max-waiting": "max_waiting",
    "--max-sessions": "max_sessions",
    "--rate": "rate_per_second",
    "--max-hold": "max_hold_seconds",
}


@pytest.mark.fault("F-498")
@pytest.mark.parametrize("flag", ["--slots", "--units", "--max-attempts", "--lock-delay", "--max-hold"])
def test_a_claim_takes_what_its_field_takes(terminal: Terminal, flag: str) -> None:
    least, most = NUMBERS[NUMBERED[flag]]
    with_slots = ("--slots", str(most)) if flag == "--units" else ()
    assert terminal("claim", "least", flag, str(least), *with_slots).exit == 0
    assert terminal("claim", "most", flag, str(most), *with_slots).exit == 0
    for beyond in (str(most + 1), *([str(least - 1)] if least else ())):
        ran = terminal("claim", "beyond", flag, beyond, *with_slots)
        assert (ran.exit, flag in ran.err) == (64, True), ran.err


def test_no_limit_of_attempts_is_said_by_nought(terminal: Terminal) -> None:
    for number in range(3):
        lease = terminal.claim("job", "--max-attempts", "0")
        assert terminal("release", "job", "--lease", lease, "--failed").exit == 0, number
    assert terminal("claim", "job").exit == 0


@pytest.mark.fault("F-498")
@pytest.mark.parametrize("flag", OF_TOKENS)
def test_a_limit_of_a_token_takes_what_its_field_takes(terminal: Terminal, flag: str) -> None:
    least, most = NUMBERS[OF_TOKENS[flag]]
    unit = "/s" if flag == "--rate" else ""
    for number in (least, most):
        assert terminal("token", "create", f"t-{number}", flag, f"{number}{unit}").exit == 0
    ran = terminal("token", "create", "beyond", flag, f"{most + 1}{unit}")
    assert (ran.exit, flag in ran.err) == (64, True), ran.err


def test_a_release_and_a_closure_take_what_their_fields_take(terminal: Terminal) -> None:
    least, most = NUMBERS["retry_after_seconds"]
    for number, code in ((least, 0), (most, 0), (most + 1, 64)):
        lease = terminal.claim(f"job-{number}")
        words = ("release", f"job-{number}", "--lease", lease, "--failed", "--retry-after", str(number))
        assert terminal(*words).exit == code
    least, most = NUMBERS["for_seconds"]
    for number, code in ((least, 0), (most, 0), (most + 1, 64), (least - 1, 64)):
        ran = terminal("close", "closed", "--for", str(number), "--reason", "x")
        assert ran.exit == code, ran.err
        assert code == 0 or "from 1s to 30d" in ran.err


def test_every_flag_that_names_a_field_names_one_that_there_is() -> None:
    from dibs.wire.request_fields import REQUESTS

    for name in shipped_names():
        for option in load(name).options:
            verb, _, field = option.field.partition(".")
            assert not option.field or field in REQUESTS[verb], (name, option.flag)
