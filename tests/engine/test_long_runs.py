"""`scripts/dev/long`: what its worlds have shown stays when it is ended, and what was broken is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs import WAIT_S_MAX

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dev" / "long"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    terms = ["--folder", str(folder), "--name", "few", "--seeds", "2", "--world", "12", *words]
    return subprocess.run(
        [sys.executable, SCRIPT, *terms], capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
    )


def kept(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "few").glob("*.json"))]


def test_a_long_run_goes_on_where_it_was_ended_and_refuses_other_terms(tmp_path: Path) -> None:
    first = run(tmp_path, "--operations", "1")
    before = kept(tmp_path)
    assert [row["worlds"] for row in before] == [1, 1], first.stderr
    again = run(tmp_path, "--operations", "150")
    after = kept(tmp_path)
    for row, old in zip(after, before, strict=True):
        assert row["operations"] >= 150 > old["operations"]
        assert row["worlds"] > old["worlds"]
    total = sum(row["operations"] for row in after)
    assert f"| {sum(row['worlds'] for row in after)} | {total} |" in again.stdout
    assert again.returncode == 1, "so few operations bring no two features together"
    assert "never met" in (tmp_path / "few" / "report.md").read_text(encoding="utf-8")
    other = run(tmp_path, "--operations", "150", "--mixed")
    assert other.returncode == 1
    assert "Take another --name." in other.stderr
    assert kept(tmp_path) == after
