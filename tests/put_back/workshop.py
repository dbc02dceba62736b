"""A copy of the tree in which faults are put back, one at a time, and what finds each.

    tests        those that carry the fault's mark: at least one of them fails
    walks        random walks of the rules (`tests/core/test_swarm.py`)
    simulation   worlds of several servers, OPERATIONS of them in all

Each runs in a process of its own, which imports from the copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.meta.citations import all_citations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.put_back.fault import PutBack

ROOT = Path(__file__).resolve().parents[2]
TESTS, WALKS, SIMULATION = FINDERS = ("tests", "walks", "simulation")
OPERATIONS = 100_000
SECONDS_MAX = {TESTS: 900, WALKS: 600, SIMULATION: 900}
# Walks and worlds run the rules and the engine, and no more.
SIMULATED = ("src/dibs/core/", "src/dibs/engine/")
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "node_modules", ".pytest_cache", ".*_cache", ".hypothesis"
)
_LINKED = ("build", "clients/typescript/node_modules", ".git")
REPORT = "DIBS_PUT_BACK_REPORT"


class Workshop:
    """The copy is in `folder`, which must not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
        for path in _LINKED:
            if (ROOT / path).exists():
                (folder / path).symlink_to(ROOT / path)

    @contextmanager
    def with_fault(self, fault: PutBack) -> Iterator[None]:
        changed = {path: fault.text_of(self.tree, path) for path in fault.paths}
        kept = {path: (self.tree / path).read_text(encoding="utf-8") for path in changed}
        try:
            self._write(changed)
            yield
        finally:
            self._write(kept)

    def _write(self, texts: dict[str, str]) -> None:
        for path, text in texts.items():
            (self.tree / path).write_text(text, encoding="utf-8")

    def finders(self, fault: PutBack) -> list[str]:
        """What finds a fault, of all that might."""
        return [finder for finder in finders_of(fault) if self.is_found(fault, finder)]

    def is_found(self, fault: PutBack, finder: str) -> bool:
        with self.with_fault(fault):
            if finder == TESTS:
                return bool(self.failed(fault.id))
            words = ["tests.put_back.search", finder]
            if finder == SIMULATION:
                words += [fault.id, str(OPERATIONS), json.dumps(fault.worlds)]
            ended = self._run(["-m", *words], SECONDS_MAX[finder])
        assert ended.returncode in (0, FOUND), f"{fault.id}, {finder}: {ended.stdout[-2_000:]}{ended.stderr[-4_000:]}"
        return ended.returncode == FOUND

    def failed(self, id: str) -> list[str]:
        """The tests with this fault's mark that fail in the tree as it is."""
        files = files_of()[id]
        report = self.tree.parent / f"{self.tree.name}.json"
        report.unlink(missing_ok=True)
        options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "tests.put_back.only", "--timeout", "120"]
        ended = self._run(
            ["-m", "pytest", *options, *_paths(files)],
            SECONDS_MAX[TESTS],
            DIBS_PUT_BACK=id,
            **{REPORT: str(report)},
        )
        assert report.exists(), f"{id}: pytest ended with {ended.returncode}: {ended.stdout[-4_000:]}{ended.stderr}"
        found = json.loads(report.read_text(encoding="utf-8"))
        assert any(found.values()), f"{id}: no test ran: {ended.stdout[-4_000:]}"
        return list(found["failed"])

    def _run(self, words: Sequence[str], seconds: int, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **more, "PYTHONPATH": f"{self.tree / 'src'}{os.pathsep}{self.tree}"}
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.tree,
            env=env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


FOUND = 3  # the exit code of a search that found something


def finders_of(fault: PutBack) -> Sequence[str]:
    """What might find it."""
    return FINDERS if any(path.startswith(SIMULATED) for path in fault.paths) else FINDERS[:1]


@cache
def files_of() -> dict[str, list[str]]:
    """The files whose tests carry the mark of a fault."""
    found: dict[str, set[str]] = {}
    for each in all_citations("fault"):
        found.setdefault(each.id, set()).add(each.file)
    return {id: sorted(files) for id, files in found.items()}


def _paths(files: Sequence[str]) -> list[str]:
    """The contract suite is run by the tests of the stores."""
    return sorted({file if file.startswith("tests/") else "tests/contract" for file in files})
