"""Which commands there are, and the one module to import for each. `dibs --help` needs no more than this."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.spec import Command

# In the order in which people meet them: (title, commands).
GROUPS = (
    ("Work", ("claim", "heartbeat", "release")),
    ("Look", ("owner", "list", "history")),
    ("Run", ("serve", "token new", "break", "gc", "doctor", "completion")),
)
_MODULES = {
    "claim": "claims",
    "heartbeat": "claims",
    "release": "claims",
    "owner": "looking",
    "list": "looking",
    "history": "looking",
    "serve": "serving",
    "token new": "tokens",
    "break": "operating",
    "gc": "operating",
    "doctor": "doctor",
    "completion": "completion",
}
SUMMARIES = {
    "claim": "claim a job, or learn who has it",
    "heartbeat": "say that you are still at it, and how far you got",
    "release": "let a job go, perhaps as done",
    "owner": "who has a job, since when, for how long still",
    "list": "all jobs that are claimed",
    "history": "what happened to a job",
    "serve": "serve the store over HTTP",
    "token new": "make a bearer token for a tokens file",
    "break": "take a job away from its owner",
    "gc": "do now what is due: expiries, forgetting of idle jobs",
    "doctor": "look at the set-up and say what is wrong",
    "completion": "print the completion script of a shell",
}
NAMES = tuple(_MODULES)


def load(name: str) -> Command:
    """The command called `name`."""
    module = __import__(f"dibs.cli.{_MODULES[name]}", fromlist=("COMMANDS",))
    command: Command = module.COMMANDS[name]
    return command
