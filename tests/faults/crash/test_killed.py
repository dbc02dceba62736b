"""A process is killed at every call that it makes to the system, or the call fails, on every store, in every operation.

Nothing that was acknowledged is lost, no fencing token is given twice, records agree, and the next claim works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.build import SOAK
from tests.faults.crash import shim
from tests.faults.crash.operations import EVERYWHERE, OF_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.etcd import Cluster

ROOT = Path(__file__).parents[3]
RUN_S_MAX = 3_000
ALL = [each.__name__ for each in EVERYWHERE]
COMMANDS = [name for name in ALL if name != "Move"]
FILES = [each.__name__ for each in OF_FILES]
# What every run does; scripts/dev/crash does all.
QUICK = ["Claim", "NewStore", "HandOver", "SessionEnd", "Migration"]

pytestmark = [
    pytest.mark.promise("durable"),
    pytest.mark.promise("token:rises"),
    pytest.mark.linux("a library that is loaded before libc"),
]


class Runs:
    """Starts `steps.py`, which goes through the steps of operations."""

    def __init__(self, folder: Path, cc: str) -> None:
        self._folder = folder
        self._library = shim.build(cc, folder)

    def __call__(self, kind: str, where: str, fault: str, *names: str) -> list[dict[str, Any]]:
        state, temporary = self._folder / "state", self._folder / "tmp"
        for each in (state, temporary):
            each.mkdir(exist_ok=True)
        own = {"TMPDIR": str(temporary), "XDG_STATE_HOME": str(state), "GIT_CONFIG_GLOBAL": os.devnull}
        ran = subprocess.run(
            [sys.executable, "-m", "tests.faults.crash.steps", kind, where, fault, *names],
            cwd=ROOT,
            env={**os.environ, **own, **shim.environment(self._library, self._folder)},
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4_000:]
        found = [json.loads(line) for line in ran.stdout.splitlines()]
        for each in found:
            print(json.dumps(each))  # scripts/dev/crash shows it
            assert each["steps"] >= 3, "the steps were not all tried"
            if fault == "kill":
                assert each["killed"] == each["steps"]
                assert each["had_happened"] < each["steps"]
        assert [each["operation"] for each in found] == list(names)
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Runs:
    return Runs(tmp_path_factory.mktemp("crash"), need_program("cc"))


def test_whoever_is_killed_at_any_call_leaves_all_or_nothing_on_sqlite(runs: Runs, tmp_path: Path) -> None:
    for each in runs("sqlite", str(tmp_path), "kill", *(ALL + FILES if SOAK else QUICK)):
        # Killed before the last sync: the bytes are with the system, which goes on.
        assert each["had_happened"] >= 1


@pytest.mark.promise("damage:told")
@pytest.mark.parametrize("fault", [pytest.param("EIO", marks=pytest.mark.slow), "EIO+", "ENOSPC+"])
def test_a_call_that_fails_is_reported_and_the_same_process_goes_on(runs: Runs, tmp_path: Path, fault: str) -> None:
    found = runs("sqlite", str(tmp_path), fault, *(COMMANDS if SOAK else ["HandOver"]))
    for each in found:
        if each["operation"] == "NewStore":
            continue  # what is made before the first commit is refused
        if fault == "EIO":  # once: it is tried again
            assert each["done"] == each["steps"]
        elif fault == "EIO+":  # it may have been written
            assert each["unknown"] == each["steps"]
        else:
            assert each["refused"] == each["steps"]


@pytest.mark.e2e
@pytest.mark.parametrize("names", [["HandOver"], pytest.param(ALL, marks=pytest.mark.slow)])
def test_the_same_on_postgresql(runs: Runs, postgres_url: str, names: list[str]) -> None:
    runs("postgresql", postgres_url, "kill", *names)


@pytest.mark.e2e
@pytest.mark.parametrize("names", [["HandOver"], pytest.param(ALL, marks=pytest.mark.slow)])
def test_the_same_on_etcd(runs: Runs, etcd_cluster: Cluster, names: list[str]) -> None:
    runs("etcd", etcd_cluster.url("t").rsplit("/", 1)[0], "kill", *names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Claim", "PathClaim", "GiveBack", "HandOver"])
def test_the_same_on_git(runs: Runs, tmp_path: Path, need_program: Callable[[str], str], name: str) -> None:
    need_program("git")
    for each in runs("git", str(tmp_path), "kill", name):
        # A git that is killed in the middle of a push leaves lock files at a remote on the same machine. They are in
        # the way until somebody removes them, as the message asks.
        assert each["locks_left"] < each["steps"]
