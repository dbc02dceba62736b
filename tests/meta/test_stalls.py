"""A measured standstill of the machine excuses a test that failed beside others. Nothing else does."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import time
from datetime import date
from typing import TYPE_CHECKING, Literal

import pytest

from tests import conftest, stalls
from tests.programs import ROOT, wait_until, wait_until_stopped

if TYPE_CHECKING:
    from pathlib import Path

RACE, OTHER = "tests/core/test_x.py::test_a", "tests/faults/test_y.py::test_b"
STOOD_STILL = runpy.run_path(str(ROOT / "scripts/dev/stood-still"))["main"]


def judged(folder: Path, failed: list[str], stalled_ms: dict[str, int]) -> int:
    (folder / "failed").write_text(json.dumps(dict.fromkeys(failed, True)))
    (folder / "stalls").write_text(json.dumps(stalled_ms))
    found: int = STOOD_STILL(str(folder / "failed"), str(folder / "stalls"))
    return found


@pytest.mark.parametrize(
    ("failed", "stalled_ms", "code", "said"),
    [
        ([RACE], {}, 1, "NOT EXCUSED"),
        ([RACE], {RACE: 499}, 1, "NOT EXCUSED"),
        ([RACE], {RACE: 500}, 0, "THE MACHINE STOOD STILL for 500 ms"),
        ([RACE], {OTHER: 9_000}, 1, "NOT EXCUSED"),
        ([OTHER, RACE], {OTHER: 9_000}, 1, "NOT EXCUSED"),
    ],
)
def test_only_a_standstill_during_the_test_itself_excuses_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failed: list[str],
    stalled_ms: dict[str, int],
    code: int,
    said: str,
) -> None:
    assert judged(tmp_path, failed, stalled_ms) == code
    assert said in capsys.readouterr().out


# In the place of pytest, it takes a letter of `plan`: p passes, f fails, s fails while the machine stands still, i is
# interrupted then.
PYTEST = f"""
import json, pathlib, sys
plan = pathlib.Path("plan")
way, left = plan.read_text()[0], plan.read_text()[1:]
plan.write_text(left)
cache = pathlib.Path(".pytest_cache/v")
(cache / "cache/lastfailed").write_text(json.dumps({{}} if way == "p" else {{"{RACE}": True}}))
(cache / "dibs/stalls").write_text(json.dumps({{"{RACE}": 2000}} if way in "si" else {{}}))
sys.exit({{"p": 0, "i": 2}}.get(way, 1))
"""


@pytest.mark.parametrize(
    ("plan", "code", "runs"),
    [
        pytest.param("sppp", 0, 3, marks=pytest.mark.full),
        pytest.param("sppf", 1, 3, marks=pytest.mark.full),
        ("fppp", 1, 3),  # alone it passes, and nothing excuses that it failed beside others
        pytest.param("spsppp", 0, 4, marks=pytest.mark.full),
        ("sspspp", 0, 5),
        pytest.param("ssssppp", 1, 3, marks=pytest.mark.full),
        ("ippp", 1, 0),  # some tests have never run
    ],
)
def test_what_fails_alone_is_run_again_only_while_the_machine_stands_still_and_twice_at_most(
    tmp_path: Path, plan: str, code: int, runs: int
) -> None:
    for name in ("cache", "dibs"):
        (tmp_path / ".pytest_cache/v" / name).mkdir(parents=True)
    (tmp_path / "pytest.py").write_text(PYTEST)
    (tmp_path / "plan").write_text(plan)
    # The first letter is the run beside others.
    line = f"source '{ROOT}/scripts/dev/lib.sh'; python -m pytest || test_alone $? >said"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env={**os.environ, "CI": "true"}, check=False, timeout=60)
    assert (done.returncode != 0) == (code != 0)
    assert len(plan) - 1 - len((tmp_path / "plan").read_text()) == runs


def test_a_standstill_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_notes", [])
    began_s = time.monotonic()
    with stalls.watched() as pid:
        notes = stalls._notes[0]
        wait_until(lambda: os.path.getsize(notes), "the watch is awake")
        assert not stalls.is_in_time(began_s, 0)
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
        stopped_s = time.monotonic()
        wait_until(lambda: time.monotonic() > stopped_s + 0.8, "time has passed")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: stalls.stood_still_ms(began_s) >= stalls.NOTED_MS, "it has noted its standstill")
        assert stalls.is_in_time(stopped_s, time.monotonic() - stopped_s)
    assert stalls.stood_still_ms(began_s) == 0


def test_only_what_was_after_a_moment_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("2000 900\n5000 700\n")
    monkeypatch.setattr(stalls, "_notes", [str(notes)])
    assert [stalls.stood_still_ms(since_s) for since_s in (1, 1.5, 2, 4.9, 5)] == [1_600, 1_200, 700, 100, 0]


def test_the_report_of_a_failure_says_how_long_the_machine_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, int] = {}
    monkeypatch.setattr(conftest, "_stalls", kept)
    monkeypatch.setattr(stalls, "stood_still_ms", lambda since_s: 1_234)
    outcome: Literal["passed", "failed"]
    for outcome in ("passed", "failed"):
        report = pytest.TestReport(RACE, ("", 0, ""), {}, outcome, None, "call")
        hook = conftest.pytest_runtest_makereport()
        next(hook)
        with pytest.raises(StopIteration):
            hook.send(report)
        conftest.pytest_runtest_logreport(report)
        assert ("stood still for 1234 ms" in str(report.sections)) == (outcome == "failed")
    assert kept == {RACE: 1_234}


def test_a_test_in_quarantine_may_fail_until_its_day_and_fails_afterwards() -> None:
    on_the_day = conftest.quarantined("a race", until="2026-11-30", today=date(2026, 11, 30))
    assert (on_the_day.name, on_the_day.kwargs["strict"]) == ("xfail", False)
    after = conftest.quarantined("a race", until="2026-11-30", today=date(2026, 12, 1))
    assert (after.name, after.args) == ("usefixtures", ("quarantine_is_over",))
