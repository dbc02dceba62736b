"""completion: the shell scripts that call `dibs __complete`, and that hidden command itself.

The command reads names of jobs and sessions from the store. If the store fails or takes longer than LIVE_S, it offers
no names and prints no error. It never creates a store.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Callable, Mapping, Sequence
from dibs.base.errors import DibsError
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call
from dibs.cli.framework.help import ALL
from dibs.cli.framework.parse import OUTPUTS
from dibs.cli.framework.rank import RANKS, parts_with_commands
from dibs.cli.framework.registry import ALIASES, FAMILIES, load, shipped_names, summary_of
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import ANY, ANYWHERE, GLOBAL, MANY, REST, Argument, Command, Option
from dibs.client.embedded import default_store_url
from dibs.client.settings import Settings

Ask = Callable[[list[str]], str]  # takes the words of a command, returns its output


# What may come next on a command line, from the same specifications as the parser. Pure.
#
# A shell's script calls `dibs __complete -- WORDS`, with the word at the cursor last, and offers what is printed: a
# line a word, a tab, what it means. So the script never changes, and a command that is new is completed at once.

FILES = ":files"  # the line that lets a shell offer what it finds on disk
JOB, SESSION, CONTEXT, FILE = "job", "session", "context", "file"
_OUTPUT = Option("-o FORM", "how to print the answer", choices=tuple(OUTPUTS))


class TypedWords:
    """The words before the cursor, as far as they are understood. `pending` is the flag whose value comes next."""

    def __init__(self, words: Sequence[str]) -> None:
        self.command: Command | None = None
        self.family: str | None = None
        self.pending: Option | None = None
        self.given: dict[str, str] = {}  # flags and their values
        self.loose = 0  # how many arguments there are already
        self.is_rest = False
        self.is_unknown = False  # there is a word in it that is no command
        self.is_help = False  # `dibs help`: what follows is named, not called
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        flag, equals, value = word.partition("=")
        option = self.option(flag)
        if self.pending is not None:
            self.given[self.pending.flag], self.pending = word, None
        elif self.is_rest or (self.command is not None and not word.startswith("-")):
            self.loose += 1
        elif word == _OUTPUT.flag:
            self.pending = _OUTPUT
        elif word == "--":
            self.is_rest = self.command is not None
        elif not word.startswith("-"):
            self._name(word)
        elif option is not None and equals:
            self.given[option.flag] = value
        elif option is not None and option.value and option.bare is None:
            self.pending = option

    @property
    def options(self) -> tuple[Option, ...]:
        return (*(self.command.options if self.command is not None else ()), *GLOBAL)

    def option(self, flag: str) -> Option | None:
        return next((each for each in (*self.options, *ANYWHERE) if flag in (each.flag, each.short)), None)

    def _name(self, word: str) -> None:
        name = word if self.family is None else f"{self.family} {word}"
        name = ALIASES[name][0] if name in ALIASES else name
        names = shipped_names()
        if word == "help" and self.family is None and not self.is_help:
            self.is_help = True
        elif name in names:
            self.command = load(name)
        elif self.family is None and any(each.startswith(f"{word} ") for each in names):
            self.family = word
        else:
            self.is_unknown = True

    @property
    def argument(self) -> Argument | None:
        takes_rest = [each for each in self.command.arguments if each.takes == REST] if self.command else []
        plain = [each for each in self.command.arguments if each.takes != REST] if self.command else []
        if self.is_rest or not plain:
            return takes_rest[0] if self.is_rest and takes_rest else None
        if self.loose < len(plain):
            return plain[self.loose]
        return plain[-1] if plain[-1].takes in (MANY, ANY) else None


def offers(typed: TypedWords, current: str) -> tuple[list[tuple[str, str]], str | None]:
    """The words to offer, each with its meaning, and the kind of those that must be looked up: JOB, SESSION, CONTEXT or
    FILE."""
    if typed.pending is not None:
        return [(choice, "") for choice in typed.pending.choices], typed.pending.completes
    if current.startswith("-") and not typed.is_rest:
        return _flags(typed, current), None
    if typed.command is None:
        groups = _groups() if typed.is_help and typed.family is None else []
        return [] if typed.is_unknown else [*_names(typed.family), *groups], None
    if typed.is_help:
        return [], None
    argument = typed.argument
    if argument is None:
        return [], None
    return [(choice, "") for choice in argument.choices], FILE if argument.takes == REST else argument.completes


def _flags(typed: TypedWords, current: str) -> list[tuple[str, str]]:
    flag, equals, _ = current.partition("=")
    option = typed.option(flag)
    if equals:
        return [(f"{flag}={choice}", "") for choice in (option.choices if option is not None else ())]
    return [(each.flag, each.help) for each in typed.options]


def _names(family: str | None) -> list[tuple[str, str]]:
    if family is not None:
        seconds = [name for name in shipped_names() if name.startswith(family + " ")]
        return [(name.split(" ")[1], summary_of(name)) for name in seconds]
    firsts: dict[str, str] = {}
    for name in shipped_names():
        firsts.setdefault(name.split(" ")[0], summary_of(name))
    return [(first, FAMILIES.get(first, summary)) for first, summary in firsts.items()]


def _groups() -> list[tuple[str, str]]:
    """The topics of `dibs help` that are no commands. Of a word that is both, it shows the command."""
    parts = {part.word: part.title for part in parts_with_commands()}
    words = {name.split(" ")[0] for name in shipped_names()}
    return [(word, title) for word, title in {**parts, **RANKS, ALL: "Every command"}.items() if word not in words]


LIVE_S = 2.0
NAMES_MAX = 200

SHELLS = ("bash", "zsh", "fish")
SCRIPTS = os.path.join(os.path.dirname(__file__), "completion_scripts")


def completion(call: Call) -> Answer:
    shell = call.values["shell"]
    with open(os.path.join(SCRIPTS, f"dibs.{shell}"), encoding="utf-8") as file:
        script = file.read().rstrip("\n")
    return yes({"shell": shell, "script": script}, script, quiet=script)


def complete(words: list[str], env: Mapping[str, str], ask: Ask) -> Answer:
    """The words that a shell may offer for the last of `words`. `ask` runs a command of dibs."""
    *before, current = (words[1:] if words[:1] == ["--"] else words) or [""]
    typed = TypedWords(before)
    found, kind = offers(typed, current)
    if kind == FILE:
        found = [*found, (FILES, "")]
    elif kind is not None:
        found = [*found, *[(name, "") for name in _live(typed, kind, current, env, ask)]]
    shown = [f"{word}\t{help_}" for word, help_ in found if word.startswith(current) or word == FILES]
    text = "\n".join([FILES if each.startswith(FILES) else each for each in shown])
    return yes({}, text, quiet=text)


def _live(typed: TypedWords, kind: str, current: str, env: Mapping[str, str], ask: Ask) -> list[str]:
    """Names of jobs or contexts, or ids of sessions, that begin with `current`."""
    where = [f"{flag}={typed.given[flag]}" for flag in ("--url", "--context", "--namespace") if flag in typed.given]
    common = ["--quiet", "--timeout=1s", *where]
    asked = [["session", "list", *common] if kind == SESSION else ["config", "contexts", "--quiet"]]
    if kind == JOB:
        # Path jobs need a request of their own: they are in the repository's namespace.
        prefixes = [current, "path:"] if "path:".startswith(current) else [current]
        asked = [["list", *common, f"--limit={NAMES_MAX}", f"--prefix={prefix}"] for prefix in prefixes]
    try:
        if kind != CONTEXT and _is_new_store(typed, env):
            return []  # opening it would create it
        said = _in_time(lambda: [ask(words) for words in asked])
    except (DibsError, OSError):
        return []
    names = dict.fromkeys(name for text in said for name in text.splitlines())
    # A name that begins with a dash would be taken for a flag: `--url=…` sends the token where it says.
    return [name for name in names if name == plain(name) and not name.startswith("-")]


def _is_new_store(typed: TypedWords, env: Mapping[str, str]) -> bool:
    given = {"url": typed.given.get("--url"), "context": typed.given.get("--context")}
    url = Settings(given, env).url or default_store_url()
    return url.startswith("sqlite:") and not os.path.exists(url.removeprefix("sqlite://"))


class _TimeUp(BaseException):
    """No name came in time. A BaseException, so that no handler of errors catches it."""


def _in_time(ask: Callable[[], list[str]]) -> list[str]:
    import signal

    def up(number: int, frame: object) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, up)
    signal.setitimer(signal.ITIMER_REAL, LIVE_S)
    try:
        return ask()
    except _TimeUp:
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


COMMANDS = {
    "completion": Command(
        completion,
        Argument("SHELL", "which shell", choices=SHELLS),
        about=(
            "Completes commands, flags, the names of claimed jobs, sessions and contexts. A newer dibs needs no newer "
            "script."
        ),
        examples=(
            ("source <(dibs completion bash)", "for bash, in ~/.bashrc"),
            ('dibs completion zsh > "${fpath[1]}/_dibs"', "for zsh, once"),
            ("dibs completion fish > ~/.config/fish/completions/dibs.fish", "for fish, once"),
        ),
        exits=((0, "printed"),),
    ),
}
