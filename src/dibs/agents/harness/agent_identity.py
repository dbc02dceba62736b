"""The agent that a process belongs to, by the environment variables of its harness.

A harness is the program that runs a coding agent: Claude Code, Codex, Gemini CLI, Copilot. It gives its hooks the id of
the agent's session, and most harnesses give it to their shells or MCP servers, too (`session_finder.py` finds it for
the others). One such session is one worker: its commands, hooks and MCP tools prove each other's claims. A subagent is
a part of it, with an id of its own that only hooks get.
"""

from __future__ import annotations

from dibs.base.cheap import Mapping
from dibs.base.ids import digest
from dibs.cli.framework.registry import AGENT_SESSIONS
from dibs.core.limits import OWNER_CHARS_MAX

CLAUDE, CODEX, GEMINI = "claude", "codex", "gemini"
COPILOT, CURSOR, OPENCODE, WINDSURF = "copilot", "cursor", "opencode", "windsurf"
HARNESSES = (CLAUDE, CODEX, CURSOR, GEMINI, COPILOT, OPENCODE, WINDSURF)
# The variables in which harnesses give the session's id to the processes they start.
VARIABLES = dict(zip((CLAUDE, CODEX, GEMINI, COPILOT), AGENT_SESSIONS, strict=True))
# The variable with the process id of the harness itself.
_PROCESSES = {CLAUDE: "CLAUDE_PID"}
_ID_CHARS_MAX = 128
_SHOWN = 4
_MARK_DIGITS = 16
_SHELL = ".shell"
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class Agent:
    """One agent session, or a subagent of it. `pid` is the process of its harness, where that is known. `action` is
    what it does now, for `dibs agents`; empty: it runs a command of dibs."""

    action = ""

    def __init__(self, harness: str, session: str, subagent: str = "", pid: int = 0) -> None:
        self.harness = harness
        self.session = session
        self.subagent = subagent
        self.pid = pid

    @property
    def key(self) -> str:
        """Identifies the agent among all agents of this user. The harness is not part of it: one that also runs the
        hooks of another one's configuration would be two agents."""
        return self.session + (f"/{self.subagent}" if self.subagent else "")

    @property
    def mark(self) -> str:
        """Tells the agent from all others, and others may read it: it proves nothing. The name that is shown does not
        tell them apart, because it has four characters of the id, or is chosen by the user."""
        ids = [each for each in (self.session, self.subagent) if each]
        return "/".join([digest(each)[:_MARK_DIGITS] for each in ids])

    @property
    def parent(self) -> Agent | None:
        return Agent(self.harness, self.session, pid=self.pid) if self.subagent else None

    def shell(self) -> Agent:
        """The commands that the agent runs, as a subagent of it: what they claim ends with them."""
        found = Agent(self.harness, self.session, f"{self.subagent}{_SHELL}".lstrip("."), self.pid)
        found.action = self.action
        return found

    @property
    def is_shell(self) -> bool:
        return f".{self.subagent}".endswith(_SHELL)

    def owner(self, place: str) -> str:
        """The name shown to others, such as `claude-3f2a in app@main`. That of its commands is the same."""
        name = f"{self.harness}-{_short(self.session)}"
        subagent = f".{self.subagent}".removesuffix(_SHELL).removeprefix(".")
        if subagent:
            name += f"/{_short(subagent)}"
        return f"{name} in {place}"[:OWNER_CHARS_MAX].rstrip() if place else name


def _short(identity: str) -> str:
    """The part of an id that tells it from others: its beginning. A UUID of version 7 and an id of opencode (`ses_1f…`)
    begin with the time, so their end counts. Of one that begins with a word (`agent-1f2e`) what follows it counts."""
    groups = identity.split("-")
    if [len(group) for group in groups] == [8, 4, 4, 4, 12] and _HEXADECIMAL.issuperset("".join(groups)):
        return identity[-_SHOWN:] if groups[2][0] == "7" else identity[:_SHOWN]
    if identity.startswith("ses_"):
        return identity[-_SHOWN:]
    rest = groups[-1] if identity[:1].isalpha() and "-" in identity[:12] else identity
    return rest[:_SHOWN] or identity[:_SHOWN]


def is_session_id(text: object) -> bool:
    """Tell whether a harness could mean this as an id: a short printable word."""
    return isinstance(text, str) and 0 < len(text) <= _ID_CHARS_MAX and text.isprintable() and " " not in text


def agents_of(env: Mapping[str, str]) -> list[Agent]:
    """The agents that this environment names. Several: one agent's shell runs the harness of another one."""
    return [
        Agent(harness, env[variable], pid=pid_of(env, harness))
        for harness, variable in VARIABLES.items()
        if is_session_id(env.get(variable))
    ]


def pid_of(env: Mapping[str, str], harness: str) -> int:
    """The process of the harness, if the environment names it; else 0."""
    text = env.get(_PROCESSES.get(harness, ""), "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0
