"""Keys as text in the order of code points."""

from __future__ import annotations


def end_of(prefix: str) -> str | None:
    """The first text after all texts that begin with `prefix`, in the order of code points; None if there is none."""
    for position in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[position])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1  # surrogates are not characters
            return prefix[:position] + chr(following)
    return None
