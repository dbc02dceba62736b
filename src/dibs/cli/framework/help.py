"""Help texts, made from the specifications of commands. The reference page is made from the same."""

from __future__ import annotations

from textwrap import wrap

from dibs.base.cheap import Iterable
from dibs.base.errors import DibsError
from dibs.cli.framework.rank import COMPATIBILITY, CORE, MORE, PARTS, RANKS, first_words, parts_with_commands
from dibs.cli.framework.registry import ALIASES, FAMILIES, GROUP, load, shipped_names, summary_of
from dibs.cli.framework.spec import GLOBAL, REST, Command, Option

WIDTH = 80
WIDTH_MAX = 100  # longer lines are hard to read
COLUMN_MIN = 24
ALL = "all"


def overview(width: int | None = None) -> str:
    """`dibs --help` on one screen, for a terminal of this width; None is that of a pipe."""
    width = _fitted(width)
    flags = ", ".join([option.flag for option in GLOBAL])
    lines = [
        *wrap(
            "dibs: one owner per job. Claim a job by its name; one worker gets it, the others are told who has it.",
            width,
        ),
        "",
        "Usage: dibs COMMAND [arguments] [flags]",
        "",
        *_columns(words_of_the_core(), width),
        "",
        "More commands, each group with `dibs help GROUP`:",
        *_columns([*_groups_in_short(), (ALL, "every command")], width),
        "",
        *wrap(f"Every command takes {flags}; `dibs COMMAND --help` explains its flags.", width),
        "",
        "  dibs claim issue-1842 --actor ann     # yours, or who has it",
        "  dibs release issue-1842 --actor ann   # the name is all the proof it needs",
        "  dibs run issue-42 -- ./fix.sh         # claim, run, heartbeat, release",
    ]
    return "\n".join(lines)


def is_group(word: str) -> bool:
    """Tell whether `dibs help WORD` shows a list: of a part, of a rank, or of everything."""
    return word in (ALL, *RANKS, *[part.word for part in parts_with_commands()])


def group_page(word: str, width: int | None = None) -> str:
    """`dibs help GROUP`: the commands of a part, of a rank, or all, with those that other packages bring."""
    width = _fitted(width)
    shown: list[tuple[str, list[tuple[str, str]]]] = []
    for part in parts_with_commands():
        if word in (part.word, part.rank, ALL):
            shown.append((part.title, [(name, summary_of(name)) for name in part.commands]))
    if word == ALL:
        shown += [("Of other packages", rows) for rows in [_foreign_commands()] if rows]
    lines = [line for title, rows in shown for line in (f"{title}:", *_columns(rows, width), "")]
    return "\n".join([*lines, "`dibs COMMAND --help` shows flags, examples and exit codes."])


def family_page(first: str, commands: list[str], width: int | None = None) -> str:
    """`dibs FAMILY --help`: the commands that begin with one word."""
    width = _fitted(width)
    rows = [(name, summary_of(name) or load(name).summary) for name in commands]
    about = [sentence(FAMILIES[first]), ""] if first in FAMILIES else []
    after = "`dibs COMMAND --help` shows flags, examples and exit codes."
    lines = [f"Usage: dibs {first} COMMAND [arguments] [flags]", "", *about, *_columns(rows, width), "", after]
    return "\n".join(lines)


def words_of_the_core() -> list[tuple[str, str]]:
    """The commands that somebody who begins needs, in the order of the work: each first word, with what it does."""
    names = [name for part in PARTS if part.rank == CORE for name in part.commands]
    return [(word, FAMILIES.get(word) or summary_of(_first(word, names))) for word in first_words(names)]


def _first(word: str, names: Iterable[str]) -> str:
    return next(name for name in names if word in (name, name.split(" ")[0]))


def _groups_in_short() -> list[tuple[str, str]]:
    """Each part that is not core with its first words; what is for users of other systems in one line."""
    rows = [(part.word, part.commands) for part in parts_with_commands() if part.rank == MORE]
    others = [name for part in PARTS if part.rank == COMPATIBILITY for name in part.commands]
    return [(word, ", ".join(first_words(names))) for word, names in [*rows, (COMPATIBILITY, others)]]


def _foreign_commands() -> list[tuple[str, str]]:
    """The commands of packages that are installed beside dibs. One that cannot be loaded has its name alone."""
    from dibs.base.plugins import registered

    rows = []
    for name in [word.replace(".", " ") for word in registered(GROUP)]:
        try:
            rows.append((name, load(name).summary))
        except DibsError:
            rows.append((name, "cannot be loaded"))
    return [row for row in rows if row[0] not in shipped_names()]


def page(command: Command, width: int | None = None) -> str:
    """`dibs COMMAND --help`, for a terminal of this width; None is that of a pipe."""
    width = _fitted(width)
    lines = [*_usage(command, width), ""]
    summary = command.summary or summary_of(command.name)
    if summary:  # another package may have none
        lines += wrap(sentence(summary), width)
    if command.about:
        lines += wrap(command.about, width)
    others = aliases(command.name)
    if others:
        lines += wrap(f"Also: {', '.join(others)}.", width)
    if command.arguments:
        rows = [(each.name, _with_choices(each.help, each.choices)) for each in command.arguments]
        lines += ["", *_columns(rows, width)]
    usual = _usual(command)
    if usual:
        lines += ["", "Usual flags:", *_options(usual, width)]
    if command.options:
        further = [option for option in command.options if option not in usual]
        lines += ["", "Further flags:" if usual else "Flags:", *_options(further, width)]
    lines += ["", "For every command:", *_options(GLOBAL, width)]
    if command.examples:
        lines += ["", "Examples:"]
        for line, what in command.examples:
            lines += [f"  # {what}", f"  {line}"]
    if command.exits:
        lines += ["", "Exit codes:", *_columns([(str(code), what) for code, what in command.exits], width)]
    return "\n".join(lines)


def aliases(name: str) -> list[str]:
    return [f"dibs {alias}" for alias, meant in ALIASES.items() if name in meant]


def usage_line(command: Command) -> str:
    return " ".join(_around_flags(command, _bracketed(command.options)))


def _bracketed(options: Iterable[Option]) -> list[str]:
    """The flags that are not required, as a usage line shows them. A flag and its value are one part."""
    return [f"[{option.shown}]" for option in options if option.required is None]


def _usual(command: Command) -> list[Option]:
    return [option for option in command.options if option.flag in command.usual]


def _around_flags(command: Command, flags: list[str]) -> list[str]:
    groups = [[option.shown for option in group] for group in command.required]
    needed = [each[0] if len(each) == 1 else f"({' | '.join(each)})" for each in groups]
    before = [each.shown for each in command.arguments if each.takes != REST]
    after = [each.shown for each in command.arguments if each.takes == REST]
    return ["dibs", command.name, *before, *needed, *flags, *after]


def _usage(command: Command, width: int) -> list[str]:
    """The line of usage within the width of the page. A flag and its value stay together."""
    usual = _usual(command)
    flags = [*_bracketed(usual), "[further flags]"] if usual else _bracketed(command.options)
    line = " ".join([part.replace(" ", "\0") for part in _around_flags(command, flags)])
    indent = min(len(f"Usage: dibs {command.name} "), width // 3)
    lines = wrap(f"Usage: {line}", width, subsequent_indent=" " * indent, break_on_hyphens=False)
    return [each.replace("\0", " ") for each in lines]


def short_usage(command: Command) -> str:
    """The same without naming flags that are not required, for beneath an error."""
    return " ".join(_around_flags(command, ["[flags]"]))


def _options(options: Iterable[Option], width: int) -> list[str]:
    rows = []
    for option in options:
        name = f"{option.short}, {option.shown}" if option.short else f"    {option.shown}"
        env = f" [{option.env}]" if option.env else ""
        rows.append((name, _with_choices(option.help, option.choices) + env))
    return _columns(rows, width)


def _columns(rows: list[tuple[str, str]], width: int) -> list[str]:
    indent = max(len(name) for name, _ in rows) + 5
    if width - indent < COLUMN_MIN:  # too narrow for two columns: the meaning goes below the name
        texts = [(name, wrap(text, width - 6, break_on_hyphens=False)) for name, text in rows]
        return [line for name, text in texts for line in (f"  {name.strip()}", *(f"      {each}" for each in text))]
    lines = []
    for name, text in rows:
        first, *more = wrap(text, width - indent, break_on_hyphens=False) or [""]
        lines += [(f"  {name}".ljust(indent) + first).rstrip(), *(" " * indent + line for line in more)]
    return lines


def _with_choices(text: str, choices: tuple[str, ...]) -> str:
    return f"{text}: {', '.join(choices)}" if choices else text


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _fitted(width: int | None) -> int:
    return WIDTH if width is None else min(width, WIDTH_MAX)
