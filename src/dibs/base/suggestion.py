"""Suggests the word that was probably meant by a mistyped one. Pure.

Only slips of the keyboard count: a letter missing, doubled, wrong or swapped, or a word left unfinished. A word that
merely looks alike (`version`, `session`) is another word, and naming it would mislead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LONG_WORD = 8  # from here on two slips are still a slip
PREFIX_MIN = 3


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """ " Did you mean X?", or nothing."""
    known = sorted(candidates)
    typed = _bare(word)
    begun = [each for each in known if len(typed) >= PREFIX_MIN and _bare(each).startswith(typed)]
    if len(begun) == 1:
        return f" Did you mean {begun[0]}?"
    slips_max = 2 if len(typed) >= LONG_WORD else 1
    counted = [(slips(typed, _bare(each)), each) for each in known]
    fewest = min(counted, default=(slips_max + 1, ""))
    return f" Did you mean {fewest[1]}?" if len(typed) > 1 and fewest[0] <= slips_max else ""


def _bare(word: str) -> str:
    """The word without what every flag begins with: that alone makes no two flags alike."""
    return word.lstrip("-").lower()


def slips(typed: str, meant: str) -> int:
    """How many letters were left out, added, changed or swapped with their neighbour."""
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
