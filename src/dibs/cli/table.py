"""Which commands there are, and the one module to import for each. `dibs --help` needs no more than this."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.spec import Command

# In the order in which people meet them: (title, commands).
GROUPS = (
    ("Work", ("claim", "claim-any", "claim-all", "heartbeat", "release", "transfer", "wait", "git push")),
    (
        "Sessions",
        ("session run", "session open", "session keep", "session end", "session show", "session list"),
    ),
    ("Look", ("owner", "list", "history")),
    ("Run", ("serve", "token new", "break", "free", "gc", "doctor", "completion")),
)
_MODULES = {
    "claim": "claims",
    "claim-any": "many",
    "claim-all": "many",
    "heartbeat": "claims",
    "release": "claims",
    "transfer": "handing",
    "wait": "watching",
    "git push": "pushing",
    "session run": "running",
    "session open": "sessions",
    "session keep": "sessions",
    "session end": "sessions",
    "session show": "sessions",
    "session list": "sessions",
    "owner": "looking",
    "list": "looking",
    "history": "looking",
    "serve": "serving",
    "token new": "tokens",
    "break": "operating",
    "free": "operating",
    "gc": "operating",
    "doctor": "doctor",
    "completion": "completion",
}
SUMMARIES = {
    "claim": "claim a job, or learn who has it",
    "claim-any": "claim the first free one of several jobs",
    "claim-all": "claim several jobs, all or none",
    "heartbeat": "say that you are still at it, and how far you got",
    "release": "let a job go, perhaps as done",
    "transfer": "hand a job to another owner",
    "wait": "wait until nobody has a job",
    "git push": "push a branch only if the job is still yours",
    "session run": "run a command inside a session of its own",
    "session open": "open a session and print its id",
    "session keep": "say that the session is alive",
    "session end": "end a session and let go of all it holds",
    "session show": "what a session holds and waits for",
    "session list": "all open sessions of yours",
    "owner": "who has a job, since when, for how long still",
    "list": "all jobs that are claimed",
    "history": "what happened to a job",
    "serve": "serve the store over HTTP",
    "token new": "make a bearer token for a tokens file",
    "break": "take a job away from its owner",
    "free": "let a parked job be claimed again",
    "gc": "do now what is due: expiries, forgetting of idle jobs",
    "doctor": "look at the set-up and say what is wrong",
    "completion": "print the completion script of a shell",
}
# What the first word of two stands for.
FAMILIES = {
    "session": "one run of one worker, and what ends with it",
    "token": "make bearer tokens",
    "git": "a branch and the claim on its work, in one push",
}
NAMES = tuple(_MODULES)


def load(name: str) -> Command:
    """The command called `name`."""
    module = __import__(f"dibs.cli.{_MODULES[name]}", fromlist=("COMMANDS",))
    command: Command = module.COMMANDS[name]
    return command
