#!/usr/bin/env python3
"""The man page, from the same declarations as `dibs --help`: python -m scripts.dev.pages.man writes docs/man/dibs.1.

A test compares the file with the code. The wheel puts it where `man dibs` finds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dibs._version import __version__
from dibs.cli.framework.help import aliases, sentence, usage_line
from dibs.cli.framework.rank import parts_with_commands
from dibs.cli.framework.registry import load, shipped_names, summary_of
from dibs.cli.framework.spec import GLOBAL
from scripts.dev.pages.reference import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.cli.framework.spec import Command, Option

PAGE = Path(__file__).parents[3] / "docs" / "man" / "dibs.1"

ABOUT = (
    "One owner per job for distributed workers and agent swarms. Claim a job by its name; one worker gets it, the "
    "others learn who has it, wait in line, or go on to the next. A claim is a lease: it lasts while its owner "
    "heartbeats, and is free again when the owner disappears. Without a server and without settings, every command "
    "works on an SQLite file of yours."
)
FILES = (
    ("~/.config/dibs/config.toml", "your settings: url, namespace, owner, token_file, timeout"),
    ("~/.local/state/dibs/", "the store, and the token of your own server"),
    (".dibs.toml", "policy of the git hooks, and the namespace of path: and repo: names, for a whole team"),
)


def page() -> str:
    lines = [f'.TH DIBS 1 "" "dibs {__version__}" "User Commands"']
    lines += [".SH NAME", "dibs \\- one owner per job"]
    lines += [".SH SYNOPSIS", ".B dibs", ".I command", "[arguments] [flags]"]
    lines += [".SH DESCRIPTION", _text(ABOUT)]
    for part in parts_with_commands():
        lines += [f".SH {_quoted(f'commands: {part.title}'.upper())}"]
        for name in part.commands:
            lines += _command(load(name))
    lines += [".SH FLAGS OF EVERY COMMAND", *_options(GLOBAL)]
    lines += [".SH EXIT STATUS"]
    for code, meaning in MEANINGS.items():
        lines += [".TP", f".B {code}", _text(meaning.replace("`", ""))]
    lines += [".SH ENVIRONMENT"]
    for variable, flags in sorted(_variables().items()):
        lines += [".TP", f".B {_text(variable)}", _text(f"the same as {', '.join(flags)}")]
    lines += [".SH FILES"]
    for path, what in FILES:
        lines += [".TP", f".I {_text(path)}", _text(what)]
    lines += [".SH SEE ALSO", ".BR flock (1)"]
    return "\n".join(lines) + "\n"


def _command(command: Command) -> Iterable[str]:
    summary = sentence(summary_of(command.name))
    lines = [f".SS {_quoted(f'dibs {command.name}')}", _text(summary)]
    if command.about:
        lines += [".PP", _text(command.about)]
    others = aliases(command.name)
    if others:
        lines += [".PP", _text(f"Also: {', '.join(others)}.")]
    lines += [".PP", ".RS", _text(usage_line(command)), ".RE", *_options(command.options)]
    for line, what in command.examples:
        lines += [
            ".PP",
            _text(f"{what[0].upper()}{what[1:]}:"),
            ".PP",
            ".nf",
            ".RS",
            _text(line),
            ".RE",
            ".fi",
        ]
    codes = ", ".join(f"{code}: {what}" for code, what in command.exits)
    return [*lines, ".PP", _text(f"Exit status {codes}.")]


def _options(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        names = ", ".join(filter(None, (option.short, option.flag)))
        value = f" \\fI{_text(option.value)}\\fR" if option.value else ""
        if option.value and option.bare is not None:
            value = f"[=\\fI{_text(option.value)}\\fR]"
        choices = f": {', '.join(option.choices)}" if option.choices else ""
        lines += [".TP", f"\\fB{_text(names)}\\fR{value}", _text(option.help + choices)]
    return lines


def _variables() -> dict[str, list[str]]:
    """Which flags each variable stands for."""
    found: dict[str, list[str]] = {}
    options = [
        *GLOBAL,
        *(option for name in shipped_names() for option in load(name).options),
    ]
    for option in options:
        if option.env and option.flag not in found.setdefault(option.env, []):
            found[option.env].append(option.flag)
    return found


def _text(text: str) -> str:
    """Text escaped for roff: it holds no request and no escape."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe[:1] in (".", "'") else safe


def _quoted(text: str) -> str:
    return '"' + _text(text) + '"'


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
