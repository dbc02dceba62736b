"""Every file that a comment, a docstring or the page of the architecture names in backticks exists under that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "native", "bench", "scripts")
PAGES = ("CONTRIBUTING.md", "docs/explanation/architecture.md")
# Examples, and no files of ours.
EXAMPLES = {"src/a.py", "tests/core/test_X.py", "test_X_more.py"}
_NAMED = re.compile(r"`([\w/-]+\.(?:py|js|sql))[`:]")


def test_a_file_that_is_named_exists() -> None:
    """By its path from any folder above it: `clock.py`, `base/clock.py`."""
    there = set(EXAMPLES)
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.*"):
            parts = file.relative_to(ROOT).parts
            there.update("/".join(parts[at:]) for at in range(len(parts)))
    readers = [*sorted((ROOT / "src/dibs").rglob("*.py")), *[ROOT / page for page in PAGES]]
    missing = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in readers
        for name in _NAMED.findall(path.read_text(encoding="utf-8"))
        if name not in there
    ]
    assert not missing, "\n".join(missing)
