"""The code of earlier releases, from the history: of the commit that gave a release its dated section in CHANGELOG.md.
A clone without that commit cannot try it, and says so."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def without_history(why: str) -> NoReturn:
    missing = pytest.fail if os.environ.get("DIBS_REQUIRE_ALL") == "1" else pytest.skip
    missing(f"VERSIONS NOT TESTED: {why}. Clone with the whole history: git fetch --unshallow")


def last_release() -> str:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r"^## \[([\d.]+)\] - ", text, re.MULTILINE)
    assert found is not None
    return found[1]


def code_of(version: str, folder: Path) -> Path:
    """The source of a release, below `folder`."""
    section = f"## [{version}] - "
    asked = ["git", "-C", str(ROOT), "log", "--reverse", "--format=%H", f"-S{section}", "--", "CHANGELOG.md"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        without_history("this is no clone")
    commit = next(iter(found.stdout.split()), "")
    is_shallow = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=True
    )
    if not commit or is_shallow.stdout.strip() == "true":
        without_history(f"the commit of {version} is not in this clone, whose history is cut off")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"
