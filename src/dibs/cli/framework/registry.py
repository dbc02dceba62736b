"""All commands: each once, with the module that defines it and what it does. `dibs --help` imports nothing else."""

from __future__ import annotations

from dibs.base.cheap import Any
from dibs.base.errors import InvalidInput
from dibs.cli.framework.spec import Command

# In the order of the reference: the word of `dibs help WORD`, its title, and its commands. Of each its module below
# `dibs`, and what it does. One constant, because every command reads it.
_COMMANDS = (
    (
        "work",
        "Work",
        (
            ("run", "cli.commands.run", "run a command while a job is yours"),
            ("elect", "cli.commands.run", "run a command while you lead"),
            ("claim", "cli.commands.claim", "claim a job, or see who has it"),
            ("claim-any", "cli.commands.claim_many", "claim the first free one of several jobs"),
            ("claim-all", "cli.commands.claim_many", "claim several jobs, all or none"),
            ("heartbeat", "cli.commands.release", "renew a claim, and record how far the work has come"),
            ("release", "cli.commands.release", "release a job, and mark it as done or failed if you want"),
            ("transfer", "cli.commands.release", "hand a job to another owner"),
            ("wait", "cli.commands.wait", "wait until nobody has a job"),
            ("hold", "cli.commands.hold", "hold a job until told to stop, and print what happens"),
        ),
    ),
    (
        "sessions",
        "Sessions",
        (
            ("session run", "cli.commands.run", "run a command inside a session of its own"),
            ("session open", "cli.commands.session", "open a session and print its id"),
            ("session keep", "cli.commands.session", "keep a session alive"),
            ("session end", "cli.commands.session", "end a session and release all it holds"),
            ("session show", "cli.commands.session", "show what a session holds and waits for"),
            ("session list", "cli.commands.session", "list your open sessions"),
        ),
    ),
    (
        "look",
        "Look",
        (
            ("owner", "cli.commands.inspect", "show who has a job, since when and for how long"),
            ("list", "cli.commands.list", "list the jobs that are claimed"),
            ("top", "cli.commands.list", "watch the board: who has what, and for how long still"),
            ("history", "cli.commands.inspect", "show what happened to a job, or to all"),
            ("overdue", "cli.commands.inspect", "say whether a job succeeded in time, also by the exit code"),
            ("watch", "cli.commands.inspect", "show what happens to jobs, as it happens"),
            ("name", "cli.commands.admin", "show the one name of a job, and why it is that"),
        ),
    ),
    (
        "operate",
        "Operate",
        (
            ("demo", "cli.commands.demo", "watch workers race, one die and another take over"),
            ("serve", "cli.commands.serve", "serve the store over HTTP"),
            ("break", "cli.commands.admin", "take a job away from its owner"),
            ("free", "cli.commands.admin", "let a parked job be claimed again"),
            ("close", "cli.commands.admin", "let nobody be granted a job for a while, for maintenance"),
            ("open", "cli.commands.admin", "end a closure early"),
            ("pool set", "cli.commands.admin", "say how many owners a job may have at once, or pause it"),
            ("pool list", "cli.commands.admin", "list the pools"),
            (
                "pool remove",
                "cli.commands.admin",
                "make a pool an ordinary job again",
            ),
            ("gc", "cli.commands.admin", "sweep now: end expired claims, forget idle jobs"),
            ("migrate", "cli.commands.admin", "bring a store's format up to this version of dibs"),
            ("token-floor", "cli.commands.admin", "raise the lowest number that fencing tokens start from"),
            ("export", "cli.commands.admin", "copy a whole store as text, to move it"),
            ("import", "cli.commands.admin", "bring an exported copy into a store"),
            ("thaw", "cli.commands.admin", "unfreeze a store"),
            ("backup", "cli.commands.admin", "copy an SQLite store to a file, while it is in use"),
            ("restore", "cli.commands.admin", "replace an SQLite store by a backup"),
            ("webhook add", "cli.commands.webhook", "send events to a URL as they happen"),
            ("webhook list", "cli.commands.webhook", "list webhooks"),
            ("webhook show", "cli.commands.webhook", "show how the deliveries of a webhook stand"),
            ("webhook remove", "cli.commands.webhook", "remove a webhook"),
            ("webhook replay", "cli.commands.webhook", "send dead letters again, or all events after one"),
            ("webhook test", "cli.commands.webhook", "send a delivery that is about nothing, now"),
            ("doctor", "cli.commands.doctor", "check the settings, and say what is wrong"),
            (
                "verify",
                "testing.commands.verify",
                "race clients on a store or server, and judge what they were answered",
            ),
            (
                "simulate",
                "testing.commands.simulate",
                "run servers, clients and faults from one seed, and check every promise",
            ),
            ("config show", "cli.commands.config", "show the settings that apply, and where each comes from"),
            ("config get", "cli.commands.config", "print one setting"),
            ("config set", "cli.commands.config", "save a setting in your config.toml"),
            ("config unset", "cli.commands.config", "remove a setting from your config.toml"),
            ("completion", "cli.commands.completion", "print the completion script of a shell"),
        ),
    ),
    (
        "access",
        "Access to a server",
        (
            ("login", "cli.commands.config", "use a server from now on, and save your token for it"),
            ("logout", "cli.commands.config", "forget the token of a server"),
            ("token create", "cli.commands.token", "make a bearer token in the store"),
            ("token list", "cli.commands.token", "list the tokens of the store, or of a tokens file"),
            ("token rotate", "cli.commands.token", "replace a token by a new one"),
            ("token revoke", "cli.commands.token", "revoke somebody's tokens"),
            ("token limit", "cli.commands.token", "set limits for the holder of a token"),
            ("token import", "cli.commands.token", "copy the tokens of a tokens file into the store"),
            ("token show", "cli.commands.token", "print the token of your own server"),
            ("token new", "cli.commands.token", "make a bearer token for a tokens file"),
        ),
    ),
    (
        "agents",
        "Agents",
        (
            ("mcp", "agents.commands.agents", "serve an agent's MCP client over stdin and stdout"),
            (
                "agent install",
                "agents.commands.agent_install",
                "keep coding agents apart: install hooks and the MCP server",
            ),
            ("agent uninstall", "agents.commands.agent_install", "take the hooks and the MCP server out again"),
            (
                "agent status",
                "agents.commands.agent_install",
                "show whether the hooks and the MCP server are installed",
            ),
            (
                "agent hook",
                "agents.commands.agent",
                "what the hooks of coding agents run: claim what is about to be written",
            ),
            ("skill show", "agents.commands.agents", "print the skill that teaches agents to use dibs"),
            ("skill install", "agents.commands.agents", "install the skill where agents find it"),
        ),
    ),
    (
        "git",
        "Git",
        (
            ("git push", "agents.commands.hook", "push a branch only if the job is still yours"),
            ("gh next", "agents.commands.gh", "claim the first open issue of GitHub that nobody works on"),
            ("hook install", "agents.commands.hook", "check commits and pushes against path claims"),
            ("hook uninstall", "agents.commands.hook", "remove the hooks, and restore the earlier ones"),
            ("hook status", "agents.commands.hook", "show whether the hooks run, and their settings"),
            ("hook run", "agents.commands.hook", "what the hooks run: check changed paths against claims"),
            ("trust", "agents.commands.trust", "let a repository's settings say where its claims are"),
        ),
    ),
    (
        "compat",
        "As in grite",
        (
            ("lock acquire", "compat.grite.locks", "lock a resource, as grite does"),
            ("lock renew", "compat.grite.locks", "extend a lock you hold"),
            ("lock release", "compat.grite.locks", "release a lock you hold"),
            ("lock status", "compat.grite.locks", "list all held locks"),
            ("lock gc", "compat.grite.locks", "delete expired locks"),
        ),
    ),
    (
        "compat",
        "As in Action Llama, beside rlock",
        (
            ("run-secret create", "compat.action_llama.runs", "begin a run and print its secret"),
            ("run-secret list", "compat.action_llama.runs", "list the active runs"),
            ("run-secret end", "compat.action_llama.runs", "end a run and free its locks"),
        ),
    ),
)
_MODULES = {name: module for _, _, commands in _COMMANDS for name, module, _ in commands}
SUMMARIES = {name: summary for _, _, commands in _COMMANDS for name, _, summary in commands}
GROUPS = [(word, title, [name for name, _, _ in commands]) for word, title, commands in _COMMANDS]
NAMES = tuple(_MODULES)
# The commands of the loop: what somebody who begins needs, in the order of the work.
LOOP = ("claim", "heartbeat", "release", "run", "wait", "owner", "list", "serve")
# What the first word of a two-word command stands for.
FAMILIES = {
    "session": "one run of one worker, and what ends with it",
    "run-secret": "secrets for agents that use rlock or the gateway",
    "hook": "checks of commits and pushes against path claims",
    "lock": "grite's commands",
    "agent": "hooks that keep coding agents apart",
    "skill": "what teaches an agent to use dibs",
    "token": "tokens for access to a server",
    "config": "your settings, and where they come from",
    "gh": "issues on GitHub, through the gh program",
    "webhook": "URLs to which events are sent",
    "pool": "jobs whose slots an operator sets",
    "git": "a branch and the claim on its work, in one push",
}
# Aliases and the commands they stand for. Of several commands, the first that accepts the other words is used.
ALIASES = {
    "acquire": ("claim",),
    "ls": ("list",),
    "renew": ("heartbeat",),
    "status": ("owner", "list"),
    "unlock": ("release",),
}
# What the first word of a family means alone.
ALONE = {"config": "config show"}
# Words that people try, and what says it here.
MEANT = {"kill": "dibs break JOB --reason WHY", "done": "dibs release JOB --done", "fail": "dibs release JOB --failed"}


# What plugins do inside commands of the house. Without the plugin it is left out.
_PARTS = {
    "agent shell": "agents.harness.clients",
    "issue tracker": "agents.git.tracker",
    "staged files": "agents.git.staged",
    "git hooks": "agents.git.hook_check",
    "gateway": "compat.action_llama.protocol",
    "OctoStore": "compat.octostore.contract",
}
# The variables by which coding agents name their session to the commands they run.
AGENT_SESSIONS = ("CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "GEMINI_SESSION_ID", "COPILOT_AGENT_SESSION_ID")
# A command with one of these may be an agent's. Gemini CLI and opencode give their shells nothing else; the notes of
# their hooks say which agent it is.
AGENT_SIGNS = (*AGENT_SESSIONS, "GEMINI_CLI", "OPENCODE")
GROUP = "dibs.commands"  # of entry points


def load(name: str) -> Command:
    """The command called `name`: of a table above, else of a package that is installed beside dibs."""
    module = _MODULES.get(name)
    if module is None:
        command = registered(name)
        assert command is not None  # it was looked up before
        return command
    if module.startswith("cli."):
        found = __import__(f"dibs.{module}", fromlist=("COMMANDS",))
    else:
        from dibs.base.plugins import needed

        found = needed(f"dibs.{module}", f"dibs {name}")
    known: Command = found.COMMANDS[name]
    known.name = name
    return known


def registered(word: str) -> Command | None:
    """The command that an installed package registers under a word; None if there is none. Raises InvalidInput."""
    from dibs.base.plugins import plugin

    found = plugin(GROUP, word, f"the command {word}")
    if found is None:
        return None
    if isinstance(found, Command):
        found.name = word
        return found
    raise InvalidInput(f"The command {word} is no dibs.cli.framework.spec.Command. Repair its package.")


def part(what: str, flag: str | None = None) -> Any | None:
    """The module of a plugin that does this. Without the plugin: None, or MissingExtra if a `flag` asks for it."""
    from dibs.base.plugins import needed, own_plugin

    module = f"dibs.{_PARTS[what]}"
    return own_plugin(module) if flag is None else needed(module, flag)
