"""Asks pip which wheel of a folder it would install where: python -m scripts.dev.packaging.choice FOLDER

Everywhere that a compiled wheel is for, pip must choose that one, and the pure one on every other system. Nothing is
downloaded: pip looks only at the folder. Exits with 1 if pip chooses another one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Python and platform, as pip is told. These have no compiled wheel, whatever a release has.
ELSEWHERE = [
    ("3.13", "macosx_11_0_arm64"),
    ("3.12", "musllinux_1_2_x86_64"),
    ("3.13", "win_amd64"),
    ("3.13", "manylinux2014_armv7l"),
    ("3.99", "manylinux_2_28_x86_64"),
]
_PURE = "-py3-none-any.whl"
_COMPILED = re.compile(r"-cp3(\d+)-cp3\d+-(?:[\w.]+\.)?(\w+)\.whl$")


def chosen(folder: Path, python: str, platform: str) -> str:
    """The name of the wheel that pip takes from the folder for this Python on this platform."""
    with tempfile.TemporaryDirectory(prefix="dibs-choice-") as taken:
        words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--pre"]
        words += ["--find-links", str(folder), "--only-binary", ":all:", "--dest", taken]
        words += ["--python-version", python, "--implementation", "cp", "--platform", platform, "dibs-lease"]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        (wheel,) = Path(taken).iterdir()
        return wheel.name


def wanted(names: list[str]) -> list[tuple[str, str, str]]:
    """Python, platform, and the wheel that belongs there."""
    (pure,) = [name for name in names if name.endswith(_PURE)]
    compiled = [(f"3.{found[1]}", found[2], name) for name in names if (found := _COMPILED.search(name))]
    return [*compiled, *((python, platform, pure) for python, platform in ELSEWHERE)]


def main() -> int:
    folder = Path(sys.argv[1])
    is_right = True
    for python, platform, name in wanted(sorted(path.name for path in folder.glob("*.whl"))):
        found = chosen(folder, python, platform)
        print(f"  Python {python}, {platform}: {found}")
        is_right = is_right and found == name
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
