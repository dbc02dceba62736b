"""Durations as people write and read them: `90`, `250ms`, `30s`, `1.5m`, `2h`, `1d`. A bare number is seconds."""

from __future__ import annotations

from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.core.limits import TTL_MS_MAX, TTL_MS_MIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import TypeAlias

Duration: TypeAlias = "float | str | timedelta"  # seconds, text such as "2m", or a timedelta
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SAID = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
_FORM = "Write seconds (90) or a number with ms, s, m, h or d (30s, 15m, 2h)."


def parse_duration(text: str, what: str = "duration") -> int:
    """Milliseconds. A fraction (`1.5m`) is one of whole milliseconds."""
    text = text.strip()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = _UNITS_MS.get(text[len(number) :].lower() or "s")
    whole, point, part = number.partition(".")
    digits = whole + part
    # isdecimal alone accepts the digits of every script.
    if unit is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 15 or bool(point) != bool(part):
        raise InvalidInput(f"{text!r} is not a {what}. {_FORM}")
    size = int("1" + "0" * len(part))
    ms, rest = divmod(int(digits) * unit, size)
    if rest:
        raise InvalidInput(f"{text!r} is not a {what}: it has less than a millisecond. {_FORM}")
    return ms


def is_duration(text: str) -> bool:
    try:
        parse_duration(text)
    except InvalidInput:
        return False
    return True


def duration_ms(value: object, what: str = "duration") -> int:
    """Milliseconds of what a program gives, a `Duration`. Anything else is refused with its name."""
    if isinstance(value, str):
        return parse_duration(value, what)
    seconds = value.total_seconds() if hasattr(value, "total_seconds") else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
        raise InvalidInput(
            f'{what} is a number of seconds, text such as "2m", or a timedelta, and not negative; this is {value!r}.'
        )
    return round(seconds * 1000)


def check_ttl_ms(ttl_ms: int) -> int:
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise InvalidTtl(
            f"A lease lasts from {TTL_MS_MIN // 1000} to {TTL_MS_MAX // 1000} seconds (24h); "
            f"{ttl_ms / 1000:g} were asked for."
        )
    return ttl_ms


def format_duration(ms: int) -> str:
    """At most two units: `45s`, `1m 30s`, `2h`, `3d 4h`, `250ms`."""
    if ms < 0:
        return "-" + format_duration(-ms)
    if ms < 1_000:
        return f"{ms}ms"
    seconds = ms // 1_000
    parts = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def ago(ms: int) -> str:
    """`4 minutes ago`, in one unit. A clock that is slightly ahead must not show the future."""
    for size_ms, unit in _SAID:
        if ms >= 2 * size_ms or (ms >= size_ms and unit != "second"):
            count = ms // size_ms
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def span(ms: int) -> str:
    """`1m 30s`. Below a second it is `less than a second`."""
    if ms < 1_000:
        return "less than a second"
    # A lease of 2m that was just granted may have 1m 59.99s left. No more is rounded up: "within 3s" must be true.
    return format_duration((ms + 50) // 1_000 * 1_000)
