"""How a repository wants its coding agents to be kept apart: the table `[agent]` of `.dibs.toml`.

    [agent]
    guard = "deny"        # within one checkout: off, warn or deny
    worktrees = "warn"    # across work trees of one clone
    clones = "off"        # across clones that share a store
    paths = ["src"]       # only below these; without it, everywhere
    require = false       # true: an agent that cannot be checked may not edit

`git config dibs.agent.guard` and so on win over the file, as with all settings.
"""

from __future__ import annotations

import os

from dibs.agents.repository.settings import TEAM_FILE
from dibs.base.errors import InvalidInput
from dibs.base.files import read_toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OFF, WARN, DENY = "off", "warn", "deny"
LEVELS = (OFF, WARN, DENY)
_DEFAULTS = {"guard": DENY, "worktrees": WARN, "clones": OFF}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class AgentSettings:
    """The settings that apply."""

    __slots__ = ("clones", "guard", "paths", "require", "worktrees")

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        known = (*_DEFAULTS, "paths", "require")
        for key in table:
            if key not in known:
                raise InvalidInput(f"{where}: [agent] has no setting {key!a}. It has {', '.join(known)}.")
        self.guard, self.worktrees, self.clones = [_level(table, key, where) for key in _DEFAULTS]
        self.paths = _paths(table.get("paths", ()), where)
        self.require = _flag(table.get("require", False), where)

    def applies_to(self, path: str) -> bool:
        """Tell whether a path, from the top of the work tree, is guarded."""
        return not self.paths or any(path == each or path.startswith(f"{each}/") for each in self.paths)


def agent_settings(top: str, git_config: Mapping[str, str]) -> AgentSettings:
    """Return what applies in the work tree at `top`. Raises InvalidInput, naming the place, for what cannot be
    meant."""
    path = os.path.join(top, TEAM_FILE)
    table = (read_toml(path) or {}).get("agent", {})
    if not isinstance(table, dict):
        raise InvalidInput(f"{path}: agent is a table: [agent].")
    own = {key.removeprefix("agent."): value for key, value in git_config.items() if key.startswith("agent.")}
    return AgentSettings({**table, **own}, f"{path} or git config" if own else path)


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
