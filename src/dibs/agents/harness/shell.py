"""Whether a coding agent itself runs this command, so that its session is the command's actor.

A harness names its agent's session in the environment, which everything below inherits: also a script that the agent
starts, and the ten workers that the script starts. They are not one worker. So a claim counts as the agent's only if
the agent typed it: the shell that runs the command was started by the harness itself, which shows in that the process
above the shell does not have the session's id in its environment. Where that cannot be seen, a claim is as without an
agent. Proving a claim (heartbeat, release) needs no such care: the session holds only what was claimed in it.
"""

from __future__ import annotations

import os

from dibs.agents.harness.identity import VARIABLES, agents_of
from dibs.cli.framework.shell_actor import forked_shells, look, runner
from dibs.system import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.agents.harness.identity import Agent

_SANDBOXES = frozenset(("bwrap", "sandbox-exec", "env", "nice", "timeout", "time", "uv", "codex-linux-sandbox"))
_STEPS_MAX = 64


def agent_here(env: Mapping[str, str], *, claims: bool) -> Agent | None:
    """The agent whose command this is."""
    found = agents_of(env)
    if claims or len(found) > 1:
        above = _environment_above_shell()
        found = [] if above is None else [agent for agent in found if not _has(above, agent)]
    return found[0] if len(found) == 1 else None


def _has(environment: bytes, agent: Agent) -> bool:
    wanted = os.fsencode(f"{VARIABLES[agent.harness]}={agent.session}")
    return wanted in environment.split(b"\0")


def _environment_above_shell() -> bytes | None:
    """The environment with which the process was started that started the shell that runs this command. Empty if
    there is none above; None if it cannot be seen."""
    first = runner(os.getppid())
    if first is None:
        return None
    chain = forked_shells(first)
    pid = chain[-1].parent if chain else first.pid
    for _ in range(_STEPS_MAX):
        if pid <= 0:
            return b""  # the shell is the first process of its own PID namespace
        found = look(pid)
        if found is None or found.name not in _SANDBOXES:
            return table().environment(pid)
        pid = found.parent
    return None
