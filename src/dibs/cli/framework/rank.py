"""The parts of dibs in order of rank: the core, what more there is, and what is for users of other systems.

`dibs --help`, the reference of commands, the menus of the documentation and the page of promises have the order of this
one table, and tests hold them to it. What is new has its place here before it has one there.
"""

from __future__ import annotations

from dibs.base.cheap import Iterable

CORE, MORE, COMPATIBILITY = "core", "more", "compatibility"
RANKS = {
    CORE: "Core",
    MORE: "More",
    COMPATIBILITY: "For users of other systems",
}


class Feature:
    """One part of dibs. `word` is that of `dibs help WORD`. `pages` are files below `docs`, and `promises` the ids, or
    their first words, that stand below its title on the page of promises. `begins_work`: who is told no by one of its
    commands must not begin the work."""

    def __init__(
        self,
        rank: str,
        word: str,
        title: str,
        *,
        commands: tuple[str, ...] = (),
        pages: tuple[str, ...] = (),
        promises: tuple[str, ...] = (),
        begins_work: bool = False,
    ) -> None:
        self.rank = rank
        self.word = word
        self.title = title
        self.commands = commands
        self.pages = pages
        self.promises = promises
        self.begins_work = begins_work


# The promises that everybody should know. The others are details of these, or are about what is not core.
TEN_PROMISES = (
    "excl",
    "lease:never-early",
    "loss:told",
    "token:rises",
    "proof",
    "idem:acquire",
    "queue:fifo",
    "session",
    "durable",
    "agent:guard",
)

PARTS = (
    Feature(
        CORE,
        "work",
        "Work",
        commands=("claim", "heartbeat", "release", "run", "wait"),
        pages=(
            "tutorial/five-calls.md",
            "tutorial/first-claim.md",
            "how-to/claim-from-a-shell-script.md",
            "how-to/run-a-command-under-a-claim.md",
            "how-to/wait-in-line.md",
            "how-to/when-the-work-fails.md",
            "how-to/work-that-may-run-twice.md",
            "reference/cli.md",
            "reference/exit-codes.md",
            "reference/promises.md",
            "reference/names.md",
            "reference/environment.md",
            "reference/config.md",
            "explanation/leases.md",
            "explanation/what-you-lose.md",
            "explanation/waiting-and-deadlocks.md",
        ),
        promises=(
            *("excl", "lease", "loss", "token", "proof", "idem", "answer", "durable", "audit", "same-answer"),
            *("attempts", "effect", "queue", "deadlock", "tree", "names"),
        ),
        begins_work=True,
    ),
    Feature(CORE, "look", "Look", commands=("owner", "list", "history")),
    Feature(
        CORE,
        "serve",
        "A server",
        commands=("serve",),
        pages=(
            "how-to/run-a-server.md",
            "how-to/claim-from-curl.md",
            "how-to/watch-the-board.md",
            "reference/http.md",
        ),
        promises=("roles", "openapi", "board", "bounded-connection", "damage"),
    ),
    Feature(
        CORE,
        "sessions",
        "Sessions",
        commands=("session run", "session open", "session keep", "session end", "session show", "session list"),
        promises=("session",),
        begins_work=True,
    ),
    Feature(
        CORE,
        "sdk",
        "Python and TypeScript",
        pages=("tutorial/in-python.md", "how-to/agent-loop-in-python.md", "reference/python.md"),
        promises=("nested", "share", "client"),
    ),
    Feature(
        CORE,
        "agents",
        "Agents",
        commands=(
            *("agents", "mcp", "agent install", "agent uninstall", "agent status", "agent hook"),
            *("skill show", "skill install"),
        ),
        pages=("how-to/teach-your-agent.md", "how-to/use-from-mcp.md", "reference/mcp.md", "reference/agents.md"),
        promises=("agent",),
        begins_work=True,
    ),
    Feature(
        MORE,
        "claims",
        "Other claims",
        commands=("claim-any", "claim-all", "once", "next", "transfer", "hold", "elect"),
        pages=(
            "how-to/several-jobs-at-once.md",
            "how-to/hold-as-a-sidecar.md",
            "how-to/recipes.md",
            "how-to/protect-a-database.md",
            "how-to/test-your-code.md",
        ),
        promises=("all-or-nothing", "max-hold", "number", "elect"),
        begins_work=True,
    ),
    Feature(
        MORE,
        "git",
        "Git and issues",
        commands=("git push", "gh next", "hook install", "hook uninstall", "hook status", "hook run", "trust"),
        pages=(
            "how-to/guard-commits-with-path-claims.md",
            "how-to/claim-github-issues.md",
            "how-to/share-claims-through-git.md",
            "reference/hooks.md",
        ),
        promises=("repo", "tracker"),
        begins_work=True,
    ),
    Feature(
        MORE,
        "operate",
        "Operate",
        commands=(
            *("top", "watch", "overdue", "name", "break", "free", "close", "open"),
            *("pool set", "pool list", "pool remove", "gc", "doctor"),
        ),
        pages=(
            "how-to/break-a-stuck-claim.md",
            "how-to/deploy.md",
            "how-to/monitor.md",
            "how-to/upgrade.md",
            "reference/metrics.md",
            "reference/limits.md",
            "reference/platforms.md",
            "explanation/scale.md",
            "explanation/performance.md",
        ),
        promises=("pool", "slot", "units", "closed", "overdue", "events", "terminal", "metrics", "logs"),
    ),
    Feature(
        MORE,
        "access",
        "Access to a server",
        commands=(
            *("login", "logout", "token create", "token list", "token rotate", "token revoke", "token limit"),
            *("token import", "token show", "identity check", "identity list"),
        ),
        pages=("how-to/tokens.md", "how-to/identity-without-a-secret.md", "how-to/tls.md"),
        promises=("auth", "login", "access", "quota"),
    ),
    Feature(
        MORE,
        "webhooks",
        "Webhooks",
        commands=(
            *("webhook add", "webhook list", "webhook show", "webhook remove", "webhook replay", "webhook test"),
        ),
        pages=("how-to/webhooks.md",),
        promises=("webhook",),
    ),
    Feature(
        MORE,
        "stores",
        "Stores and several servers",
        commands=("export", "import", "backup", "restore", "migrate"),
        pages=(
            "how-to/several-servers.md",
            "how-to/several-servers-on-postgresql.md",
            "how-to/several-servers-on-etcd.md",
            "how-to/move-a-store.md",
            "how-to/write-a-store.md",
            "how-to/add-a-command-or-route.md",
            "reference/stores.md",
            "explanation/architecture.md",
        ),
        promises=("servers", "move"),
    ),
    Feature(
        MORE,
        "verify",
        "Verify",
        commands=("verify", "simulate"),
        pages=(
            "how-to/verify-your-own-setup.md",
            "explanation/faults.md",
            "explanation/what-the-faults-taught.md",
            "explanation/long-runs.md",
        ),
    ),
    Feature(
        MORE,
        "settings",
        "Settings",
        commands=(
            *("config show", "config contexts", "config use", "config get", "config set", "config unset"),
            *("completion", "demo"),
        ),
    ),
    Feature(
        COMPATIBILITY,
        "grite",
        "As in grite",
        commands=("lock acquire", "lock renew", "lock release", "lock status", "lock gc"),
        pages=("how-to/coming-from-grite.md",),
        begins_work=True,
    ),
    Feature(
        COMPATIBILITY,
        "action-llama",
        "As in Action Llama, beside rlock",
        commands=("run-secret create", "run-secret list", "run-secret end"),
        pages=("how-to/coming-from-action-llama.md", "reference/gateway.md"),
        begins_work=True,
    ),
    Feature(COMPATIBILITY, "octostore", "As in OctoStore", pages=("how-to/coming-from-octostore.md",)),
    Feature(
        COMPATIBILITY,
        "contrib",
        "Celery, APScheduler, Django, pytest, tooz, GitHub Actions",
        pages=("how-to/one-owner-elsewhere.md",),
    ),
)


def parts_with_commands() -> list[Feature]:
    return [part for part in PARTS if part.commands]


def first_words(commands: Iterable[str]) -> list[str]:
    """The commands, of a family its first word."""
    return list(dict.fromkeys(name.split(" ")[0] for name in commands))


def pages_of(rank: str, folder: str) -> list[str]:
    """The pages of one rank in one folder of the documentation."""
    return [page for part in PARTS if part.rank == rank for page in part.pages if page.startswith(f"{folder}/")]
