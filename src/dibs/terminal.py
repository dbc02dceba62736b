"""Text of strangers on a terminal. The only place that makes it safe. Pure.

It must not act on the terminal it is shown on: no control characters (C0 and C1, ESC among them), nothing that turns
the direction of writing, no line that looks like one of ours. `plain` is for one text within a line of ours. `harmless`
is for all that is printed, whoever put it together: answers of the command (`Paint.shown`) and logs (`loglines.py`).
JSON needs neither: it is printed in ASCII.
"""

from __future__ import annotations

_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def plain(text: object) -> str:
    """On one line: what could move the cursor or hide words is shown as an escape."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join([each if each.isprintable() else _escape(each) for each in words])


def harmless(text: str) -> str:
    """Lines as they are; whatever else a terminal would act on, as an escape."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() or each in "\n\t" else _escape(each) for each in text])


def _escape(character: str) -> str:
    return _SHORT.get(character, f"\\u{ord(character):04x}")
