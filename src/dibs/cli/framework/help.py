"""Help texts, made from the specifications of commands. The reference page is made from the same."""

from __future__ import annotations

from textwrap import wrap

from dibs.base.cheap import Iterable
from dibs.cli.framework.registry import ALIASES, GROUPS, LOOP, SUMMARIES
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
        *_columns([(name, SUMMARIES[name]) for name in LOOP], width),
        "",
        "More commands, each group with `dibs help GROUP`:",
        *_columns([*_groups_in_short(), (ALL, "every command")], width),
        "",
        *wrap(f"Every command takes {flags}; `dibs COMMAND --help` explains its flags.", width),
        "",
        "  dibs claim issue-1842 --ttl 2m        # yours, or who has it",
        "  dibs claim issue-1842 --wait 5m       # in line, first come first served",
        "  dibs run issue-42 -- ./fix.sh         # claim, run, heartbeat, release",
    ]
    return "\n".join(lines)


def group_page(word: str, width: int | None = None) -> str:
    """`dibs help GROUP`, or of all groups."""
    width = _fitted(width)
    lines: list[str] = []
    for each, title, names in GROUPS:
        if word in (each, ALL):
            lines += [f"{title}:", *_columns([(name, SUMMARIES[name]) for name in names], width), ""]
    return "\n".join([*lines, "`dibs COMMAND --help` shows flags, examples and exit codes."])


def _groups_in_short() -> list[tuple[str, str]]:
    """Each group with its commands but those of the loop; of a family the first word."""
    words: dict[str, dict[str, None]] = {}
    for word, _, names in GROUPS:
        words.setdefault(word, {}).update(dict.fromkeys([name.split(" ")[0] for name in names if name not in LOOP]))
    return [(word, ", ".join(firsts)) for word, firsts in words.items()]


def page(command: Command, width: int | None = None) -> str:
    """`dibs COMMAND --help`, for a terminal of this width; None is that of a pipe."""
    width = _fitted(width)
    lines = [*_usage(command, width), ""]
    if command.name in SUMMARIES:  # those of other packages have none
        lines += wrap(sentence(SUMMARIES[command.name]), width)
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
        first, *more = wrap(text, width - indent, break_on_hyphens=False)
        lines += [f"  {name}".ljust(indent) + first, *(" " * indent + line for line in more)]
    return lines


def _with_choices(text: str, choices: tuple[str, ...]) -> str:
    return f"{text}: {', '.join(choices)}" if choices else text


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _fitted(width: int | None) -> int:
    return WIDTH if width is None else min(width, WIDTH_MAX)
