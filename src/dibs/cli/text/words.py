"""Formatting of times, shell words and tables, and colour. Pure."""

from __future__ import annotations

import os

from dibs.base.cheap import Iterable, Mapping, Sequence, TextIO
from dibs.base.ids import new_id
from dibs.base.terminal import harmless, plain
from dibs.core.durations import ago, span
from dibs.wire.parts import instant_ms

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


def short_name(text: str, most: int) -> str:
    """The same, cut in the middle: names of jobs differ at their end."""
    if len(text) <= _CHARACTERS_MAX * most and columns_of(text) <= most:
        return text
    behind = _beginning(text[::-1], (most - 1) // 2)[::-1]
    return f"{_beginning(text, most - 1 - columns_of(behind))}…{behind}" if most > 2 else short(text, most)


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


GAP = 2
PADDED_MAX = 48  # in a pipe a longer cell moves the rest of its own line only


def table(rows: Sequence[Sequence[str]], most: int = PADDED_MAX) -> list[str]:
    """Rows as lines. Each column is as wide as its longest cell of `most` columns; the last one is not padded."""
    if not rows:
        return []
    rows = [[plain(cell) for cell in row] for row in rows]
    columns = range(len(rows[0]) - 1)
    widths = [max([width for row in rows if (width := columns_of(row[at])) <= most], default=0) for at in columns]
    lines = []
    for row in rows:
        cells = [padded(cell, width) for cell, width in zip(row, widths, strict=False)]
        lines.append((" " * GAP).join([*cells, row[-1]]).rstrip())
    return lines


# Colour. The words are the same with and without it.
#
# Painted text is printed through `shown`, which lets our colours through and no other escape. Until then our escapes
# carry a random mark of this process, so that a stranger's text cannot fake them.


class Paint:
    __slots__ = ("_escape", "on")

    def __init__(self, on: bool = False) -> None:
        self.on = on
        self._escape = f"\x1b{new_id()}" if on else ""

    def _with(self, code: str, text: str) -> str:
        return f"{self._escape}[{code}m{text}{self._escape}[0m" if self.on and text else text

    def shown(self, text: str) -> str:
        """`text` with our colours and without any other escapes."""
        if not self.on:
            return harmless(text)
        return "\x1b".join([harmless(part) for part in text.split(self._escape)])

    def good(self, text: str) -> str:
        return self._with("32", text)

    def bad(self, text: str) -> str:
        return self._with("31", text)

    def wait(self, text: str) -> str:
        return self._with("33", text)

    def strong(self, text: str) -> str:
        return self._with("1", text)

    def faint(self, text: str) -> str:
        return self._with("2", text)

    def tint(self, number: int, text: str) -> str:
        """One of several colours, to tell things apart. None of them means good or bad."""
        return self._with(_TINTS[number % len(_TINTS)], text)


_TINTS = ("36", "33", "35", "34", "38;5;208", "96", "93", "95", "94")


def paint_for(stream: TextIO | None, env: Mapping[str, str]) -> Paint:
    """Colour on a terminal that supports it, unless NO_COLOR is set."""
    plain = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
    return Paint(not plain and stream is not None and stream.isatty())
