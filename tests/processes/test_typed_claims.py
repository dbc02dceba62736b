"""Claim, heartbeat and release as somebody types them at a terminal, without a name or a lease id."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.programs import WAIT_S_MAX, clean_env

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.e2e


def typed(folder: Path, *lines: str) -> str:
    """What a terminal shows when these lines are typed into its shell."""
    program = folder / "bin" / "dibs"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dibs "$@"\n')
    program.chmod(0o755)
    env = clean_env(folder, PATH=f"{program.parent}:{os.environ['PATH']}", TERM="dumb", PS1="", NO_COLOR="1")
    screen, keyboard = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"],
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
        env=env,
        cwd=folder,
        start_new_session=True,
    )
    os.close(keyboard)
    said, until_s = b"", time.monotonic() + WAIT_S_MAX
    try:
        os.write(screen, "\n".join(["stty -echo", *lines, "exit", ""]).encode())
        while time.monotonic() < until_s:
            if not select.select([screen], [], [], 0.2)[0]:
                continue
            try:
                part = os.read(screen, 65536)
            except OSError:  # the last of its readers has gone
                break
            said += part
    finally:
        shell.kill()
        shell.wait()
        os.close(screen)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.linux("a shell is known by its processes, and a terminal is made")
def test_a_claim_that_was_typed_is_let_go_by_its_name(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    need_program("bash")
    said = typed(
        tmp_path,
        "dibs claim j",
        "dibs heartbeat j",
        "dibs claim j; echo second $?",
        "dibs release j; echo let go $?",
    )
    assert "Claimed j for 15m, as" in said  # by hand, a minute is too short
    assert "When it is done:  dibs release j\n" in said
    assert "Still yours: j" in said
    assert "second 1\n" in said  # it is held: two workers may share a terminal
    assert "Released j." in said
    assert "let go 0\n" in said


@pytest.mark.fault("F-750")
@pytest.mark.linux("a shell is known by its processes, and a terminal is made")
def test_several_claims_that_were_typed_are_renewed_and_let_go_together(
    tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("bash")
    said = typed(
        tmp_path,
        "dibs claim a; dibs claim b",
        "dibs heartbeat a b",
        "dibs release a b elsewhere; echo refused $?",
        "dibs owner -q a",
        "dibs release a b; echo let go $?",
    )
    assert "Still yours: a" in said
    assert "Still yours: b" in said
    assert "elsewhere was not claimed in this terminal, so nothing was changed." in said
    assert "refused 64\n" in said
    assert said.count("Released a.") == 1
    assert "Released b." in said
    assert "let go 0\n" in said


@pytest.mark.linux("a shell is known by its processes, and a terminal is made")
def test_another_terminal_and_a_script_must_prove_it(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    need_program("bash")
    assert "Claimed j" in typed(tmp_path, "dibs claim j --ttl 10m")
    assert "must know that the claim is yours" in typed(tmp_path, "dibs release j")
    assert "must know that the claim is yours" in typed(tmp_path, "dibs claim k; dibs release k < /dev/null")


@pytest.mark.fault("F-760")
@pytest.mark.linux("a shell is known by its processes, and a terminal is made")
def test_who_runs_a_new_shell_for_each_command_is_given_the_lease_id(
    tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    """An agent with a terminal does so, and a script; neither could release by the name alone."""
    need_program("bash")
    said = typed(tmp_path, "bash -c 'dibs claim j; true'", "bash -c 'dibs release j; true'")
    lease = re.search(r"lease +([0-9a-f-]{36})", said)
    assert lease is not None
    assert "Claimed j for 1m, as" in said
    assert f":  dibs heartbeat j --lease {lease[1]}\n" in said
    assert "must know that the claim is yours" in said
    assert "Released k." in typed(tmp_path, "(dibs claim k)", "dibs release k")  # a subshell is part of the shell
