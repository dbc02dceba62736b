"""The agents that have claimed files in a checkout: an empty file for each, beside git's own.

An agent that is alone need not ask the store whose the files are that its commands name. This says nothing else: the
store knows who has what.
"""

from __future__ import annotations

import os

from dibs.agents.harness.agent_identity import Agent
from dibs.base.clock import wall_ms
from dibs.core.limits import AGENT_TTL_MS


def note_holder(own: str, agent: Agent, *, is_new: bool = True) -> None:
    """Note that an agent has claimed something here, or is still at work. If that fails, others do not look."""
    path = os.path.join(_holders(own), _mark_of(agent))
    try:
        os.utime(path)
    except OSError:
        if not is_new:
            return
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb"):
                pass
        except OSError:
            pass


def forget_holder(own: str, agent: Agent) -> None:
    """The agent is over. A subagent that did not stop before its session did still has its claims."""
    _remove(os.path.join(_holders(own), _mark_of(agent)))


def has_company(own: str, agent: Agent) -> bool:
    """Tell whether another agent may have claimed files here. One that was killed counts for as long as its claims
    could last, and is forgotten then."""
    mark, oldest = _mark_of(agent), wall_ms() - AGENT_TTL_MS
    for name in names_in(_holders(own)):
        path = os.path.join(_holders(own), name)
        try:
            if name != mark and os.stat(path).st_mtime_ns // 1_000_000 >= oldest:
                return True
        except OSError:
            continue
        if name != mark:
            _remove(path)
    return False


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _holders(own: str) -> str:
    return os.path.join(own, "dibs", "holders")


def _mark_of(agent: Agent) -> str:
    return agent.mark.replace("/", "-")


def names_in(folder: str) -> list[str]:
    """The names in a folder; none if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
