"""The pages docs/reference/cli.md and exit-codes.md, made from the specifications and from the one table of codes.

`tests/cli/test_reference.py` compares them; DIBS_REWRITE=1 writes them anew.
"""

from __future__ import annotations

from dibs.cli.framework.help import aliases, sentence, short_usage
from dibs.cli.framework.rank import parts_with_commands
from dibs.cli.framework.registry import load, summary_of
from dibs.cli.framework.spec import GLOBAL
from dibs.compat.grite import documents
from dibs.wire import codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.cli.framework.spec import Command, Option

_MADE = "<!-- Made from the code. To change it, change src/dibs/cli and run: DIBS_REWRITE=1 scripts/test tests/cli -->"

_OUTPUT = """\
`dibs COMMAND --help` and the man page show one command whole, with examples. This page says once what several commands
share: flags [below](#flags-of-several-commands), sentences and exit codes at the first command that has them.

Without a server and without settings, every command works on an SQLite file in your state folder
(`$XDG_STATE_HOME/dibs`, else `~/.local/state/dibs`), shared by all your processes. Where the machine has a service
of its own (`dibs serve --system`), all its users share that. A server wants a [token](environment.md#tokens).

People get text on stdout, errors on stderr; colour only on a terminal and without `NO_COLOR`. Programs say `--json` and
get exactly one document on stdout, whatever happened, usage errors included:

```json
{"schema_version": 1, "ok": true, "data": {"...": "..."}}
{"schema_version": 1, "ok": false, "error": {"code": "held", "message": "...", "details": {}}, "data": {}}
```

`ok` is true exactly when the exit code is 0. `data` is the reply as a server sends it. A no (`held`, `queued`, `done`,
`delayed`, `parked`, `free`) has it, too: `.data.owner` is who has the job whether you claimed it or looked at it.
`details` is then the same document. An error has no `data`; its `details` are what code and message do not say. A
command that took several jobs has `jobs`, one entry each with `name` and `ok`.

Any command exits with 0 for success, and with [64, 69, 70, 77, 126 or 127](exit-codes.md) and a message for what went
wrong. Below are its other codes, and 0 where it means more. Only `dibs lock` has
[its own](exit-codes.md#exit-codes-of-dibs-lock).

Times are written `90` (seconds), `30s`, `15m`, `2h`, `1d`. A job name that begins with a dash goes after `--`. Flags
of every command may stand before it or after it. `-s`, `-x`, `-n` and `-w` mean what they mean in `flock`.
"""
# Exit codes that mean the same for every command.
GENERAL = (codes.USAGE, codes.UNREACHABLE, codes.INTERNAL, codes.NOT_ALLOWED, 126, 127)
# As many words as exit code 0 may have that says no more than that it worked.
_PLAIN_WORDS = 6


def cli_page() -> str:
    page = _Page()
    lines = ["# Commands", "", _MADE, "", _OUTPUT, "## Flags of every command", "", *_options(GLOBAL), ""]
    lines += ["## Flags of several commands", "", *_shared([*page.shared.values()]), ""]
    for part in parts_with_commands():
        lines += [f"## {part.title}", ""]
        for name in part.commands:
            lines += page.command(load(name))
    return "\n".join(lines).rstrip() + "\n"


class _Page:
    """Remembers what was said, and at which command, to say it once."""

    def __init__(self) -> None:
        self.shared = _shared_options()
        self._said: dict[object, str] = {}

    def command(self, command: Command) -> list[str]:
        others = [f"`{other}`" for other in aliases(command.name)]
        also = [f"Also: {', '.join(others)}."] if others else []
        summary = " ".join([*_usage(command), sentence(summary_of(command.name)), *self._about(command), *also])
        own = [option for option in command.options if _said(option) not in self.shared]
        again = [f"`{option.flag}`" for option in command.options if _said(option) in self.shared]
        flags = [*_options(own), *([f"- also {', '.join(again)}"] if again else [])]
        parts = ([f"### dibs {command.name}"], [summary], flags, self._exits(command))
        return [line for part in parts if part for line in [*part, ""]]

    def _about(self, command: Command) -> list[str]:
        """The sentences that no command before had, and where the others are."""
        sentences = command.about.removesuffix(".").split(". ") if command.about else []
        first = {self._said.setdefault(each, command.name) for each in sentences} - {command.name}
        new = [f"{each}." for each in sentences if self._said[each] == command.name]
        return [*new, *(f"The rest as {_link(name)}." for name in sorted(first))]

    def _exits(self, command: Command) -> list[str]:
        parts: list[str] = []
        elsewhere: dict[str, list[str]] = {}
        for code, what in sorted(command.exits):
            first = self._said.setdefault((code, what), command.name)
            if code in GENERAL or (code == codes.YES and len(what.split()) <= _PLAIN_WORDS):
                continue
            if first == command.name:
                parts.append(f"{code} {what}")
            else:
                elsewhere.setdefault(first, []).append(str(code))
        parts += [f"{', '.join(numbers)} as {_link(first)}" for first, numbers in elsewhere.items()]
        return [f"Exits: {'; '.join(parts)}."] if parts else []


def _link(name: str) -> str:
    return f"[{name}](#dibs-{name.replace(' ', '-')})"


def _usage(command: Command) -> list[str]:
    """What follows the name on a command line, but for flags that may be left out."""
    words = short_usage(command).removesuffix(" [flags]").removeprefix(f"dibs {command.name}").strip()
    return [f"`{words}`:"] if words else []


def _shared_options() -> dict[tuple[object, ...], tuple[Option, list[str]]]:
    """The flags that mean the same in several commands, and these commands. The page explains them once."""
    users: dict[tuple[object, ...], tuple[Option, list[str]]] = {}
    for name in [name for part in parts_with_commands() for name in part.commands]:
        for option in load(name).options:
            users.setdefault(_said(option), (option, []))[1].append(name)
    return {said: each for said, each in users.items() if len(each[1]) > 1}


def _shared(shared: list[tuple[Option, list[str]]]) -> list[str]:
    """Of a flag that has several meanings, each but the most usual names its commands."""
    usual: dict[str, list[str]] = {}
    for option, names in shared:
        usual[option.flag] = max(usual.get(option.flag, []), names, key=len)
    lines = []
    for option, names in sorted(shared, key=lambda each: each[0].flag):
        [line] = _options([option])
        lines.append(line if names is usual[option.flag] else f"{line} (`{'`, `'.join(names)}`)")
    return lines


def _said(option: Option) -> tuple[object, ...]:
    return option.shown, option.help, option.env


def _options(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        flag = f"`{option.shown}`"
        if option.short:
            flag = f"`{option.short}`, {flag}"
        choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
        lines.append(f"- {flag}{f' (`{option.env}`)' if option.env else ''}: {option.help}{choices}")
    return lines


MEANINGS = {
    codes.YES: "yes",
    codes.NO: "no: somebody else has it (`claim`), nobody has it (`owner`), the time is over (`wait`), "
    "the policy refuses it (`hook run`)",
    codes.NOT_YOURS: "it is not yours, or not any more: stop the work",
    codes.DEADLOCK: "waiting would deadlock",
    codes.DONE: "it was done already",
    codes.REPLACED: "a newer claim of the same group waits instead (`--replaces`)",
    codes.OVERDUE: "it did not succeed in time (`overdue`)",
    codes.IN_DOUBT: "it is in doubt whether a step happened (`once`)",
    codes.UNPROVED: "no violation, and something that was to be raced never happened (`verify`)",
    codes.LOST: "lost while holding; the work was stopped (`run`, `session run`, `hold`)",
    codes.USAGE: "what was asked for cannot be: a flag, a name, a time, a URL",
    codes.UNREACHABLE: "the store or the server cannot be reached or used",
    codes.INTERNAL: "a bug in dibs",
    codes.TRY_LATER: "not now: try again later",
    codes.NOT_ALLOWED: "who you are does not permit it",
    126: "`run`, `session run`: the command cannot be run",
    127: "`run`, `session run`: there is no such command",
    130: "interrupted from the keyboard; 128+n by signal n",
}


# Words that only the answer of one command has.
_ONE_COMMAND = {codes.OVERDUE: "overdue", codes.IN_DOUBT: "in_doubt", codes.UNPROVED: "unproved"}


def exit_codes_page() -> str:
    """Each exit code with what leads to it."""
    lines = [
        "# Exit codes",
        "",
        _MADE,
        "",
        "| exit | meaning | `code` with `--json` |",
        "| --- | --- | --- |",
    ]
    for exit_code, meaning in MEANINGS.items():
        rows = [*codes.OUTCOMES.values(), *codes.CODES.values()]
        words = dict.fromkeys(row.word for row in rows if row.exit == exit_code and exit_code != codes.YES)
        if exit_code == codes.NO:
            words["free"] = None
        if exit_code in _ONE_COMMAND:
            words[_ONE_COMMAND[exit_code]] = None
        lines.append(f"| {exit_code} | {meaning} | {', '.join(f'`{word}`' for word in words)} |")
    lines += ["", _AFTER, *_lock_codes()]
    return "\n".join(lines) + "\n"


def _lock_codes() -> list[str]:
    """`dibs lock` speaks grite's language."""
    rows: dict[tuple[str, int], list[str]] = {}
    for word, (said, exit_code) in (
        *documents.LOCK_CODES.items(),
        ("upstream_unavailable", documents.SERVER_AWAY),
    ):
        rows.setdefault(("the same" if said == word else f"`{said}`", exit_code), []).append(f"`{word}`")
    rows[f"`{documents.SERVER_AWAY[0]}`", documents.SERVER_AWAY[1]].append("of a server")
    lines = ["## Exit codes of `dibs lock`", "", _LOCK, "", "| exit | `code` | for |", "| --- | --- | --- |"]
    ordered = sorted(rows.items(), key=lambda row: row[0][1])
    return [*lines, *(f"| {said[1]} | {said[0]} | {', '.join(words)} |" for said, words in ordered)]


_LOCK = """\
`dibs lock` gives the codes and exit codes of grite, so that scripts written for it need no change. A word that was
typed wrongly is 2. On the left what it gives, on the right what other commands of dibs say."""


_AFTER = """\
What each code means, and its HTTP status: [codes](http.md#codes). `owner` gives 1 also for a job that rests
(`delayed`), because nobody has it; `claim` gives 75 for it, because trying again later helps.
"""
