"""The pages docs/reference/cli.md and exit-codes.md, made from the specifications and from the one table of codes.

`tests/cli/test_reference.py` compares them; DIBS_REWRITE=1 writes them anew.
"""

from __future__ import annotations

from dibs.cli.framework.help import aliases, sentence, usage_line
from dibs.cli.framework.registry import GROUPS, SUMMARIES, load
from dibs.cli.framework.spec import GLOBAL
from dibs.wire import codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.cli.framework.spec import Command, Option

_MADE = "<!-- Made from the code. To change it, change src/dibs/cli and run: DIBS_REWRITE=1 scripts/test tests/cli -->"

_OUTPUT = """\
Without a server and without settings, every command works on an SQLite file in your state folder
(`$XDG_STATE_HOME/dibs`, else `~/.local/state/dibs`), shared by all your processes. Where the machine has a service
of its own (`dibs serve --system`), all its users share that, and nobody needs to name it.

People get text on stdout, errors on stderr; colour only on a terminal and without `NO_COLOR`. Programs say `--json` and
get exactly one document on stdout, whatever happened, usage errors included:

```json
{"schema_version": 1, "ok": true, "data": {"...": "..."}}
{"schema_version": 1, "ok": false, "error": {"code": "held", "message": "...", "details": {}}, "data": {}}
{"schema_version": 1, "ok": false, "error": {"code": "lease_not_current", "message": "...", "details": {}}}
```

`ok` is true exactly when the exit code is 0. `data` is the reply as a server sends it. A no (`held`, `queued`, `done`,
`delayed`, `parked`, `free`) has `data`, too, so that `.data.owner` is who has the job whether you claimed it or looked
at it; `details` is the same document. `details` of an error is what its code and message do not say. A command that
took several jobs has `jobs`, one entry each with `name` and `ok`. Exit codes are on [their own page](exit-codes.md).

Times are written `90` (seconds), `30s`, `15m`, `2h`, `1d`. A job name that begins with a dash goes after `--`. Flags
of every command may stand before it or after it. A flag wins over its environment variable. `-s`, `-x`, `-n` and `-w`
mean what they mean in `flock`.

## Tokens

A server wants a bearer token. It is taken from `DIBS_TOKEN`, else from the file that `DIBS_TOKEN_FILE` names, else,
for a server on this machine, from the file that `dibs serve` made for you. There is no flag for it: other users of a
machine can read a command line.
"""


_SHARED = "They mean the same wherever a usage line below shows them. A command's own table has only what is its own."


def cli_page() -> str:
    shared = _shared_options()
    lines = ["# Commands", "", _MADE, "", _OUTPUT, "## Flags of every command", "", *_options(GLOBAL), ""]
    lines += ["## Flags of several commands", "", _SHARED, "", *_options(shared), ""]
    for _, title, names in GROUPS:
        lines += [f"## {title}", ""]
        for name in names:
            lines += _command(load(name), shared)
    return "\n".join(lines).rstrip() + "\n"


def _shared_options() -> list[Option]:
    """The flags that mean the same in several commands. The page explains them once."""
    seen: dict[Option, int] = {}
    for _, _, names in GROUPS:
        for name in names:
            seen.update({option: seen.get(option, 0) + 1 for option in load(name).options})
    return sorted([option for option, count in seen.items() if count > 1], key=lambda option: option.flag)


def _command(command: Command, shared: list[Option]) -> Iterable[str]:
    summary = sentence(SUMMARIES[command.name])
    lines = [f"### dibs {command.name}", "", summary, *([command.about] if command.about else []), ""]
    others = aliases(command.name)
    if others:
        lines += [f"Also: {', '.join(f'`{other}`' for other in others)}.", ""]
    lines += ["```", usage_line(command), "```", ""]
    own = [option for option in command.options if option not in shared]
    if own:
        lines += [*_options(own), ""]
    lines += ["```sh"]
    for what, line in command.examples:
        lines += [f"# {what}", line]
    lines += ["```", "", "| exit | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {what} |" for code, what in command.exits]
    return [*lines, ""]


def _options(options: Iterable[Option]) -> list[str]:
    lines = ["| flag | environment | meaning |", "| --- | --- | --- |"]
    for option in options:
        flag = f"`{option.shown}`"
        if option.short:
            flag = f"`{option.short}`, {flag}"
        choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
        lines.append(f"| {flag} | {f'`{option.env}`' if option.env else ''} | {option.help}{choices} |")
    return lines


MEANINGS = {
    codes.YES: "yes",
    codes.NO: "no: somebody else has it (`claim`), nobody has it (`owner`), the time is over (`wait`), "
    "the policy refuses it (`hook run`)",
    codes.NOT_YOURS: "it is not yours, or not any more: stop the work",
    codes.DEADLOCK: "waiting would deadlock",
    codes.DONE: "it was done already",
    codes.LOST: "lost while holding; the work was stopped (`run`, `session run`, `hold`)",
    codes.USAGE: "what was asked for cannot be: a flag, a name, a time, a URL",
    codes.UNREACHABLE: "the store or the server cannot be reached or used",
    codes.FAULT: "our fault",
    codes.TRY_LATER: "not now: try again later",
    codes.NOT_ALLOWED: "who you are does not permit it",
    126: "`run`, `session run`: the command cannot be run",
    127: "`run`, `session run`: there is no such command",
    130: "interrupted from the keyboard; 128+n by signal n",
}


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
        lines.append(f"| {exit_code} | {meaning} | {', '.join(f'`{word}`' for word in words)} |")
    lines += [
        "",
        "## Error codes",
        "",
        "| `code` | HTTP status | exit | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{row.word}` | {row.http} | {row.exit} | {row.title} |" for row in codes.CODES.values()]
    lines += ["", _AFTER, *_lock_codes()]
    return "\n".join(lines) + "\n"


def _lock_codes() -> list[str]:
    """`dibs lock` speaks grite's language."""
    rows: dict[tuple[str, int], list[str]] = {}
    for word, said in (*codes.LOCK_CODES.items(), ("upstream_unavailable", codes.SERVER_AWAY)):
        rows.setdefault(said, []).append(f"`{word}`")
    rows[codes.SERVER_AWAY].append("of a server")
    lines = ["## Exit codes of `dibs lock`", "", _LOCK, "", "| exit | `code` | for |", "| --- | --- | --- |"]
    ordered = sorted(rows.items(), key=lambda row: row[0][1])
    return [*lines, *(f"| {said[1]} | `{said[0]}` | {', '.join(words)} |" for said, words in ordered)]


_LOCK = """\
`dibs lock` gives the codes and exit codes of grite, so that scripts written for it need no change. A word that was
typed wrongly is 2. On the left what it gives, on the right what other commands of dibs say."""


_AFTER = """\
`owner` gives 1 also for a job that rests (`delayed`), because nobody has it; `claim` gives 75 for it,
because trying again later helps. A field of the wrong type is `invalid_input` with HTTP status 422.
"""
