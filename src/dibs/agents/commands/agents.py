"""mcp, skill show, skill install: for agents."""

from __future__ import annotations

import os

from dibs.agents.commands.agent_install import read_file, write_file
from dibs.agents.harness.clients import agent_here, agent_named
from dibs.agents.harness.identity import Agent
from dibs.agents.repository.file_paths import check_stays_inside
from dibs.agents.repository.work_tree import Repository, is_at_remote
from dibs.agents.shipped_files import (
    ABSENT,
    CHANGED,
    CURRENT,
    FILE,
    FOLDERS,
    NAME,
    OLDER,
    skill_text,
    state_of,
)
from dibs.base.cheap import Callable
from dibs.base.errors import InvalidInput
from dibs.cli.framework.actor_session import ActorSession
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import Command, Option


def mcp(call: Call) -> Answer:
    from dibs.agents.stdio import run

    if call.stdin is None or call.stdout is None:
        raise UsageError("dibs mcp needs standard input and output, and one of them is closed.", "mcp")
    if call.stdin.isatty() and call.stderr is not None:
        call.stderr.write("dibs mcp is meant to be started by an MCP client. Ctrl-D ends it.\n")
    if (url := call.settings.named_url) and is_at_remote(url):
        Repository.here(call.env).check_trusted(url)
    run(call.settings, action_llama=bool(call.values.get("action_llama")), finds=_agent_session(call))
    return yes({"stopped": True}, "")


def _agent_session(call: Call) -> Callable[[], Callable[[], str] | None]:
    """Makes what finds the agent whose MCP client started this, and gives what opens or renews the agent's session. It
    is called in another thread when the session is needed, because a hook may have to note first who the agent is. It
    gives None if the agent is not known, or if another actor is wanted (DIBS_ACTOR, DIBS_SESSION)."""

    def found() -> Callable[[], str] | None:
        if call.env.get("DIBS_SESSION"):
            return None
        actor = call.env.get("DIBS_ACTOR")
        agent = agent_here(call.env, claims=True) if actor is None else agent_named(call.env, actor)
        return None if agent is None else lambda: opened(agent)

    def opened(agent: Agent) -> str:
        own = Call(call.command, call.values, call.env, stdin=None, stdout=None, stderr=None, paint=call.paint)
        try:
            session = ActorSession.of_agent(own, agent)
            return session.opened(session.ttl_ms)
        finally:
            own.close()

    return found


def show(call: Call) -> Answer:
    text = skill_text()
    return yes({"name": NAME, "skill": text}, text.rstrip("\n"), quiet=text.rstrip("\n"))


def install(call: Call) -> Answer:
    """Write dibs/SKILL.md below each folder. Without --force, one that somebody changed stops the installation."""
    to, text = call.values.get("to"), skill_text()
    if to == "":
        raise UsageError("--to needs a folder of skills, such as .claude/skills.", "skill install")
    # One for every client whose folder exists, else the first.
    usual = [folder for folder in FOLDERS if os.path.isdir(os.path.dirname(folder))] or [FOLDERS[0]]
    done: dict[str, str] = {}
    for folder in usual if to is None else [to]:
        path = check_stays_inside(os.path.join(folder, NAME, FILE))
        done[path] = _DONE_OF[state_of(read_file(path), text)]
        if done[path] == "replaced" and not call.values.get("force"):
            raise InvalidInput(
                f"{path} was changed by somebody, or is of a newer dibs; nothing was changed. Use --force to replace "
                "it, or --to for another folder."
            )
    for path, what in done.items():
        if what != "unchanged":
            write_file(path, text)
    files = [{"path": path, "done": what} for path, what in done.items()]
    shown = "\n".join(_DONE[what].format(path) for path, what in done.items())
    return yes({"files": files}, shown, quiet="\n".join(done))


_DONE_OF = {ABSENT: "installed", CURRENT: "unchanged", OLDER: "updated", CHANGED: "replaced"}
_DONE = {
    "installed": "Installed {}.",
    "updated": "Brought {} up to date.",
    "replaced": "Replaced {}, which was another version.",
    "unchanged": "{} is up to date: nothing was changed.",
}


COMMANDS = {
    "mcp": Command(
        mcp,
        Option("--owner NAME", "who the agent is, as shown to others (default: its client)", env="DIBS_OWNER"),
        Option("--action-llama", "also offer Action Llama's tools acquire_lock and release_lock"),
        summary="serve an agent's MCP client over stdin and stdout",
        about=(
            "The MCP client starts it. The agent's claims are renewed while the client runs, and released "
            "when it ends. A dibs server answers MCP clients itself, at /mcp."
        ),
        examples=(
            ("claude mcp add dibs -- dibs mcp", "in Claude Code"),
            ("DIBS_URL=https://dibs.example dibs mcp --owner agent-7", "on a server"),
        ),
        exits=((0, "the client has ended"),),
    ),
    "skill show": Command(
        show,
        summary="print the skill that teaches agents to use dibs",
        about="Prints this version's SKILL.md, in the agent-skills format.",
        examples=(("dibs skill show >> AGENTS.md", "into any prompt"),),
        exits=((0, "printed"),),
    ),
    "skill install": Command(
        install,
        Option("--to DIR", "the folder of skills", completes="file"),
        Option("--force", "replace a file that differs"),
        summary="install the skill where agents find it",
        about=(
            "Writes dibs/SKILL.md into .claude/skills and .agents/skills of the current folder, for each of "
            ".claude and .agents that exists; if neither does, into .claude/skills. A file of an older version "
            "is brought up to date. One that you changed is kept unless --force is given."
        ),
        examples=(
            ("dibs skill install", "for this project"),
            ("dibs skill install --to ~/.claude/skills", "for all projects of this user"),
        ),
        exits=(
            (0, "the skill is installed"),
            (64, "a different file is there, or the file cannot be written"),
        ),
    ),
}
