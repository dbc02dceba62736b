"""The width of an output stream."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

WIDTH_DEFAULT = 80
WIDTH_MIN = 40


def width_of(stream: TextIO | None, env: Mapping[str, str]) -> int | None:
    """Columns of a terminal; None for a pipe or a file, which take lines of any length. COLUMNS takes precedence."""
    if stream is None or not stream.isatty():
        return None
    said = env.get("COLUMNS", "")
    if said.isdecimal() and 0 < int(said) < 10_000:
        return max(WIDTH_MIN, int(said))
    try:
        return max(WIDTH_MIN, os.get_terminal_size(stream.fileno()).columns or WIDTH_DEFAULT)
    except OSError:  # no real terminal
        return WIDTH_DEFAULT
