"""The budget of instructions: what counts as grown, and, in the long run, whether any part has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.budget_report import compared, total

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
ABOUT = {"build": "python", "python": "3.11.7", "sqlite": "3.40.1", "architecture": "x86_64"}
BEFORE = {"acquire": {"parse": 100_000.0, "encode": 10_000.0, "store commit": 300_000.0}}
BASELINE = {**ABOUT, "instructions": BEFORE}


def test_what_is_inside_another_part_is_not_added_twice() -> None:
    assert total(BEFORE["acquire"]) == 400_000


@pytest.mark.parametrize(("parse", "grown"), [(90_000, False), (105_000, False), (106_100, True)])
def test_a_part_has_grown_if_it_is_above_the_margin(parse: int, grown: bool) -> None:
    counts = {"acquire": {**BEFORE["acquire"], "parse": float(parse)}}
    lines, found = compared(ABOUT, counts, BASELINE)
    assert found == grown
    assert any("GROWN" in line for line in lines) == grown


def test_a_part_that_the_baseline_does_not_have_is_named() -> None:
    counts = {"acquire": {**BEFORE["acquire"], "sign": 50_000.0}}
    lines, found = compared(ABOUT, counts, BASELINE)
    assert found
    assert any("sign" in line and "new" in line for line in lines)


def test_another_sqlite_than_the_baselines_is_named() -> None:
    lines, found = compared({**ABOUT, "sqlite": "3.50.0"}, BEFORE, BASELINE)
    assert not found
    assert lines[0] == "sqlite: 3.50.0, the baseline's is 3.40.1"


@pytest.mark.slow
def test_no_part_of_a_request_takes_more_instructions_than_recorded(
    need_program: Callable[[str], str],
) -> None:
    need_program("valgrind")
    done = subprocess.run(
        [sys.executable, "bench/budget.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode == 2:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
