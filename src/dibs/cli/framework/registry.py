"""The commands that dibs itself has: the module of each, and what it does. Plugins bring the others.

A plugin is a package with entry points of the group `dibs.commands`: one that is installed beside dibs, or a folder of
dibs' own wheel (`agents`, `compat`, `testing`). `rank.py` says in which order help shows them all.
"""

from __future__ import annotations

from dibs.base.cheap import Any
from dibs.base.errors import InvalidInput
from dibs.cli.framework.spec import Command

# The module below `dibs.cli.commands`, and what the command does. One constant, because every command reads it.
_COMMANDS = {
    "run": ("run", "run a command while a job is yours"),
    "elect": ("run", "run a command while you lead"),
    "claim": ("claim", "claim a job, or see who has it"),
    "claim-any": ("claim_many", "claim the first free one of several jobs"),
    "claim-all": ("claim_many", "claim several jobs, all or none"),
    "heartbeat": ("release", "renew a claim, and record how far the work has come"),
    "once": ("once", "run a step that must not be repeated blindly"),
    "release": ("release", "release a job, and mark it as done or failed if you want"),
    "transfer": ("release", "hand a job to another owner"),
    "wait": ("wait", "wait until nobody has a job"),
    "hold": ("hold", "hold a job until told to stop, and print what happens"),
    "session run": ("run", "run a command inside a session of its own"),
    "session open": ("session", "open a session and print its id"),
    "session keep": ("session", "keep a session alive"),
    "session end": ("session", "end a session and release all it holds"),
    "session show": ("session", "show what a session holds and waits for"),
    "session list": ("session", "list your open sessions"),
    "next": ("numbers", "get a number that nobody else gets"),
    "owner": ("inspect", "show who has a job, since when and for how long"),
    "list": ("list", "list the jobs that are claimed"),
    "agents": ("agents", "list the agents: who works where, and on what"),
    "top": ("list", "watch the board: who has what, and for how long still"),
    "history": ("inspect", "show what happened to a job, or to all"),
    "overdue": ("inspect", "say whether a job succeeded in time, also by the exit code"),
    "watch": ("inspect", "show what happens to jobs, as it happens"),
    "name": ("admin", "show the one name of a job, and why it is that"),
    "demo": ("demo", "watch workers race, one die and another take over"),
    "serve": ("serve", "serve the store over HTTP"),
    "break": ("admin", "take a job away from its owner"),
    "free": ("admin", "let a parked job be claimed again"),
    "close": ("admin", "let nobody be granted a job for a while, for maintenance"),
    "open": ("admin", "end a closure early"),
    "pool set": ("admin", "say how many owners a job may have at once, or pause it"),
    "pool list": ("admin", "list the pools"),
    "pool remove": ("admin", "make a pool an ordinary job again"),
    "gc": ("admin", "sweep now: end expired claims, forget idle jobs"),
    "migrate": ("admin", "bring a store's format up to this version of dibs"),
    "export": ("admin", "copy a whole store as text, to move it"),
    "import": ("admin", "bring an exported copy into a store"),
    "backup": ("admin", "copy an SQLite store to a file, while it is in use"),
    "restore": ("admin", "replace an SQLite store by a backup"),
    "webhook add": ("webhook", "send events to a URL as they happen"),
    "webhook list": ("webhook", "list webhooks"),
    "webhook show": ("webhook", "show how the deliveries of a webhook stand"),
    "webhook remove": ("webhook", "remove a webhook"),
    "webhook replay": ("webhook", "send dead letters again, or all events after one"),
    "webhook test": ("webhook", "send a test delivery now"),
    "doctor": ("doctor", "check the settings, and say what is wrong"),
    "config show": ("config", "show the settings that apply, and where each comes from"),
    "config contexts": ("config", "list the saved servers"),
    "config use": ("config", "use another saved server from now on"),
    "config get": ("config", "print one setting"),
    "config set": ("config", "save a setting in your config.toml"),
    "config unset": ("config", "remove a setting from your config.toml"),
    "completion": ("completion", "print the completion script of a shell"),
    "login": ("config", "use a server from now on, and save your token for it"),
    "logout": ("config", "forget a saved server and its token"),
    "token create": ("token", "make a bearer token in the store"),
    "token list": ("token", "list the tokens of the store, or of a tokens file"),
    "token rotate": ("token", "replace a token by a new one"),
    "token revoke": ("token", "revoke somebody's tokens"),
    "token limit": ("token", "set limits for the holder of a token"),
    "token import": ("token", "copy the tokens of a tokens file into the store"),
    "token show": ("token", "print the token of your own server"),
}
NAMES = tuple(_COMMANDS)
# What the first word of a two-word command stands for. Of a plugin's family the first command says it.
FAMILIES = {
    "session": "one run of one worker, and what ends with it",
    "token": "tokens for access to a server",
    "config": "your settings, and where they come from",
    "webhook": "URLs that are told what happens",
    "pool": "jobs whose slots an operator sets",
}
# Aliases and the commands they stand for. Of several commands, the first that accepts the other words is used.
ALIASES = {
    "acquire": ("claim",),
    "inspect": ("owner",),
    "ls": ("list",),
    "renew": ("heartbeat",),
    "status": ("owner", "list"),
    "unlock": ("release",),
}
# What the first word of a family means alone.
ALONE = {"config": "config show"}
# Words that people try, and what says it here.
MEANT = {
    "context": "dibs config contexts, or dibs config use NAME",
    "contexts": "dibs config contexts",
    "delete": "dibs release JOB, or dibs break JOB --reason WHY",
    "describe": "dibs owner JOB",
    "done": "dibs release JOB --done",
    "fail": "dibs release JOB --failed",
    "get": "dibs owner JOB, or dibs list",
    "info": "dibs owner JOB",
    "init": "dibs claim JOB; nothing has to be set up before",
    "kill": "dibs break JOB --reason WHY",
    "logs": "dibs history JOB",
    "ps": "dibs list",
    "show": "dibs owner JOB",
    "stop": "dibs release JOB, or dibs break JOB --reason WHY",
    "take": "dibs claim JOB",
    "thaw": "dibs export --unfreeze",
    "token-floor": "dibs serve --token-floor N",
    "use": "dibs config use NAME",
    "who": "dibs owner JOB",
}

# The variables by which coding agents name their session to the commands they run.
AGENT_SESSIONS = ("CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "GEMINI_SESSION_ID", "COPILOT_AGENT_SESSION_ID")
# A command with one of these may be an agent's. Gemini CLI and opencode give their shells nothing else; the notes of
# their hooks say which agent it is.
AGENT_SIGNS = (*AGENT_SESSIONS, "GEMINI_CLI", "OPENCODE")
GROUP = "dibs.commands"  # of entry points


def load(name: str) -> Command:
    """The command called `name`: one of dibs' own, else a plugin's. Raises InvalidInput and MissingExtra."""
    if name in _COMMANDS:
        module = f"dibs.cli.commands.{_COMMANDS[name][0]}"
        found: Any = __import__(module, fromlist=("COMMANDS",)).COMMANDS
    else:
        from dibs.base.plugins import plugin

        found = plugin(GROUP, name.replace(" ", "."), f"the command {name}")
    if isinstance(found, dict):
        found = found.get(name)
    if not isinstance(found, Command):
        raise InvalidInput(f"The command {name} is no dibs.cli.framework.spec.Command. Repair its package.")
    found.name = name
    return found


def family_of(word: str) -> list[str]:
    """The commands of two words of which this is the first. No command of ours is, so other packages are not asked."""
    if word in NAMES or " " in word:
        return []
    own = [name for name in NAMES if name.startswith(word + " ")]
    return own or [name for name in names_of(word) if name != word]


def names_of(word: str) -> list[str]:
    """The commands of plugins that begin with this word: of dibs' own wheel, else of other packages."""
    from dibs.base.plugins import registered

    return [each.replace(".", " ") for each in registered(GROUP, word)]


def shipped_names() -> tuple[str, ...]:
    """All commands of dibs' own wheel. Of its plugins only the generated table is read."""
    from dibs.base.shipped import SUMMARIES

    return (*NAMES, *SUMMARIES)


def summary_of(name: str) -> str:
    """The summary of a command of dibs' own wheel. The summary of another package's command is in the `Command`."""
    if name in _COMMANDS:
        return _COMMANDS[name][1]
    from dibs.base.shipped import SUMMARIES

    return SUMMARIES.get(name, "")
