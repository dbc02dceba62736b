"""Dates in HTTP headers."""

from __future__ import annotations

from calendar import timegm

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date_ms(text: str) -> int | None:
    """Milliseconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may send. None: the text
    is another one."""
    try:
        _, day, month, year, clock, zone = text.split()
        numbers = (year, day, *clock.split(":"))
        if not all(each.isascii() and each.isdecimal() for each in numbers):
            return None
        month_number = _MONTHS.index(month) + 1
        hour, minute, second = map(int, numbers[2:])
        moment = timegm((int(year), month_number, int(day), hour, minute, second, 0, 0, 0))
    except (ValueError, OverflowError):
        return None
    return moment * 1000 if zone == "GMT" else None
