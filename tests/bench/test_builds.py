"""The builds that a benchmark compares, and where its paths are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, {bench!r})
from builds import Build
from performance import parser
build = Build.parse("near=env/bin/python:src")
given = parser().parse_args(["cold", "--folder", "data", "--into", "figures.json", "--kept", "kept"])
print(build.python, build.script, build.source, given.folder, given.into, given.kept, sep="\\n")
"""


@pytest.mark.fault("F-496")
def test_relative_paths_are_those_of_the_folder_from_which_it_is_started(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT.format(bench=str(ROOT / "bench"))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    wanted = ("env/bin/python", "env/bin/dibs", "src", "data", "figures.json", "kept")
    assert done.stdout.split() == [str(tmp_path / each) for each in wanted]


SLOW = """
import sys
sys.path.insert(0, {bench!r})
from builds import Build
from procs import BenchError
try:
    Build().run(["-c", "import time; time.sleep(60)"], 0.1)
except BenchError as error:
    print(error)
"""


@pytest.mark.fault("F-596")
def test_a_program_that_does_not_end_fails_its_part_and_not_the_run() -> None:
    words = [sys.executable, "-c", SLOW.format(bench=str(ROOT / "bench"))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "dibs: -c did not end within 0 s\n", done.stderr
