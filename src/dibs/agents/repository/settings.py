"""The settings of a repository's hooks, and where each came from. There are three places, the most personal first; the
first that has a setting wins:

1. `git config dibs.KEY` (also `git -c dibs.policy=off commit` for once, and the user's own ~/.gitconfig),
2. `dibs/config.toml` in the clone's git folder, which its work trees share; then grite's `grite/config.toml` beside
   it, of which `lock_policy` counts,
3. `.dibs.toml` at the top of the work tree, tracked, for the whole team.

That is git's own order. The opposite order would only look stricter: a hook runs on the machine of the person who
commits, and `--no-verify` skips it. What each may say is in `client/setting_sources.py`: `url` and `namespace` of a
repository count only if the user trusts it. The tracked file cannot name a URL even then: anybody who may push could
change where everybody's claims are.

The file's tables `[agent]` (docs/reference/agents.md) and `[tracker]` (docs/reference/config.md) have settings of their
own. `git config dibs.agent.guard` and so on win over them in one clone.

A command is claimed for the agent and let go after it. The file names jobs and never programs: what runs is what the
agent typed. It says whether to ask a tracker, never whom: addresses and tokens are those of gh. Nor does it say where
gh writes: on issues of the origin, and of repositories that `git config dibs.tracker.writes` alone can name.
"""

from __future__ import annotations

import os

from dibs.agents.repository.work_tree import Repository, namespace_of
from dibs.base.cheap import Any, Mapping
from dibs.base.errors import InvalidInput, InvalidName
from dibs.base.files import read_toml
from dibs.base.redact import without_secrets
from dibs.base.terminal import did_you_mean, quoted
from dibs.client.setting_sources import CLONE, TRACKED, keys_of
from dibs.core.limits import SETTINGS_BYTES_MAX
from dibs.core.names import check_namespace

OFF, WARN, REQUIRE, BLOCK = "off", "warn", "require", "block"
DENY, GITHUB, GRANT, REFUSE = "deny", "github", "grant", "refuse"
TEAM_FILE = ".dibs.toml"
_MADE = "where the repository comes from"
_TABLES = ("names", "agent", "tracker")  # the first is read in job_names.py
_KEYS = tuple([key for key in keys_of("") if key != "prefix"])  # that one is read in stores/git
_CHOICES = {
    "policy": (OFF, WARN, REQUIRE),
    "unreachable": (BLOCK, WARN),
    **dict.fromkeys(("guard", "worktrees", "clones"), (OFF, WARN, DENY)),
    "check": (OFF, GITHUB),
    "on_no_answer": (GRANT, REFUSE),
}
_FLAGS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_AGENT = {"guard": DENY, "worktrees": WARN, "clones": OFF, "paths": (), "require": False, "command": [], "file": []}
_TRACKER = {"check": OFF, "on_no_answer": GRANT, "label": "", "comment": False}
_LABEL_CHARS_MAX = 50  # GitHub's own limit


class Policy:
    """The settings that apply. `unreachable` is what to do when the store cannot be asked: block or warn. `ignored` are
    settings of the repository that do not count, because the user does not trust it."""

    def __init__(self, found: Mapping[str, tuple[str, str]], ignored: Mapping[str, str] | None = None) -> None:
        self.ignored = dict(ignored or {})
        self.policy, self.source = found.get("policy", (WARN, "the default"))
        self.own = found.get("own", ("false", ""))[0] == "true"
        self.unreachable = found.get("unreachable", (BLOCK if self.policy == REQUIRE else WARN, ""))[0]
        self.is_namespace_set = found.get("namespace", ("", _MADE))[1] != _MADE
        self.place = {key: found[key][0] for key in ("url", "namespace") if key in found}


def policy_of(repository: Repository) -> Policy:
    """Return what applies in this work tree. Raises InvalidInput, which names the place, for an invalid value."""
    team = os.path.join(repository.top, TEAM_FILE)
    clone = os.path.join(repository.common, "dibs", "config.toml")
    grite = os.path.join(repository.common, "grite", "config.toml")
    found, ignored = _heeded(repository, _of_file(team, tracked=True), TRACKED)
    # For users of grite; nothing else of its file counts.
    theirs = (read_toml(grite, SETTINGS_BYTES_MAX) or {}).get("lock_policy")
    if theirs is not None:
        found["policy"] = (_checked("policy", theirs, grite), grite)
    of_clone, left = _heeded(repository, _of_file(clone, tracked=False), CLONE)
    found |= of_clone
    ignored |= left | repository.ignored()
    for key, value in repository.settings().items():
        if key in _KEYS:
            # git config writes a key without a value for true.
            found[key] = (_checked(key, value or "true", f"git config dibs.{key}"), f"git config dibs.{key}")
    if "namespace" not in found:
        found["namespace"] = (namespace_of(repository), _MADE)
    return Policy(found, ignored)


Found = dict[str, tuple[str, str]]  # the value and the place, by key


def _heeded(repository: Repository, found: Found, author: str) -> tuple[Found, dict[str, str]]:
    """Those settings of a file that count, and the values of those that do not."""
    heeded = {key: each for key, each in found.items() if repository.heeds(key, author)}
    return heeded, {key: found[key][0] for key in found if key not in heeded}


def not_heeded(policy: Policy) -> str:
    """Say which words of an untrusted repository do not count, and what to do; empty if there are none."""
    if not policy.ignored:
        return ""
    named = " and ".join([f"{key} = {quoted(without_secrets(value))}" for key, value in policy.ignored.items()])
    return (
        f"this repository says {named}, which counts only in a repository that you trust. Your own settings are used.\n"
        "  If you know where it comes from: dibs trust"
    )


def _of_file(path: str, *, tracked: bool) -> Found:
    table = read_toml(path, SETTINGS_BYTES_MAX)
    if table is None:
        return {}
    if "lock_policy" in table:  # grite's word for it
        table.setdefault("policy", table.pop("lock_policy"))
    if tracked and "url" in table:
        raise InvalidInput(
            f"{path} may not name a url: everybody's claims would go wherever it says. "
            "Set it with DIBS_URL, or `git config dibs.url` and `dibs trust`."
        )
    for key in table:  # a misspelt key would leave a check off that somebody believes is on
        hint = "" if key in (*_KEYS, *_TABLES) else did_you_mean(key, (*_KEYS, "lock_policy"))
        if hint:
            raise InvalidInput(f"{path}: there is no setting {key!a}.{hint}")
    return {key: (_checked(key, table[key], path), path) for key in _KEYS if key in table}


def _checked(key: str, value: object, where: str) -> str:
    if key == "own":
        return "true" if _flag(key, value, where) else "false"
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{where}: {key} is a text, not {value!a}.")
    if key == "namespace":
        try:
            return check_namespace(value)
        except InvalidName as error:
            raise InvalidInput(f"{where}: {error.details}") from None
    return _choice(key, value.lower(), where) if key in _CHOICES else value


def _choice(key: str, value: object, where: str) -> str:
    if value not in _CHOICES[key]:
        raise InvalidInput(f"{where}: {key} is one of {', '.join(_CHOICES[key])}, not {value!a}.")
    return str(value)


def _flag(key: str, value: object, where: str) -> bool:
    found = _FLAGS.get(str(value).lower())
    if found is None:
        raise InvalidInput(f"{where}: {key} is true or false, not {value!a}.")
    return found


class GuardedCommand:
    """One `[[agent.command]]`: the words that name a command, the job that it is claimed as, and how long it stands in
    line for it; 0: it is refused at once."""

    __slots__ = ("claim", "match", "wait_ms")

    def __init__(self, match: tuple[str, ...], claim: str, wait_ms: int = 0) -> None:
        self.match = match
        self.claim = claim
        self.wait_ms = wait_ms


class NumberedFile:
    """One `[[agent.file]]`: files whose names have a number, and the series that the number is taken from."""

    __slots__ = ("_pattern", "series")

    def __init__(self, match: str, series: str) -> None:
        import re  # few repositories have any

        parts = [re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for part in match.split("{n}")]
        self._pattern = re.compile("([0-9]+)".join(parts))
        self.series = series

    def digits(self, file: str) -> str:
        """The number in a file's name, as it is written; empty if the file is not meant."""
        found = self._pattern.fullmatch(file)
        return "" if found is None else found[1]


class AgentSettings:
    """A repository's settings for keeping its coding agents apart."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        found = _whole(table, "agent", _AGENT, where)
        self.guard, self.worktrees, self.clones = [
            _choice(key, found[key], where) for key in ("guard", "worktrees", "clones")
        ]
        self.paths = _paths(found["paths"], where)
        self.require = _flag("require", found["require"], where)
        self.commands = _commands(found["command"], where)
        self.numbered = _numbered(found["file"], where) if found["file"] else ()

    def applies_to(self, path: str) -> bool:
        """Tell whether a path, from the top of the work tree, is guarded."""
        return not self.paths or any(path == each or path.startswith(f"{each}/") for each in self.paths)


class TrackerSettings:
    """A repository's settings for asking its tracker before a job is granted. `label` is empty for none. `writes` are
    repositories whose issues may show a claim, beside the clone's origin."""

    def __init__(self, table: Mapping[str, Any], where: str, writes: str = "") -> None:
        found = _whole(table, "tracker", _TRACKER, where)
        self.check, self.on_no_answer = [_choice(key, found[key], where) for key in ("check", "on_no_answer")]
        self.label = found["label"]
        if not isinstance(self.label, str) or not self.label.isprintable() or len(self.label) > _LABEL_CHARS_MAX:
            raise InvalidInput(
                f"{where}: label is a text of at most {_LABEL_CHARS_MAX} characters, not {self.label!a}."
            )
        self.comment = _flag("comment", found["comment"], where)
        self.writes = tuple(writes.lower().split())

    @property
    def announces(self) -> bool:
        """Tell whether a claim is to be seen on the issue."""
        return self.check != OFF and bool(self.comment or self.label)


def agent_settings(top: str, git_config: Mapping[str, str]) -> AgentSettings:
    """Return what applies in the work tree at `top`. Raises InvalidInput, naming the place."""
    return AgentSettings(*_with_own(team_table(top, "agent") or {}, "agent", git_config, top))


def tracker_settings(env: Mapping[str, str], top: str) -> TrackerSettings | None:
    """The same for the tracker; None without the table."""
    table = team_table(top, "tracker")
    if table is None:
        return None
    found, where = _with_own(table, "tracker", Repository.at(env, top).settings(), top)
    writes = found.pop("writes", "") if "writes" not in table else ""
    return TrackerSettings(found, where, writes)


def team_table(top: str, name: str) -> dict[str, Any] | None:
    """A table of the tracked file, if it is there. Raises InvalidInput."""
    path = os.path.join(top, TEAM_FILE)
    table = (read_toml(path, SETTINGS_BYTES_MAX) or {}).get(name)
    if table is not None and not isinstance(table, dict):
        raise InvalidInput(f"{path}: {name} is a table: [{name}].")
    return table


def _with_own(table: dict[str, Any], name: str, git_config: Mapping[str, str], top: str) -> tuple[dict[str, Any], str]:
    """A table with what `git config` says over it, and where that is. git allows no underscore in a key."""
    first = f"{name}."
    own = {key.removeprefix(first).replace("-", "_"): git_config[key] for key in git_config if key.startswith(first)}
    path = os.path.join(top, TEAM_FILE)
    return {**table, **own}, f"{path} or git config" if own else path


def _whole(table: Mapping[str, Any], name: str, defaults: dict[str, Any], where: str) -> dict[str, Any]:
    for key in table:
        if key not in defaults:
            raise InvalidInput(f"{where}: [{name}] has no setting {key!a}. It has {', '.join(defaults)}.")
    return {**defaults, **table}


def _commands(value: object, where: str) -> tuple[GuardedCommand, ...]:
    found = []
    given: list[Any] = value if isinstance(value, list) else [value]
    for each in given:
        keys = set(each) if isinstance(each, dict) else set()
        is_whole = {"match", "claim"} <= keys <= {"match", "claim", "wait"}
        if not is_whole or not all(isinstance(text, str) and text.strip() for text in each.values()):
            example = '[[agent.command]] with match = "git push" and claim = "branch:{branch}"'
            raise InvalidInput(f"{where}: a guarded command is {example}, and perhaps wait, not {each!a}.")
        found.append(GuardedCommand(tuple(each["match"].split()), each["claim"], _wait_ms(each, where)))
    return tuple(found)


def _numbered(value: object, where: str) -> tuple[NumberedFile, ...]:
    found = []
    given: list[Any] = value if isinstance(value, list) else [value]
    for each in given:
        is_whole = isinstance(each, dict) and set(each) == {"match", "claim"}
        texts = each.values() if is_whole else [""]
        if not all(isinstance(text, str) and text.count("{n}") == 1 for text in texts) or not _series(each["claim"]):
            example = '[[agent.file]] with match = "migrations/{n}_*.sql" and claim = "migration:{n}"'
            raise InvalidInput(f"{where}: a numbered file is {example}, not {each!a}.")
        found.append(NumberedFile(each["match"], _series(each["claim"])))
    return tuple(found)


def _series(claim: str) -> str:
    return claim.removesuffix("{n}").rstrip(":/-#") if claim.endswith("{n}") else ""


def _wait_ms(given: dict[str, str], where: str) -> int:
    """The time that a guarded command stands in line. Few do, so what reads the time is imported here."""
    if "wait" not in given:
        return 0
    from dibs.core.durations import parse_duration

    try:
        return parse_duration(given["wait"], "wait")
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error.details}") from None


def _paths(value: object, where: str) -> tuple[str, ...]:
    given = value.split() if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f"{where}: paths is a list of paths, not {value!a}.")
    return tuple([each.strip("/").removeprefix("./") for each in given if each.strip("/")])
