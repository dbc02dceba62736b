"""What is in the repository belongs to everyone: no path of one machine, nothing left for later."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED_FOLDERS = {".git", "__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}

# The patterns are written so that they do not find themselves.
EXAMPLES = "you|user|alice|bob|dibs"
HOMES = re.compile(rf"(?<![\w.~-])/(?:root|(?:home|Users)/(?!(?:{EXAMPLES})/)[\w.-]+)/|\.pyenv[/]")
LEFTOVERS = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b")


def is_skipped(path: Path) -> bool:
    return any(part in SKIPPED_FOLDERS or part.startswith(".venv") for part in path.parts)


def repository_files() -> list[Path]:
    """What is or could be committed. In an unpacked archive, where git knows nothing, what is there."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = [file for file in ROOT.rglob("*") if not is_skipped(file.relative_to(ROOT))]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def text_of(file: Path) -> str:
    content = file.read_bytes()
    return "" if b"\0" in content else content.decode("utf-8", errors="replace")


def found_in_repository(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in repository_files()
        for number, line in enumerate(text_of(file).splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_home_folder_of_the_machine_it_was_written_on() -> None:
    found = found_in_repository(HOMES)
    assert not found, "\n".join(found)


def test_nothing_is_marked_as_left_for_later() -> None:
    found = found_in_repository(LEFTOVERS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", ["/{}/x", "see '/{}/x'", "sqlite:////{}/x.db"])
def test_a_home_folder_is_found(path: str) -> None:
    assert HOMES.search(path.format("root"))
    assert HOMES.search(path.format("home/carla"))


@pytest.mark.parametrize("path", ["/tmp/x", "/home/alice/x", "/var/{}/x", "/locks/{}/acquire"])
def test_an_ordinary_path_is_left_alone(path: str) -> None:
    assert not HOMES.search(path.format("root"))
