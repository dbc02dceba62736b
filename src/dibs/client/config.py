"""The user's own settings: `dibs/config.toml` in the folder for configuration.

A file that comes with a repository may not say where claims and tokens go (`agents/repository/settings.py` says what it
may).
Flags and variables take precedence over this file.
"""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput
from dibs.base.paths import config_path
from dibs.base.tomlfile import read_toml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = ("url", "namespace", "owner", "token_file", "timeout")


def user_config(env: Mapping[str, str]) -> dict[str, str]:
    """The settings in the user's file, by key. Raises InvalidInput for an invalid setting."""
    path = config_path(env)
    table = read_toml(path) if path is not None else None
    found: dict[str, str] = {}
    for key, value in (table or {}).items():
        if key not in KEYS:
            raise InvalidInput(f"{path}: there is no setting {key!a}. Settings are {', '.join(KEYS)}.")
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{path}: {key} must be a text that is not empty, not {value!a}.")
        found[key] = os.path.expanduser(value) if key == "token_file" else value
    if not os.path.isabs(found.get("token_file", "/")):
        raise InvalidInput(f"{path}: token_file must be an absolute path, or begin with ~/.")
    return found
