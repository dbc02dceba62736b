"""The optional build writes the methods of records into their classes (native/expand.py). What was written says the
same, byte for byte, as what `base/record.py` makes when the program runs."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build import COMPILED
from tests.core.record_samples import modules

pytestmark = pytest.mark.full  # it is of the compiled build

ROOT = Path(__file__).parents[2]
WRITE = """
import sys
from pathlib import Path
from expand import expand_tree
expand_tree(Path(sys.argv[1]), set())
"""
# Only mypyc knows this decorator; the rest of the file is plain Python.
DECORATOR = "@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)\n"


def said_by(*paths: Path, words: tuple[str, ...] = ()) -> list[str]:
    """What the records say, with these folders first on the path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])), "PYTHONHASHSEED": "0"}
    argv = [sys.executable, "-m", "tests.core.record_samples", *words]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def source() -> list[str]:
    return said_by(ROOT / "src")


@pytest.mark.fault("F-672")
@pytest.mark.skipif(COMPILED, reason="the compiled build is compared below")
def test_records_that_were_written_out_say_what_they_said_before(tmp_path: Path, source: list[str]) -> None:
    package = tmp_path / "dibs"
    shutil.copytree(ROOT / "src/dibs", package, ignore=shutil.ignore_patterns("__pycache__"))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'native'}"}
    # A build has none of the packages that dibs is used with.
    subprocess.run([sys.executable, "-S", "-c", WRITE, "dibs"], env=env, cwd=tmp_path, timeout=60, check=True)
    base = package / "base/record.py"
    written = base.read_text()
    assert DECORATOR in written
    base.write_text(written.replace(DECORATOR, ""))
    assert "def replace(self, *, lease_id: Any = KEEP" in (package / "core/records.py").read_text()
    assert said_by(tmp_path) == source


@pytest.mark.skipif(not COMPILED, reason="this is not the compiled build")
def test_compiled_records_say_what_the_source_says(source: list[str]) -> None:
    assert said_by() == source


@pytest.mark.skipif(not COMPILED, reason="written out, but not compiled, they take any value")
def test_compiled_records_refuse_the_values_that_the_source_refuses() -> None:
    """Modules that are not compiled have written-out records as well."""
    compiled = tuple(
        [f"{name}." for name in modules() if not (importlib.import_module(name).__file__ or "").endswith(".py")]
    )
    assert "dibs.core.records." in compiled
    ours, theirs = said_by(words=("loads",)), said_by(ROOT / "src", words=("loads",))
    assert [line for line in ours if line.startswith(compiled)] == [
        each for each in theirs if each.startswith(compiled)
    ]
