"""Formatting of times, shell words and tables. Pure."""

from __future__ import annotations

from dibs.base.terminal import plain
from dibs.core.durations import ago, span
from dibs.wire.parts import instant_ms

__all__ = [
    "ago",
    "instant_ms",
    "job_command",
    "natural_key",
    "plain",
    "shell_line",
    "shell_word",
    "span",
    "table",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    from dibs.cli.text.columns import columns_of, padded  # a claim prints no table

    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(columns_of(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [padded(cell, width) for cell, width in zip(row, widths, strict=False)]
        lines.append(gap.join([*cells, row[-1]]).rstrip())
    return lines
