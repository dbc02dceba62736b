"""What may come next on a command line, from the same specifications as the parser. Pure.

A shell's script calls `dibs __complete -- WORDS`, with the word at the cursor last, and offers what is printed: a line
a word, a tab, what it means. So the script never changes, and a command that is new is completed at once.
"""

from __future__ import annotations

from dibs.cli.framework.registry import ALIASES, FAMILIES, NAMES, SUMMARIES, load
from dibs.cli.framework.spec import ANY, ANYWHERE, GLOBAL, MANY, REST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.cli.framework.spec import Argument, Command, Option

FILES = ":files"  # the line that lets a shell offer what it finds on disk
JOB, SESSION, FILE = "job", "session", "file"


class TypedWords:
    """The words before the cursor, as far as they are understood. `pending` is the flag whose value comes next."""

    def __init__(self, words: Sequence[str]) -> None:
        self.command: Command | None = None
        self.family: str | None = None
        self.pending: Option | None = None
        self.given: dict[str, str] = {}  # flags that say where to ask
        self.loose = 0  # how many arguments there are already
        self.is_rest = False
        self.is_unknown = False  # there is a word in it that is no command
        for word in words:
            self._take(word)

    @property
    def options(self) -> tuple[Option, ...]:
        return (*(self.command.options if self.command is not None else ()), *GLOBAL)

    def option(self, flag: str) -> Option | None:
        return next((each for each in (*self.options, *ANYWHERE) if flag in (each.flag, each.short)), None)

    def _take(self, word: str) -> None:
        if self.pending is not None:
            self._note(self.pending, word)
            self.pending = None
        elif self.is_rest or (self.command is not None and not word.startswith("-")):
            self.loose += 1
        elif word == "--":
            self.is_rest = self.command is not None
        elif word.startswith("-"):
            flag, equals, value = word.partition("=")
            option = self.option(flag)
            if option is not None and equals:
                self._note(option, value)
            elif option is not None and option.value and option.bare is None:
                self.pending = option
        else:
            self._name(word)

    def _note(self, option: Option, value: str) -> None:
        if option.flag in ("--url", "--namespace"):
            self.given[option.flag] = value

    def _name(self, word: str) -> None:
        name = word if self.family is None else f"{self.family} {word}"
        name = ALIASES[name][0] if name in ALIASES else name
        if name in NAMES:
            self.command = load(name)
        elif self.family is None and word in FAMILIES:
            self.family = word
        else:
            self.is_unknown = True

    @property
    def argument(self) -> Argument | None:
        """What a word without a flag would be."""
        if self.command is None or not self.command.arguments:
            return None
        arguments = self.command.arguments
        if self.is_rest:
            return arguments[-1] if arguments[-1].takes == REST else None
        plain = [each for each in arguments if each.takes != REST]
        if self.loose < len(plain):
            return plain[self.loose]
        return plain[-1] if plain and plain[-1].takes in (MANY, ANY) else None


def offers(typed: TypedWords, current: str) -> tuple[list[tuple[str, str]], str | None]:
    """Words with what they mean, and of what kind others are that only asking can tell: JOB, SESSION or FILE."""
    if typed.pending is not None:
        return [(choice, "") for choice in typed.pending.choices], typed.pending.completes
    if current.startswith("-") and not typed.is_rest:
        return _flags(typed, current), None
    if typed.command is None:
        return [] if typed.is_unknown else _names(typed.family), None
    argument = typed.argument
    if argument is None:
        return [], None
    kind = FILE if argument.takes == REST else argument.completes
    return [(choice, "") for choice in argument.choices], kind


def _flags(typed: TypedWords, current: str) -> list[tuple[str, str]]:
    flag, equals, _ = current.partition("=")
    option = typed.option(flag)
    if equals:
        return [(f"{flag}={choice}", "") for choice in (option.choices if option is not None else ())]
    return [(each.flag, each.help) for each in typed.options]


def _names(family: str | None) -> list[tuple[str, str]]:
    if family is not None:
        seconds = [name for name in NAMES if name.startswith(family + " ")]
        return [(name.split(" ")[1], SUMMARIES[name]) for name in seconds]
    firsts = dict.fromkeys(name.split(" ")[0] for name in NAMES)
    return [(first, FAMILIES.get(first) or SUMMARIES[first]) for first in firsts]
