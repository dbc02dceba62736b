"""Where dibs keeps things of its own: one folder, in the user's state folder. Makes nothing; whoever writes does.

And where the user keeps settings for it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def state_folder(env: Mapping[str, str] | None = None) -> str:
    """`$XDG_STATE_HOME/dibs`, else `~/.local/state/dibs`. A relative XDG_STATE_HOME is ignored, as it should be."""
    env = os.environ if env is None else env
    base = env.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(_home(env), ".local", "state")
    return os.path.join(base, "dibs")


def store_path(env: Mapping[str, str] | None = None) -> str:
    """The user's own store, in which claims are kept when nobody names another."""
    return os.path.join(state_folder(env), "dibs.db")


def token_path(env: Mapping[str, str] | None = None) -> str:
    """The file of the token that `dibs serve` makes on its first start: one line, readable by its owner only."""
    return os.path.join(state_folder(env), "token")


def config_path(env: Mapping[str, str]) -> str | None:
    """`$XDG_CONFIG_HOME/dibs/config.toml`, else `~/.config/dibs/config.toml`. None where no home is named: a service
    without one has no settings of a user's."""
    base = env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = env.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "dibs", "config.toml")


def _home(env: Mapping[str, str]) -> str:
    home = env.get("HOME", "")
    return home if os.path.isabs(home) else os.path.expanduser("~")
