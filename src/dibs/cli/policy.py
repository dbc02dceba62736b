"""What the hooks of a repository shall do: off, warn or require, and the rest of it. Says where each setting came from.

Three places, and the one nearest to whoever commits wins:

1. `git config dibs.KEY` (also `git -c dibs.policy=off commit` for once, and the user's own ~/.gitconfig),
2. `dibs/config.toml` in the clone's git folder, which its work trees share,
3. `.dibs.toml` at the top of the work tree, tracked, for the whole team.

That is git's own order. The other way round would only look stricter: a hook runs on the machine of whoever it would
stop, and `--no-verify` skips it. The tracked file cannot name a URL: whoever may push could then say where everybody's
token is sent.
"""

from __future__ import annotations

import os
import stat

from dibs.core.limits import POLICY_BYTES_MAX
from dibs.core.names import check_namespace
from dibs.errors import InvalidInput, InvalidName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.cli.gitfacts import Repository

OFF, WARN, REQUIRE = "off", "warn", "require"
BLOCK = "block"
TEAM_FILE = ".dibs.toml"
_KEYS = ("policy", "own", "unreachable", "url", "namespace")
_CHOICES = {"policy": (OFF, WARN, REQUIRE), "unreachable": (BLOCK, WARN)}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Policy:
    """The settings that apply. `unreachable` is what to do when the store cannot be asked: block or warn."""

    __slots__ = ("own", "place", "policy", "source", "unreachable")

    def __init__(self, found: Mapping[str, tuple[str, str]]) -> None:
        self.policy, self.source = found.get("policy", (WARN, "the default"))
        self.own = found.get("own", ("false", ""))[0] == "true"
        default = BLOCK if self.policy == REQUIRE else WARN
        self.unreachable = found.get("unreachable", (default, ""))[0]
        self.place = {key: found[key][0] for key in ("url", "namespace") if key in found}


def policy_of(repository: Repository) -> Policy:
    """What applies in this work tree. Raises InvalidInput, naming the place, for what cannot be meant."""
    team = os.path.join(repository.top, TEAM_FILE)
    clone = os.path.join(repository.common, "dibs", "config.toml")
    found = {**_of_file(team, tracked=True), **_of_file(clone, tracked=False)}
    for key, value in repository.settings().items():
        if key in _KEYS:
            # git config writes a key without a value for true.
            found[key] = (_checked(key, value or "true", f"git config dibs.{key}"), f"git config dibs.{key}")
    if "namespace" not in found:
        from dibs.cli.repository_namespace import namespace_of

        found["namespace"] = (namespace_of(repository), "where the repository comes from")
    return Policy(found)


def _of_file(path: str, *, tracked: bool) -> dict[str, tuple[str, str]]:
    text = _text(path)
    if text is None:
        return {}
    table = _table(path, text)
    if "lock_policy" in table:  # grite's word for it
        table.setdefault("policy", table.pop("lock_policy"))
    if tracked and "url" in table:
        raise InvalidInput(
            f"{path} may not name a url: everybody's token would go wherever it says. "
            "Set it with `git config dibs.url`, or DIBS_URL."
        )
    _look_for_slips(path, table)
    return {key: (_checked(key, table[key], path), path) for key in _KEYS if key in table}


def _text(path: str) -> str | None:
    """What a file says; None: there is none. Whoever may push may put anything in its place, so that it is opened
    without waiting for anybody, and only an ordinary file of an ordinary size is read."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise InvalidInput(f"{path} is no ordinary file. Put the settings into one, or remove it.")
        content = os.read(number, POLICY_BYTES_MAX + 1)
    finally:
        os.close(number)
    if len(content) > POLICY_BYTES_MAX:
        raise InvalidInput(f"{path} has more than the {POLICY_BYTES_MAX} bytes that settings may have.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error}.") from None


def _table(path: str, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}.") from None


def _look_for_slips(path: str, table: Mapping[str, Any]) -> None:
    """A key that is almost one of ours would leave a guard off that somebody believes is on."""
    from dibs.cli.parse import did_you_mean

    for key in table:
        hint = "" if key in _KEYS else did_you_mean(key, (*_KEYS, "lock_policy"))
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
