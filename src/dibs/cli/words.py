"""How things are said on a screen: times, words for a shell, tables. Pure."""

from __future__ import annotations

from dibs.core.durations import format_duration
from dibs.terminal import plain
from dibs.wire.parts import instant_ms

__all__ = ["ago", "instant_ms", "plain", "shell_line", "shell_word", "span", "table"]

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
