"""Whether a repository wants its tracker to be asked before a job is granted: the table `[tracker]` of `.dibs.toml`.

    [tracker]
    check = "github"         # ask GitHub, through gh; without it nothing is asked
    on_no_answer = "grant"   # or "refuse": what to do when there is no answer
    label = "in progress"    # put on an issue while it is claimed
    comment = true           # one comment on the issue says who works on it

`git config dibs.tracker.check off` and so on win over the file in one clone. git allows no underscore there:
`dibs.tracker.on-no-answer`. The file says whether to ask, never whom: addresses and tokens are those of gh. Nor does it
say where gh writes: on issues of the origin, and of repositories that `git config dibs.tracker.writes` alone can name.
"""

from __future__ import annotations

import os

from dibs.agents.repository.settings import TEAM_FILE
from dibs.base.errors import InvalidInput
from dibs.client.settings import read_toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TABLE = "tracker"
OFF, GITHUB = "off", "github"
GRANT, REFUSE = "grant", "refuse"
_CHOICES = {"check": (OFF, GITHUB), "on_no_answer": (GRANT, REFUSE)}
_KEYS = (*_CHOICES, "label", "comment")
_FLAGS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_LABEL_CHARS_MAX = 50  # GitHub's own limit


class TrackerSettings:
    """The settings that apply. `label` is empty for none. `writes` are repositories whose issues may show a claim,
    beside the clone's origin."""

    __slots__ = ("check", "comment", "label", "on_no_answer", "writes")

    def __init__(self, table: Mapping[str, Any], where: str, writes: str = "") -> None:
        for key in table:
            if key not in _KEYS:
                raise InvalidInput(f"{where}: [tracker] has no setting {key!a}. It has {', '.join(_KEYS)}.")
        self.check = _choice(table, "check", where)
        self.on_no_answer = _choice(table, "on_no_answer", where)
        self.label = _label(table.get("label", ""), where)
        self.comment = _flag(table.get("comment", False), where)
        self.writes = tuple(writes.lower().split())

    @property
    def announces(self) -> bool:
        """Tell whether a claim is to be seen on the issue."""
        return self.check != OFF and bool(self.comment or self.label)


def tracker_settings(env: Mapping[str, str], top: str) -> TrackerSettings | None:
    """Return what applies in the work tree at `top`; None without the table. Raises InvalidInput, naming the place."""
    path = os.path.join(top, TEAM_FILE)
    table = (read_toml(path) or {}).get(TABLE)
    if table is None:
        return None
    if not isinstance(table, dict):
        raise InvalidInput(f"{path}: tracker is a table: [tracker].")
    from dibs.agents.repository.work_tree import Repository

    config = Repository.at(env, top).settings()
    own = {
        key.removeprefix("tracker.").replace("-", "_"): value
        for key, value in config.items()
        if key.startswith("tracker.")
    }
    writes = own.pop("writes", "")
    return TrackerSettings({**table, **own}, f"{path} or git config" if own else path, writes)


def _choice(table: Mapping[str, Any], key: str, where: str) -> str:
    choices = _CHOICES[key]
    value = table.get(key, choices[0])
    if value not in choices:
        raise InvalidInput(f"{where}: {key} is one of {', '.join(choices)}, not {value!a}.")
    return str(value)


def _label(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LABEL_CHARS_MAX:
        raise InvalidInput(f"{where}: label is a text of at most {_LABEL_CHARS_MAX} characters, not {value!a}.")
    return value


def _flag(value: object, where: str) -> bool:
    found = _FLAGS.get(str(value).lower())
    if found is None:
        raise InvalidInput(f"{where}: comment is true or false, not {value!a}.")
    return found
