"""Formatting of times, shell words and tables. Pure."""

from __future__ import annotations

import os

from dibs.base.terminal import plain
from dibs.core.durations import ago, span
from dibs.wire.parts import instant_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

__all__ = ["ago", "instant_ms", "plain", "span"]  # what other modules say in words, for whoever formats

# How many columns of a terminal a text takes. Pure.

_WIDE = ("W", "F")
_NOTHING = ("Mn", "Me")  # marks that are drawn over the letter before
_CHARACTERS_MAX = 8  # of one column: not a thousand marks over one letter


def columns_of(text: str) -> int:
    """East Asian letters and most emoji take two columns, marks over a letter none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(2 if east_asian_width(each) in _WIDE else 0 if category(each) in _NOTHING else 1 for each in text)


def short(text: str, most: int) -> str:
    """The text, cut so that it takes at most `most` columns."""
    if len(text) <= _CHARACTERS_MAX * most and columns_of(text) <= most:
        return text
    if most <= 0:
        return ""
    kept = text[: most - 1] if text.isascii() else _beginning(text, most - 1)
    return f"{kept}…"


def _beginning(text: str, most: int) -> str:
    used = 0
    for index, each in enumerate(text):
        used += columns_of(each)
        if used > most or index > _CHARACTERS_MAX * most:
            return text[:index]
    return text


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns_of(text))


# The width of an output stream.

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


_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_")


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key that compares numbers by value: issue-2 before issue-10."""
    parts: list[tuple[int, int, str]] = []
    start = 0
    for index in range(1, len(name) + 1):
        if index == len(name) or _is_digit(name[index]) != _is_digit(name[start]):
            part = name[start:index]
            parts.append((0, int(part), part) if _is_digit(part[0]) else (1, 0, part))
            start = index
    return parts


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def shell_word(text: str) -> str:
    """`text` as one word of a shell's command line."""
    if text and _SAFE.issuperset(text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def shell_line(words: Iterable[str]) -> str:
    return plain(" ".join([shell_word(word) for word in words]))


def job_command(words: list[str], names: list[str], flags: Sequence[str] = ()) -> str:
    """A command of dibs for these jobs, as one may paste it. A name that begins with a dash would be a flag, such as
    `--url=…`, so such names come last, after `--`."""
    if any(name.startswith("-") for name in names):
        return shell_line(["dibs", *words, *flags, "--", *names])
    return shell_line(["dibs", *words, *names, *flags])


def table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Rows as lines. Each column is as wide as its longest cell; the last one is not padded."""
    if not rows:
        return []
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(columns_of(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [padded(cell, width) for cell, width in zip(row, widths, strict=False)]
        lines.append(gap.join([*cells, row[-1]]).rstrip())
    return lines
