"""The example of a release: its owner is killed before and after every step, and no step is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT, WAIT_S_MAX, slowness

pytestmark = [pytest.mark.full, pytest.mark.promise("effect:once", "effect:doubt-told")]

STEPS = ("build", "tag", "publish", "announce", "close-milestone")
# Ends itself as the kernel would: nothing of it can note anything any more.
DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from release_in_five_steps import release

def between(step, moment):
    if [step, moment] == sys.argv[4:6]:
        os.kill(os.getpid(), signal.SIGKILL)

release("v7", Path(sys.argv[2]), ttl=int(sys.argv[3]), between=between)
"""


def test_a_release_that_is_killed_at_every_step_does_none_twice(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    env = {**os.environ, "DIBS_URL": f"sqlite://{tmp_path}/dibs.db", "HOME": str(tmp_path)}

    def owner(*killed_at: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", DRIVER, str(ROOT / "examples"), str(outside), str(2 * slowness()), *killed_at]
        env["DIBS_OWNER"] = "-".join(["killed", *killed_at]) if killed_at else "last"
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=2 * WAIT_S_MAX, check=False)

    for step in STEPS:
        for moment in ("before", "after"):
            assert owner(step, moment).returncode == -signal.SIGKILL
    last = owner()
    assert last.returncode == 0, last.stderr
    # What was in doubt was looked up: the last owner found what the one before it did.
    assert last.stdout.splitlines()[-1] == "close-milestone: found"
    assert [(outside / step).read_text() for step in STEPS] == [f"v7 by step {step}\n" for step in STEPS]
