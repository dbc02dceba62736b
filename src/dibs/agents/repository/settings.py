"""The settings of a repository's hooks, and where each came from. There are three places, the most personal first; the
first that has a setting wins:

1. `git config dibs.KEY` (also `git -c dibs.policy=off commit` for once, and the user's own ~/.gitconfig),
2. `dibs/config.toml` in the clone's git folder, which its work trees share; then grite's `grite/config.toml` beside
   it, of which `lock_policy` counts,
3. `.dibs.toml` at the top of the work tree, tracked, for the whole team.

That is git's own order. The opposite order would only look stricter: a hook runs on the machine of the person who
commits, and `--no-verify` skips it. The tracked file cannot name a URL: anybody who may push could then change where
everybody's token is sent.
"""

from __future__ import annotations

import os

from dibs.agents.repository.work_tree import namespace_of
from dibs.base.errors import InvalidInput, InvalidName
from dibs.client.settings import read_toml
from dibs.core.names import check_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.agents.repository.work_tree import Repository

OFF, WARN, REQUIRE = "off", "warn", "require"
BLOCK = "block"
TEAM_FILE = ".dibs.toml"
_MADE = "where the repository comes from"
_TABLES = (
    "names",
    "agent",
    "tracker",
)  # read elsewhere: job_names.py, agent_settings.py, tracker_settings.py
_KEYS = ("policy", "own", "unreachable", "url", "namespace")
_CHOICES = {"policy": (OFF, WARN, REQUIRE), "unreachable": (BLOCK, WARN)}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Policy:
    """The settings that apply. `unreachable` is what to do when the store cannot be asked: block or warn."""

    __slots__ = ("is_namespace_set", "own", "place", "policy", "source", "unreachable")

    def __init__(self, found: Mapping[str, tuple[str, str]]) -> None:
        self.policy, self.source = found.get("policy", (WARN, "the default"))
        self.own = found.get("own", ("false", ""))[0] == "true"
        default = BLOCK if self.policy == REQUIRE else WARN
        self.unreachable = found.get("unreachable", (default, ""))[0]
        self.is_namespace_set = found.get("namespace", ("", _MADE))[1] != _MADE
        self.place = {key: found[key][0] for key in ("url", "namespace") if key in found}


def policy_of(repository: Repository, config: Mapping[str, str] | None = None) -> Policy:
    """Return what applies in this work tree. Raises InvalidInput, which names the place, for an invalid value. `config`
    is what `git config` says, if the caller has asked already."""
    team = os.path.join(repository.top, TEAM_FILE)
    clone = os.path.join(repository.common, "dibs", "config.toml")
    grite = os.path.join(repository.common, "grite", "config.toml")
    found = {**_of_file(team, tracked=True), **_of_grite(grite), **_of_file(clone, tracked=False)}
    for key, value in (repository.settings() if config is None else config).items():
        if key in _KEYS:
            # git config writes a key without a value for true.
            found[key] = (_checked(key, value or "true", f"git config dibs.{key}"), f"git config dibs.{key}")
    if "namespace" not in found:
        found["namespace"] = (namespace_of(repository), _MADE)
    return Policy(found)


def _of_file(path: str, *, tracked: bool) -> dict[str, tuple[str, str]]:
    table = read_toml(path)
    if table is None:
        return {}
    if "lock_policy" in table:  # grite's word for it
        table.setdefault("policy", table.pop("lock_policy"))
    if tracked and "url" in table:
        raise InvalidInput(
            f"{path} may not name a url: everybody's token would go wherever it says. "
            "Set it with `git config dibs.url`, or DIBS_URL."
        )
    _look_for_slips(path, table)
    return {key: (_checked(key, table[key], path), path) for key in _KEYS if key in table}


def _of_grite(path: str) -> dict[str, tuple[str, str]]:
    """grite's own file of the clone, for users of grite. Only its policy is used."""
    policy = (read_toml(path) or {}).get("lock_policy")
    return {} if policy is None else {"policy": (_checked("policy", policy, path), path)}


def _look_for_slips(path: str, table: Mapping[str, Any]) -> None:
    """A misspelt key would leave a check off that somebody believes is on."""
    from dibs.base.terminal import did_you_mean  # only if something was misspelt

    for key in table:
        hint = "" if key in (*_KEYS, *_TABLES) else did_you_mean(key, (*_KEYS, "lock_policy"))
        if hint:
            raise InvalidInput(f"{path}: there is no setting {key!a}.{hint}")


def _checked(key: str, value: object, where: str) -> str:
    if key == "own":
        word = str(value).lower()
        if word not in (*_TRUE, *_FALSE):
            raise InvalidInput(f"{where}: own is true or false, not {value!a}.")
        return "true" if word in _TRUE else "false"
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{where}: {key} is a text, not {value!a}.")
    if key == "namespace":
        try:
            return check_namespace(value)
        except InvalidName as error:
            raise InvalidInput(f"{where}: {error.details}") from None
    choices = _CHOICES.get(key)
    if choices is None:
        return value
    if value.lower() not in choices:
        raise InvalidInput(f"{where}: {key} is one of {', '.join(choices)}, not {value!a}.")
    return value.lower()
