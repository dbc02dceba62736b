"""A measurement that a stalled disk spoiled is not published, and a run for the page is of one commit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.disk import TRIES_MAX, Disk, probe_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
HERE = Path()


def planted(probes: Iterable[float]) -> tuple[Disk, list[str]]:
    """A disk whose probes take so many milliseconds, one after another."""
    said: list[str] = []
    left = iter(probes)
    return Disk(HERE, said.append, lambda _: next(left)), said


@pytest.mark.fault("F-540")
def test_a_measurement_beside_a_stall_is_rejected_counted_and_made_again() -> None:
    disk, said = planted([0.1, 2.0, 0.1, 0.1])
    figures = iter([79, 743, 2_208])
    assert disk.calm("dibs acquire 1", lambda: next(figures)) == (2_208, 0.1)
    assert (disk.taken, [each["what"] for each in disk.rejected]) == (3, ["dibs acquire 1"] * 2)
    assert said[0].startswith("!!! REJECTED dibs acquire 1: an append took 2.00 ms")


def test_a_disk_that_stalls_each_time_gives_no_figure() -> None:
    disk, _ = planted([0.1, *[2.0] * TRIES_MAX])
    assert disk.calm("dibs acquire 1", lambda: 79) is None
    assert (disk.taken, len(disk.rejected)) == (TRIES_MAX, TRIES_MAX)


def test_a_try_takes_what_it_gets() -> None:
    said: list[str] = []
    left = iter([0.1, 2.0])
    disk = Disk(HERE, said.append, lambda _: next(left), is_try=True)
    assert disk.calm("dibs acquire 1", lambda: 79) == (79, 2.0)
    assert len(disk.settle([{"disk_ms": 2.0}])) == 1


def test_a_disk_that_is_always_as_slow_is_calm() -> None:
    disk, _ = planted([5.0, 9.0])
    assert disk.calm("dibs acquire 1", lambda: 79) == (79, 9.0)
    assert disk.rejected == []


def test_what_was_measured_before_the_disk_was_ever_calm_is_rejected_at_the_end() -> None:
    disk, _ = planted([2.0, 2.0, 0.1, 0.1])
    numbers = iter(range(2))
    rows = []
    for _ in range(2):
        found = disk.calm("dibs", lambda: next(numbers))
        assert found is not None
        rows.append({"target": "dibs", "value": found[0], "disk_ms": found[1]})
    assert [row["value"] for row in disk.settle(rows)] == [1]
    assert [each["what"] for each in disk.rejected] == ["dibs"]


def test_a_run_that_goes_on_knows_what_a_calm_disk_was() -> None:
    disk, _ = planted([0.1, 0.1])
    disk.calm("dibs", lambda: 1)
    later, _ = planted([2.0, 2.0, 2.0, 2.0])
    later.go_on_from(json.loads(json.dumps(disk.document())))
    assert later.calm("dibs", lambda: 1) is None
    assert later.taken == 1 + TRIES_MAX


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    assert probe_ms(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import json, sys
sys.path.insert(0, {bench!r})
from builds import Build
import performance
performance.PAGE = {{"load": 2, "cold": 1}}
document = json.loads(sys.argv[1])
print(performance.left_to_do(document), performance.is_of_now(document, "abc", [Build()]))
"""


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "['load', 'load', 'cold'] False"),
        ({"builds": ["dibs"]}, "['load', 'load', 'cold'] True"),
        ({"builds": ["dibs"], "runs": {"load": [{"commit": "abc"}]}}, "['load', 'cold'] True"),
        ({"builds": ["dibs"], "runs": {"load": [{"commit": "old"}]}}, "['load', 'cold'] False"),
        ({"builds": ["dibs"], "runs": {"load": [{"commit": "abc"}] * 2, "cold": [{"commit": "abc"}]}}, "[] True"),
        ({"builds": ["other"], "runs": {}}, "['load', 'load', 'cold'] False"),
    ],
)
def test_a_run_for_the_page_goes_on_where_it_ended_if_the_commit_is_the_same(
    document: dict[str, Any], told: str
) -> None:
    words = [sys.executable, "-c", SCRIPT.format(bench=str(ROOT / "bench")), json.dumps(document)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, told), done.stderr
