"""Specifications of commands. The parser, the help, the completions and the reference page are made from them.

These are plain classes instead of `argparse`, whose import takes a tenth of the time of a whole `dibs claim`, and
whose usage errors make no suggestions and cannot be JSON.
"""

from __future__ import annotations

from dibs.base.cheap import Callable
from dibs.cli.framework.context import Call
from dibs.cli.framework.result import Answer


class Option:
    """A flag, written as help shows it: `--json` is a switch, `--ttl TIME` has a value, `-w, --wait TIME` a short form.
    `field` is the request and the field that it gives (`acquire.slots`): its help is what that field is declared to
    mean. `env` is the variable that gives its default. `key` is the key of its value: the flag's own word, unless an
    argument has the same. `filled`: an empty value is refused, because it comes from a shell variable that was not set.
    `bare` is the value of a flag that was given without one: its value is optional, and written with `=` only, because
    the next word may be a name. `required` names a group of flags, one of which must be given; a group may have only
    one flag."""

    def __init__(
        self,
        flag: str,
        help_: str = "",
        *,
        field: str = "",
        env: str | None = None,
        choices: tuple[str, ...] = (),
        completes: str | None = None,
        key: str | None = None,
        filled: bool = False,
        bare: str | None = None,
        required: str | None = None,
    ) -> None:
        short, _, rest = flag.rpartition(", ")
        self.flag, _, value = rest.partition(" ")
        self.short = short or None
        self.value = value or None
        self._help = help_
        self.field = field
        self.env = env
        self.choices = choices
        self.completes = completes
        self.key = key or self.flag[2:].replace("-", "_")
        self.filled = filled
        self.bare = bare
        self.required = required

    @property
    def help(self) -> str:
        if self._help:
            return self._help
        from dibs.wire.request_fields import flag_text  # only who asks for help reads it

        return flag_text(*self.field.split("."))

    @property
    def shown(self) -> str:
        if self.value is None:
            return self.flag
        return f"{self.flag} {self.value}" if self.bare is None else f"{self.flag}[={self.value}]"


ONE, MAYBE, MANY, ANY, REST = "one", "maybe", "many", "any", "rest"
_SHOWN = {ONE: "{}", MAYBE: "[{}]", MANY: "{}...", ANY: "[{}...]", REST: "-- {}..."}


class Argument:
    """A positional argument. `completes` says what a shell may offer for it: "job", "session", "context" or
    None. `takes` says
    how many words: ONE, or for a command's last argument MAYBE (one or none), MANY (one or more), ANY (none or more),
    REST (all words after `--`)."""

    def __init__(
        self, name: str, help_: str, *, choices: tuple[str, ...] = (), completes: str | None = None, takes: str = "one"
    ) -> None:
        self.name = name
        self.help = help_
        self.choices = choices
        self.completes = completes
        self.takes = takes

    @property
    def key(self) -> str:
        return self.name.lower()

    @property
    def shown(self) -> str:
        return _SHOWN[self.takes].format(self.name)


class Command:
    """One command, with its arguments and options. Who finds it by its `name`, which may be two words (`token list`),
    sets that. `summary` is what a plugin's command does, in half a line; those of dibs itself are in the registry.
    `examples` are lines to type, each with what it does; `exits` its exit codes, each with what it means.
    `usage_exit` is the exit code for a usage error. `several` are the commands that take more than one of its argument,
    each with what it does. `usual` are the flags that its help shows first, if it has many."""

    def __init__(
        self,
        run: Callable[[Call], Answer],
        *parts: Argument | Option,
        summary: str = "",
        about: str = "",
        examples: tuple[tuple[str, str], ...] = (),
        exits: tuple[tuple[int, str], ...] = (),
        usage_exit: int = 64,
        several: tuple[tuple[str, str], ...] = (),
        usual: tuple[str, ...] = (),
    ) -> None:
        self.name = ""
        self.run = run
        self.summary = summary
        self.about = about
        self.examples = examples
        self.exits = exits
        self.arguments = tuple([part for part in parts if isinstance(part, Argument)])
        self.options = tuple([part for part in parts if isinstance(part, Option)])
        self.usage_exit = usage_exit
        self.several = several
        self.usual = usual

    @property
    def required(self) -> list[list[Option]]:
        """The groups of flags, one of each of which must be given."""
        groups: dict[str, list[Option]] = {}
        for option in self.options:
            if option.required is not None:
                groups.setdefault(option.required, []).append(option)
        return list(groups.values())


JOBS = Argument("JOB", "the stable names of the work, such as issue-1842", completes="job", takes=MANY)
JOB = Argument("JOB", "the stable name of the work, such as issue-1842", completes="job")
NEW_JOB = Argument("JOB", "the stable name of the work, such as issue-1842")
STORE = Argument("URL", "the same as --url URL", takes=MAYBE)  # for commands about a whole store

URL = Option(
    "--url URL",
    "a server (http://, https://, unix://) or a store (sqlite:///path, git:origin); default: your own store",
    env="DIBS_URL",
)
CONTEXT = Option(
    "--context NAME",
    "a saved server, in place of --url; `dibs config contexts` lists them",
    env="DIBS_CONTEXT",
    completes="context",
    filled=True,
)
NAMESPACE = Option(
    "--namespace NAME", "separates the job names of one project from those of others", env="DIBS_NAMESPACE", filled=True
)
EXACT = Option("--exact", "take names as they are written, byte for byte; see `dibs name`")
TIMEOUT = Option("--timeout TIME", "how long a server may take to answer (default 10s)")
JSON = Option("--json", "print one JSON document for every outcome; also -o json")
QUIET = Option("-q, --quiet", "print only what a script needs, such as names, or nothing; also -o name")
WIDE = Option("--wide", "all columns, and nothing cut; also -o wide")
HELP = Option("-h, --help", "show this help")
VERSION = Option("-V, --version", "show the version; with --verbose also what it runs on, for a report")
GLOBAL = (URL, CONTEXT, NAMESPACE, EXACT, TIMEOUT, JSON, QUIET, HELP, VERSION)

# Flags of `dibs lock` that grite accepts anywhere; here they may come before the command's words, too.
LOCK_ACTOR = Option(
    "--actor NAME",
    "who you are: the same name is the same holder (default: the shell that runs the command)",
    env="DIBS_ACTOR",
)
DATA_DIR = Option("--data-dir FOLDER", "a folder that identifies you, as in grite", env="GRITE_HOME")
NO_DAEMON = Option("--no-daemon", "accepted but ignored: there is no daemon")
ANYWHERE = (LOCK_ACTOR, DATA_DIR, NO_DAEMON)
