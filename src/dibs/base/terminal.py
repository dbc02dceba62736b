"""Makes text of strangers safe for a terminal, and for a model that reads it. Only this module does. Pure.

It must not act on the terminal it is shown on: no control characters (C0 and C1, ESC among them), nothing that turns
the direction of writing, no line that looks like one of ours. `plain` is for one text within a line of ours. `harmless`
is for all that is printed, whoever put it together: answers of the command (`Paint.shown`) and logs (`log_lines`). JSON
needs neither: it is printed in ASCII. `quoted` is for one text within a sentence for a coding agent.
"""

from __future__ import annotations

from dibs.base.cheap import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

# Suggests the word that was probably meant by a mistyped one. Pure.
#
# Only slips of the keyboard count: a letter missing, doubled, wrong or swapped, or a word left unfinished. A word that
# merely looks alike (`version`, `session`) is another word, and naming it would mislead.

LONG_WORD = 8  # from here on two slips are still a slip
PREFIX_MIN = 3


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """ " Did you mean X?", or nothing."""
    known = sorted(candidates)
    typed = _bare(word)
    begun = [each for each in known if len(typed) >= PREFIX_MIN and _bare(each).startswith(typed)]
    if len(begun) == 1:
        return f" Did you mean {begun[0]}?"
    found = []
    for each in known:
        begins_alike = len(typed) > PREFIX_MIN and typed[:PREFIX_MIN] == _bare(each)[:PREFIX_MIN]
        slipped = slips(typed, _bare(each))
        if slipped <= (2 if begins_alike or len(typed) >= LONG_WORD else 1):
            found.append((slipped, each))
    return f" Did you mean {min(found)[1]}?" if len(typed) > 1 and found else ""


def _bare(word: str) -> str:
    """The word without what every flag begins with: that alone makes no two flags alike."""
    return word.lstrip("-").lower()


def slips(typed: str, meant: str) -> int:
    """Return how many letters were left out, added, changed or swapped with their neighbour."""
    before: list[int] = []
    last = list(range(len(meant) + 1))
    for row, letter in enumerate(typed, 1):
        line = [row]
        for column, other in enumerate(meant, 1):
            best = min(last[column] + 1, line[-1] + 1, last[column - 1] + (letter != other))
            swapped = before and column > 1 and typed[row - 2] == other and meant[column - 2] == letter
            line.append(min(best, before[column - 2] + 1) if swapped else best)
        before, last = last, line
    return last[-1]


QUOTED_CHARS_MAX = 80  # more than an honest name has
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def plain(text: object) -> str:
    """The text on one line; characters that could move the cursor or hide words are shown as escapes."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join([each if each.isprintable() else _escape(each) for each in words])


def quoted(text: object, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """The text on one line, cut, in double quotes that it cannot close: it reads as data, whatever it says."""
    words = plain(text).replace('"', "'")
    return f'"{words if len(words) <= chars_max else words[:chars_max] + "…"}"'


def harmless(text: str) -> str:
    """The text with its lines; all other characters that a terminal acts on are shown as escapes."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() or each in "\n\t" else _escape(each) for each in text])


def log_lines(form: str) -> logging.Formatter:
    """Formats lines of a log for standard error. Texts of strangers may stand in them, in a traceback most of all."""
    import logging  # most commands have no log
    from time import gmtime

    class LogLines(logging.Formatter):
        converter = staticmethod(gmtime)
        default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"

        def format(self, record: logging.LogRecord) -> str:
            return harmless(super().format(record))

    return LogLines(form)


def _escape(character: str) -> str:
    return _SHORT.get(character, f"\\u{ord(character):04x}")
