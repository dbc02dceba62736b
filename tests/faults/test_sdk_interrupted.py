"""Ctrl-C and alarms are normal: an SDK process that is interrupted anywhere goes on, ends, and keeps nothing."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.standing import left_behind
from tests.programs import ServerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
INTERRUPTS = 400
END_S_MAX = 90
KEPT_S_MAX = 70  # a session that was opened at that moment ends with its TTL, which is a minute


@pytest.fixture(params=["sqlite", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    url = f"sqlite://{tmp_path}/jobs.db"
    if request.param == "sqlite":
        yield url, "", url
    else:
        with ServerProcess(tmp_path, store=url) as server:
            yield server.url, server.token, url


@pytest.mark.timeout(200)
def test_a_program_that_is_interrupted_anywhere_ends_and_keeps_no_job(place: tuple[str, str, str]) -> None:
    url, token, store_url = place
    seed = str(random.SystemRandom().randrange(10**9))
    print(f"seed {seed}")  # pytest shows it when the test fails
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.interrupted"]
    done = subprocess.run(
        [*words, url, token, seed, str(INTERRUPTS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=END_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    came, had = (int(word) for word in done.stdout.split())
    assert came == INTERRUPTS
    assert had > 0, "it also got to work"
    wait_until(
        lambda: not [each for each in left_behind(store_url) if "session" not in each],
        "no job is held and nobody waits",
        KEPT_S_MAX,
    )
