"""The commit that `dibs --version` names: that of dibs' own clone, or of the git address it was installed from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import WAIT_S_MAX

PACKAGE = Path(__file__).parents[2] / "src" / "dibs"
ASK = "import os; from dibs.base import build_commit; print(build_commit(os.environ))"
COMMITTED = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "commit", "-q", "--allow-empty", "-m", "x")
pytestmark = pytest.mark.e2e


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=WAIT_S_MAX, check=True
    )
    return done.stdout.strip()


def commit_in(source: Path, **env: str) -> str:
    """Return what a dibs says whose package is in this folder."""
    source.mkdir(parents=True, exist_ok=True)
    if not (source / "dibs").exists():
        (source / "dibs").symlink_to(PACKAGE)
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), **env}
    done = subprocess.run(
        [sys.executable, "-S", "-c", ASK], env=given, capture_output=True, text=True, timeout=WAIT_S_MAX, check=True
    )
    return done.stdout.strip()


@pytest.mark.fault("F-679")
def test_a_clone_names_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    clone, other = tmp_path / "clone", tmp_path / "other"
    for folder in (clone, other):
        folder.mkdir()
        git(folder, "init", "-q")
        (folder / "tracked").write_text("a", encoding="utf-8")
        git(folder, "add", "tracked")
        git(folder, *COMMITTED)
    commit = git(clone, "rev-parse", "--short=12", "HEAD")
    assert commit_in(clone / "src") == commit
    assert commit_in(clone / "src", GIT_DIR=str(other / ".git")) == commit  # inside a hook of another repository
    assert commit_in(clone / "src", PATH="/nowhere") == "None"
    git(clone, "tag", "v1")
    (clone / "tracked").write_text("b", encoding="utf-8")
    assert commit_in(clone / "src") == f"{commit}, changed"
    # An environment in somebody's repository is not that repository.
    assert commit_in(clone / "lib" / "site-packages") == "None"


@pytest.mark.fault("F-679")
@pytest.mark.parametrize(
    ("noted", "commit"),
    [
        ({"url": "git+x", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef0123"}}, "0123456789ab"),
        ({"url": "file:///x.whl", "archive_info": {}}, "None"),
        ({"vcs_info": {"commit_id": "\x1b[8m"}}, "None"),
        ({"vcs_info": []}, "None"),
        ([], "None"),
    ],
)
def test_what_was_installed_from_a_git_address_names_the_commit_that_was_noted(
    tmp_path: Path, noted: object, commit: str
) -> None:
    about = tmp_path / "dibs_lease-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dibs-lease\nVersion: 1\n", encoding="utf-8")
    (about / "direct_url.json").write_text(json.dumps(noted), encoding="utf-8")
    assert commit_in(tmp_path) == commit
    (about / "direct_url.json").write_text("{", encoding="utf-8")
    assert commit_in(tmp_path) == "None"
