"""Exclusive use of a resource for tests: the plugin in test runs of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import dibs
from tests.programs import clean_env, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]
RUN_S_MAX = 60.0  # a run with workers starts several processes that import pytest

# Each test notes when it has the resource, and fails if another one has it at that moment.
SUITE = """
import os, pathlib, time
import pytest

FOLDER = pathlib.Path(os.environ["FOLDER"])

@pytest.mark.parametrize("number", range(6))
def test_it(one_owner, number):
    one_owner("database")
    mark = FOLDER / "in-use"
    mark.touch(exist_ok=False)
    time.sleep(0.02)
    mark.unlink()
    with open(FOLDER / "log", "a") as log:
        log.write(f"{number} {os.environ.get('PYTEST_XDIST_WORKER')}\\n")
"""
HANGING = """
import os, pathlib, time

def test_it():
    (pathlib.Path(os.environ["FOLDER"]) / "begun").touch()
    while not (pathlib.Path(os.environ["FOLDER"]) / "go").exists():
        time.sleep(0.02)

def test_another():
    pass
"""


class Suites:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder}/jobs.db"
        env = clean_env(folder, DIBS_URL=self.url, FOLDER=str(folder))
        # The run around may be one of xdist's workers itself.
        self.env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
        self.env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plugins take most of the time that a run needs

    @contextmanager
    def start(self, text: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        file = self.folder / "test_suite.py"
        file.write_text(text)
        own = [
            "-p",
            "xdist.plugin",
            "-p",
            "dibs.contrib.pytest",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--rootdir",
            str(self.folder),
        ]
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", *own, *words, str(file)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, text: str, *words: str) -> tuple[int, str]:
        with self.start(text, *words) as process:
            out, _ = process.communicate(timeout=RUN_S_MAX)
        return process.returncode, out


@pytest.fixture
def suites(tmp_path: Path) -> Suites:
    return Suites(tmp_path)


def test_tests_of_several_workers_and_of_two_runs_use_the_resource_one_at_a_time(suites: Suites) -> None:
    with suites.start(SUITE, "-n2") as one, suites.start(SUITE) as two:
        said = [process.communicate(timeout=RUN_S_MAX)[0] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), said
    lines = (suites.folder / "log").read_text().splitlines()
    assert len(lines) == 12
    assert {line.split()[1] for line in lines} == {"gw0", "gw1", "None"}


def test_a_run_with_a_claim_keeps_another_run_out_until_it_is_killed(suites: Suites) -> None:
    claim = ("--dibs-claim", "database", "--dibs-claim", "queue")
    with suites.start(HANGING, *claim) as one:
        wait_until((suites.folder / "begun").exists, "the first run has begun")
        code, out = suites.run(HANGING, *claim, "--dibs-wait", "0s")
        assert code == 4
        assert "database (held by" in out
        os.kill(one.pid, signal.SIGKILL)
    with dibs.connect(suites.url) as client:
        assert client.owner("queue").fencing_token == 1
        for name in ("database", "queue"):
            client.break_claim(name, "the test does not wait for the TTL")
    (suites.folder / "go").touch()
    code, out = suites.run(HANGING, *claim, "-n2")  # the workers do not claim
    assert code == 0, out


def test_a_run_that_loses_its_claim_stops_and_fails(suites: Suites) -> None:
    with suites.start(HANGING, "--dibs-claim", "database") as run:
        wait_until((suites.folder / "begun").exists, "the run has begun")
        with dibs.connect(suites.url) as client:
            client.break_claim("database", "a test")
        (suites.folder / "go").touch()
        out, _ = run.communicate(timeout=RUN_S_MAX)
    assert run.returncode == 1, out
    assert "database is not ours any more" in out
