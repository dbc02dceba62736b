"""Colour. The words are the same with and without it.

Painted text is printed through `shown`, which lets our colours through and no other escape. Until then our escapes
carry a random mark of this process, so that a stranger's text cannot fake them.
"""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.base.terminal import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO


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
