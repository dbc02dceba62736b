"""Colour, or none. The same words either way: colour only helps to find them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO


class Paint:
    __slots__ = ("on",)

    def __init__(self, on: bool = False) -> None:
        self.on = on

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text

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
        """One of several colours, to tell several things apart. None of them is that of good or bad."""
        return self._with(_TINTS[number % len(_TINTS)], text)


_TINTS = ("36", "33", "35", "34", "38;5;208", "96", "93", "95", "94")


def paint_for(stream: TextIO | None, env: Mapping[str, str]) -> Paint:
    """Colour on a terminal that has it, unless NO_COLOR is set."""
    plain = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
    return Paint(not plain and stream is not None and stream.isatty())
