"""How things are said on a screen: times, words for a shell, tables. Pure."""

from __future__ import annotations

from dibs.core.durations import format_duration
from dibs.terminal import plain
from dibs.wire.parts import instant_ms

__all__ = ["ago", "instant_ms", "natural_key", "plain", "shell_line", "shell_word", "span", "table"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_")


def ago(ms: int) -> str:
    """`4 minutes ago`. One unit is how people say it; a clock that is a little ahead must not show the future."""
    for size_ms, unit in _UNITS:
        if ms >= 2 * size_ms or (ms >= size_ms and unit != "second"):
            count = ms // size_ms
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def span(ms: int) -> str:
    """`1m 30s`. Less than a second is said as such: nobody acts on milliseconds."""
    if ms < 1_000:
        return "less than a second"
    # A lease of 2m that was just granted may have 1m 59.99s left. Anything more than that is not rounded up: who is
    # told "within 3s" must have them.
    return format_duration((ms + 50) // 1_000 * 1_000)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key by which names sort as people count: issue-2 before issue-10."""
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


def table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Columns as wide as they need, the last one as it is. Each row is one line."""
    if not rows:
        return []
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(gap.join([*cells, row[-1]]).rstrip())
    return lines
