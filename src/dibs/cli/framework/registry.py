"""Which commands there are, and the one module to import for each. `dibs --help` needs no more than this."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.spec import Command

# In the order in which people meet them: (title, commands).
GROUPS = (
    ("Work", ("run", "claim", "claim-any", "claim-all", "heartbeat", "release", "transfer", "wait", "hold")),
    (
        "Sessions",
        ("session run", "session open", "session keep", "session end", "session show", "session list"),
    ),
    ("Look", ("owner", "list", "history")),
    (
        "Operate",
        (
            "demo",
            "serve",
            "break",
            "free",
            "gc",
            "migrate",
            "token-floor",
            "doctor",
            "completion",
        ),
    ),
    ("Who may ask a server", ("token new", "token list", "token revoke", "token hash")),
    ("Agents", ("mcp", "skill show", "skill install")),
    ("Git", ("git push", "hook install", "hook uninstall", "hook status", "hook run")),
    ("As in grite", ("lock acquire", "lock renew", "lock release", "lock status", "lock gc")),
    ("As in Action Llama, beside rlock", ("run-secret create", "run-secret list", "run-secret end")),
)
_MODULES = {
    "run": "cli.commands.run",
    "claim": "cli.commands.claim",
    "claim-any": "cli.commands.claim_many",
    "claim-all": "cli.commands.claim_many",
    "heartbeat": "cli.commands.heartbeat",
    "release": "cli.commands.release",
    "transfer": "cli.commands.transfer",
    "wait": "cli.commands.wait",
    "hold": "cli.commands.hold",
    "git push": "cli.commands.git_push",
    "session run": "cli.commands.run",
    "session open": "cli.commands.session",
    "session keep": "cli.commands.session",
    "session end": "cli.commands.session",
    "session show": "cli.commands.session",
    "session list": "cli.commands.session",
    "owner": "cli.commands.inspect",
    "list": "cli.commands.inspect",
    "history": "cli.commands.inspect",
    "run-secret create": "compat.action_llama.run_secret",
    "run-secret list": "compat.action_llama.run_secret",
    "run-secret end": "compat.action_llama.run_secret",
    "hook install": "cli.commands.hook",
    "hook uninstall": "cli.commands.hook",
    "hook status": "cli.commands.hook",
    "hook run": "cli.commands.hook",
    "lock acquire": "compat.grite.commands",
    "lock renew": "compat.grite.commands",
    "lock release": "compat.grite.commands",
    "lock status": "compat.grite.commands",
    "lock gc": "compat.grite.commands",
    "mcp": "cli.commands.agents",
    "skill show": "cli.commands.agents",
    "skill install": "cli.commands.agents",
    "serve": "cli.commands.serve",
    "token new": "cli.commands.token",
    "token list": "cli.commands.token",
    "token revoke": "cli.commands.token",
    "token hash": "cli.commands.token",
    "break": "cli.commands.admin",
    "free": "cli.commands.admin",
    "gc": "cli.commands.admin",
    "migrate": "cli.commands.migrate",
    "token-floor": "cli.commands.admin",
    "doctor": "cli.commands.doctor",
    "demo": "cli.commands.demo",
    "completion": "cli.commands.completion",
}
SUMMARIES = {
    "run": "run a command while a job is yours",
    "claim": "claim a job, or learn who has it",
    "claim-any": "claim the first free one of several jobs",
    "claim-all": "claim several jobs, all or none",
    "heartbeat": "renew a claim, and say how far the work has come",
    "release": "release a job, as done or failed if you say so",
    "transfer": "hand a job to another owner",
    "wait": "wait until nobody has a job",
    "hold": "hold a job until told to stop, and print what happens",
    "git push": "push a branch only if the job is still yours",
    "session run": "run a command inside a session of its own",
    "session open": "open a session and print its id",
    "session keep": "keep a session alive",
    "session end": "end a session and release all it holds",
    "session show": "what a session holds and waits for",
    "session list": "list your open sessions",
    "owner": "who has a job, since when, for how long still",
    "list": "list the jobs that are claimed",
    "history": "what happened to a job",
    "run-secret create": "begin a run and print its secret",
    "run-secret list": "the runs that are under way",
    "run-secret end": "end a run and free what it locked",
    "hook install": "check commits and pushes against path claims",
    "hook uninstall": "take the hooks away, and put back what was there",
    "hook status": "show whether the hooks run, and their settings",
    "hook run": "what the hooks run: check changed paths against claims",
    "lock acquire": "lock a resource, as grite does",
    "lock renew": "extend a lock you hold",
    "lock release": "let go of a lock you hold",
    "lock status": "all locks that are held",
    "lock gc": "put away what has run out",
    "mcp": "serve an agent's MCP client over stdin and stdout",
    "skill show": "print the skill that teaches agents to use dibs",
    "skill install": "put the skill where an agent finds it",
    "serve": "serve the store over HTTP",
    "token new": "make a bearer token for a tokens file",
    "token list": "whose tokens a tokens file holds",
    "token revoke": "take somebody's tokens out of a tokens file",
    "token hash": "replace tokens in a tokens file by their hashes",
    "break": "take a job away from its owner",
    "free": "let a parked job be claimed again",
    "token-floor": "raise the number below which no fencing token is given",
    "gc": "sweep now: end expired claims, forget idle jobs",
    "migrate": "bring a store's format up to this version of dibs",
    "doctor": "check the set-up and say what is wrong",
    "demo": "watch workers race, one die and another take over",
    "completion": "print the completion script of a shell",
}
# What the first word of two stands for.
FAMILIES = {
    "session": "one run of one worker, and what ends with it",
    "run-secret": "secrets for agents that use rlock or the gateway",
    "hook": "checks of commits and pushes against path claims",
    "lock": "grite's commands",
    "skill": "what teaches an agent to use dibs",
    "token": "who may ask a server",
    "git": "a branch and the claim on its work, in one push",
}
NAMES = tuple(_MODULES)
# Words that people type for a command, each with what it stands for: of several, the first that takes the other words.
ALIASES = {
    "acquire": ("claim",),
    "ls": ("list",),
    "renew": ("heartbeat",),
    "status": ("owner", "list"),
    "unlock": ("release",),
}


def load(name: str) -> Command:
    """The command called `name`."""
    module = __import__(f"dibs.{_MODULES[name]}", fromlist=("COMMANDS",))
    command: Command = module.COMMANDS[name]
    return command
