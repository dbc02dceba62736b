"""How things are said on a screen: times, names, texts of strangers. Pure."""

from __future__ import annotations

from dibs.core.durations import format_duration

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


def instant_ms(text: str) -> int:
    """Milliseconds since 1970 of a time as replies carry it: 2025-11-15T02:14:05.123Z."""
    year, month, day = int(text[0:4]), int(text[5:7]), int(text[8:10])
    # Days since 1970 by the proleptic calendar; a year begins in March, so that the leap day is its last.
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    seconds = days * 86_400 + int(text[11:13]) * 3_600 + int(text[14:16]) * 60 + int(text[17:19])
    return seconds * 1_000 + int(text[20:23])


def plain(text: object) -> str:
    """A stranger's text on one line: what could move the cursor or hide words is shown as an escape."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join([each if each.isprintable() else _escape(each) for each in words])


def _escape(character: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character, f"\\u{ord(character):04x}")


def shell_word(text: str) -> str:
    """`text` as one word of a shell's command line."""
    if text and _SAFE.issuperset(text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def shell_line(words: Iterable[str]) -> str:
    return " ".join([shell_word(word) for word in words])


def table(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Columns as wide as they need, the last one as it is."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(gap.join([*cells, row[-1]]).rstrip())
    return lines
