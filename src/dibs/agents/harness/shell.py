"""Whether a coding agent itself runs this command, so that its session is the command's actor.

A harness names its agent's session in the environment, which everything below inherits: also a script that the agent
starts, and the ten workers that the script starts. They are not one worker. So a claim counts as the agent's only if
the agent typed it: the shell that runs the command was started by the harness itself, which shows in that the process
above the shell does not have the session's id in its environment, or is the one that the agent's hooks have noted
(`clients.py`). Where that cannot be seen, a claim is as without an agent. Proving a claim (heartbeat, release) needs no
such care: the session holds only what was claimed in it.
"""

from __future__ import annotations

import os

from dibs.agents.harness.clients import WRAPPERS, noted
from dibs.agents.harness.identity import VARIABLES, agents_of
from dibs.cli.framework.shell_actor import forked_shells, look, runner
from dibs.system import table
from dibs.system.session_mark import lineage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.agents.harness.identity import Agent

_STEPS_MAX = 64


def agent_here(env: Mapping[str, str], *, claims: bool) -> Agent | None:
    """The agent whose command this is."""
    named = agents_of(env)
    above = None
    if claims or len(named) > 1:
        above = _above_shell()
        named = _named_by(above, named)
    client = noted(env, lineage(above or 0)[:1] if claims else lineage(os.getppid()))
    if client is None:
        return named[0] if len(named) == 1 else None
    # Another harness's id was inherited from around this client.
    own = next((agent for agent in named if agent.harness == client.harness), client)
    if own.session == client.session:
        own.pid = own.pid or client.pid
    return own


def _named_by(pid: int | None, agents: list[Agent]) -> list[Agent]:
    """The agents that a process names to the shells that it starts, which does not have their ids itself."""
    around = b"" if pid == 0 else None if pid is None else table().environment(pid)
    return [] if around is None else [agent for agent in agents if not _has(around, agent)]


def _has(environment: bytes, agent: Agent) -> bool:
    wanted = os.fsencode(f"{VARIABLES[agent.harness]}={agent.session}")
    return wanted in environment.split(b"\0")


def _above_shell() -> int | None:
    """The process that started the shell that runs this command. 0 if there is none; None if it cannot be seen."""
    first = runner(os.getppid())
    if first is None:
        return None
    chain = forked_shells(first)
    pid = chain[-1].parent if chain else first.pid
    for _ in range(_STEPS_MAX):
        if pid <= 0:
            return 0  # the shell is the first process of its own PID namespace
        found = look(pid)
        if found is None or found.name not in WRAPPERS:
            return pid
        pid = found.parent
    return None
