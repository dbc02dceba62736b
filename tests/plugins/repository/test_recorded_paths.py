"""Paths that git has recorded have the names that claims give them. A file system that folds case is simulated."""

from __future__ import annotations

import subprocess
import unicodedata
from typing import TYPE_CHECKING

from dibs.agents.git.staged import staged_names
from dibs.agents.repository import file_paths
from dibs.agents.repository.work_tree import Repository

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

COMPOSED = unicodedata.normalize("NFC", "café.txt")


def staged_under_other_spellings(top: Path) -> Repository:
    """A repository whose index spells two files otherwise than the folder does, as git on macOS may."""
    for words in (["init", "-q"], ["config", "core.precomposeunicode", "false"]):
        subprocess.run(["git", *words], cwd=top, check=True, timeout=60)
    (top / "Src").mkdir()
    (top / "Src" / "README").write_text("x")
    (top / unicodedata.normalize("NFD", "café.txt")).write_text("x")
    blob = subprocess.run(
        ["git", "hash-object", "-w", "Src/README"],
        cwd=top,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout.strip()
    for path in ("src/readme", unicodedata.normalize("NFD", "café.txt")):
        entry = f"100644,{blob},{path}"
        subprocess.run(["git", "update-index", "--add", "--cacheinfo", entry], cwd=top, check=True, timeout=60)
    return Repository.at({"PATH": "/usr/bin:/bin:/usr/local/bin"}, str(top))


def test_staged_files_are_spelled_as_claims_spell_them_where_the_file_system_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = staged_under_other_spellings(tmp_path)
    assert "src/readme" in repository.staged()
    monkeypatch.setattr(file_paths, "folds_case", lambda top: True)
    assert sorted(staged_names(repository.staged())) == sorted(["path:Src/README", f"path:{COMPOSED}"])


def test_elsewhere_they_stay_as_git_recorded_them(tmp_path: Path) -> None:
    repository = staged_under_other_spellings(tmp_path)
    assert sorted(repository.staged()) == sorted(["src/readme", unicodedata.normalize("NFD", "café.txt")])
