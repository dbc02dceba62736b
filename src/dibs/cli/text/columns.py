"""How many columns of a terminal a text takes. Pure."""

from __future__ import annotations

_WIDE = ("W", "F")
_NOTHING = ("Mn", "Me")  # marks that are drawn over the letter before
_CHARACTERS_MAX = 8  # of one column: not a thousand marks over one letter


def columns_of(text: str) -> int:
    """East Asian letters and most emoji take two columns, marks over a letter none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        2 if east_asian_width(each) in _WIDE else 0 if category(each) in _NOTHING else 1 for each in text
    )


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
