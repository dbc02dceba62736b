"""Lists what a wheel or sdist holds, and judges it: python -m scripts.dev.packaging.contents TRACKED FILE...

TRACKED is a file with the paths that git knows, one per line. Exits with 1 if something does not belong there.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

# Of a wheel: the package, its metadata, the man page, and the shared object of a compiled build.
_IN_WHEEL = re.compile(r"dibs/|dibs__mypyc\.[\w.-]+\.so$|dibs_lease-[\w.]+\.(dist-info|data/data/share/man)/")
_MADE = re.compile(r"^(PKG-INFO|\.gitignore)$")
_COMPILED = re.compile(r"^dibs/(.+)\.cpython-[\w-]+\.so$")


def names_in(file: Path) -> list[str]:
    """Paths as they are installed, or as they are in the repository."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(file) as sdist:
        return [member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()]


def strays(names: list[str], tracked: set[str], *, is_wheel: bool) -> list[str]:
    """What does not belong into it."""
    if not is_wheel:
        return [name for name in names if name not in tracked and not _MADE.match(name)]
    return [name for name in names if not _belongs(name, tracked)]


def _belongs(name: str, tracked: set[str]) -> bool:
    if not name.startswith("dibs/"):
        return _IN_WHEEL.match(name) is not None
    compiled = _COMPILED.match(name)
    return f"src/{name}" in tracked or (compiled is not None and f"src/dibs/{compiled[1]}.py" in tracked)


def main() -> int:
    tracked = set(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    is_clean = True
    for file in map(Path, sys.argv[2:]):
        names = names_in(file)
        folders = Counter(name.split("/")[0] if "/" in name else "files beside" for name in names)
        told = ", ".join(f"{folder} {count}" for folder, count in sorted(folders.items()))
        print(f"{file.name}: {len(names)} files, {file.stat().st_size / 1e6:.1f} MB: {told}")
        for name in strays(names, tracked, is_wheel=file.suffix == ".whl"):
            print(f"  does not belong there: {name}")
            is_clean = False
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
