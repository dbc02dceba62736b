"""Makes text of strangers safe for a terminal, and for a model that reads it. Only this module does. Pure.

It must not act on the terminal it is shown on: no control characters (C0 and C1, ESC among them), nothing that turns
the direction of writing, no line that looks like one of ours. `plain` is for one text within a line of ours. `harmless`
is for all that is printed, whoever put it together: answers of the command (`Paint.shown`) and logs (`loglines.py`).
JSON needs neither: it is printed in ASCII. `quoted` is for one text within a sentence that a coding agent is told.
"""

from __future__ import annotations

QUOTED_CHARS_MAX = 80  # more than an honest name has
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def plain(text: object) -> str:
    """The text on one line; characters that could move the cursor or hide words are shown as escapes."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join([each if each.isprintable() else _escape(each) for each in words])


def quoted(text: object, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """The text on one line, cut, in double quotes that it cannot close: what somebody else wrote reads as data,
    whatever it says, and never as a sentence of ours."""
    words = plain(text).replace('"', "'")
    return f'"{words if len(words) <= chars_max else words[:chars_max] + "…"}"'


def harmless(text: str) -> str:
    """The text with its lines; all other characters that a terminal acts on are shown as escapes."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() or each in "\n\t" else _escape(each) for each in text])


def _escape(character: str) -> str:
    return _SHORT.get(character, f"\\u{ord(character):04x}")
