"""Recorded walks: a text file with the lines of each walk below its name. `DIBS_REWRITE=1` records them anew."""

from __future__ import annotations

import os
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest

from tests.build import COMPILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

REWRITE = os.environ.get("DIBS_REWRITE") == "1"
if_rewriting = pytest.mark.skipif(not REWRITE or COMPILED, reason="DIBS_REWRITE=1 records them anew")


@cache
def _read(file: Path) -> dict[str, list[str]]:
    blocks = file.read_text(encoding="utf-8").strip().split("\n\n")
    return {lines[0]: lines[1:] for lines in (block.splitlines() for block in blocks)}


def first_change(file: Path, name: str, lines: Sequence[str]) -> int | None:
    """The first step that is not as it was recorded."""
    if REWRITE:
        return None
    steps = enumerate(zip_longest(lines, _read(file)[name]))
    return next((at for at, (line, before) in steps if line != before), None)


def rewrite(file: Path, names: Iterable[str], lines_of: Callable[[str], Iterable[str]]) -> None:
    file.write_text("\n\n".join("\n".join([name, *lines_of(name)]) for name in names) + "\n", encoding="utf-8")
