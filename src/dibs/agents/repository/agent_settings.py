"""How a repository wants its coding agents to be kept apart: the table `[agent]` of `.dibs.toml`.

    [agent]
    guard = "deny"        # within one checkout: off, warn or deny
    worktrees = "warn"    # across work trees of one clone
    clones = "off"        # across clones that share a store
    paths = ["src"]       # only below these; without it, everywhere
    require = false       # true: an agent that cannot be checked may not edit

    [[agent.command]]
    match = "git push"            # the words that a shell command begins with
    claim = "branch:{branch}"     # the job that it is claimed as while it runs; {branch} is the one checked out

A command is claimed for the agent and let go after it. The file names jobs and never programs: what runs is what the
agent typed.

`git config dibs.agent.guard` and so on win over the file, as with all settings.
"""

from __future__ import annotations

import os

from dibs.agents.repository.settings import TEAM_FILE
from dibs.base.errors import InvalidInput
from dibs.client.settings import read_toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

OFF, WARN, DENY = "off", "warn", "deny"
LEVELS = (OFF, WARN, DENY)
_DEFAULTS = {"guard": DENY, "worktrees": WARN, "clones": OFF}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class AgentSettings:
    """The settings that apply."""

    __slots__ = ("clones", "commands", "guard", "paths", "require", "worktrees")

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        known = (*_DEFAULTS, "paths", "require", "command")
        for key in table:
            if key not in known:
                raise InvalidInput(f"{where}: [agent] has no setting {key!a}. It has {', '.join(known)}.")
        self.guard, self.worktrees, self.clones = [_level(table, key, where) for key in _DEFAULTS]
        self.paths = _paths(table.get("paths", ()), where)
        self.require = _flag(table.get("require", False), where)
        self.commands = _commands(table.get("command", []), where)

    def applies_to(self, path: str) -> bool:
        """Tell whether a path, from the top of the work tree, is guarded."""
        return not self.paths or any(path == each or path.startswith(f"{each}/") for each in self.paths)

    def jobs_of(self, commands: Sequence[Sequence[str]], branch: str) -> dict[str, str]:
        """The jobs that shell commands are claimed as, each with the words by which it was found. Options before and
        between these words do not count."""
        found: dict[str, str] = {}
        for words in commands:
            plain = [word for word in words if not word.startswith("-")]
            for match, claim in self.commands:
                if tuple(plain[: len(match)]) == match:
                    found[claim.replace("{branch}", branch)] = " ".join(match)
        return found


def agent_settings(top: str, git_config: Mapping[str, str]) -> AgentSettings:
    """Return what applies in the work tree at `top`. Raises InvalidInput, naming the place, for what cannot be
    meant."""
    path = os.path.join(top, TEAM_FILE)
    table = (read_toml(path) or {}).get("agent", {})
    if not isinstance(table, dict):
        raise InvalidInput(f"{path}: agent is a table: [agent].")
    own = {key.removeprefix("agent."): value for key, value in git_config.items() if key.startswith("agent.")}
    return AgentSettings({**table, **own}, f"{path} or git config" if own else path)


def _commands(value: object, where: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    found = []
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict) or each.keys() != {"match", "claim"} or not all(map(_is_text, each.values())):
            example = '[[agent.command]] with match = "git push" and claim = "branch:{branch}"'
            raise InvalidInput(f"{where}: a guarded command is {example}, not {each!a}.")
        found.append((tuple(each["match"].split()), each["claim"]))
    return tuple(found)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _level(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, _DEFAULTS[key])
    if value not in LEVELS:
        raise InvalidInput(f"{where}: {key} is one of {', '.join(LEVELS)}, not {value!a}.")
    return str(value)


def _paths(value: object, where: str) -> tuple[str, ...]:
    given = value.split() if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f"{where}: paths is a list of paths, not {value!a}.")
    return tuple([each.strip("/").removeprefix("./") for each in given if each.strip("/")])


def _flag(value: object, where: str) -> bool:
    word = str(value).lower()
    if word not in (*_TRUE, *_FALSE):
        raise InvalidInput(f"{where}: require is true or false, not {value!a}.")
    return word in _TRUE
