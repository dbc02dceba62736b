"""The model in `models/one_job.qnt` holds its promises: Quint, a program of Node, tries lives of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.programs import ROOT, ending_with_us

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.e2e, pytest.mark.full]
LIVES = 60
LIMIT_S = 280


def test_given_and_random_lives_of_the_model_keep_the_promises(need_program: Callable[[str], str]) -> None:
    need_program("node")
    if not (ROOT / "build" / "quint" / "made-from").exists():
        lacks = pytest.fail if os.environ.get("DIBS_REQUIRE_ALL") == "1" else pytest.skip
        lacks("THE MODEL IS NOT CHECKED: there is no Quint. scripts/test without arguments installs it")
    done = subprocess.run(
        ending_with_us(sys.executable, str(ROOT / "scripts" / "dev" / "model"), str(LIVES)),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "late_give_back_must_fail_test passed" in done.stdout
    assert "late_copy_must_fail_test passed" in done.stdout
    assert "No violation found" in done.stdout
    assert "steps of the real rules are those of the model" in done.stdout
