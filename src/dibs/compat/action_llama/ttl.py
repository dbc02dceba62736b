"""The TTL of an `rlock` lock: DIBS_RLOCK_TTL, else `resourceLockTimeout` of a config.toml, else the default.

The file is the one that `--config` names, else `config.toml` in the current folder, where Action Llama keeps it. Many
other programs use that file name too, so a file without the word `resourceLockTimeout` is ignored.
"""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.core.durations import format_duration, parse_duration
from dibs.core.limits import TTL_MS_MAX, TTL_MS_MIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIELD = "resourceLockTimeout"
CONFIG_BYTES_MAX = 1024 * 1024


def configured(env: Mapping[str, str], config: str | None) -> int | None:
    """Seconds, or None if nothing sets it."""
    said = env.get("DIBS_RLOCK_TTL")
    if said:
        return ttl_seconds(said, "DIBS_RLOCK_TTL")
    return _from_file(config or "config.toml", named=config is not None)


def ttl_seconds(text: str, what: str) -> int:
    """Whole seconds within the bounds of a lease. `what` names the setting to correct."""
    try:
        ttl_ms = parse_duration(text, "lock time")
    except InvalidInput as error:
        raise InvalidTtl(f"{what}: {error.details}") from None
    return _checked(ttl_ms, f"{what} is {text!a}")


def _checked(ttl_ms: int, what: str) -> int:
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX or ttl_ms % 1000:
        least, most = format_duration(TTL_MS_MIN), format_duration(TTL_MS_MAX)
        raise InvalidTtl(f"{what}: use whole seconds, from {least} to {most}.")
    return ttl_ms // 1000


def _from_file(path: str, *, named: bool) -> int | None:
    try:
        # Non-blocking, because opening a pipe would otherwise wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            content = file.read(CONFIG_BYTES_MAX)
    except OSError as error:
        if named:
            raise InvalidInput(f"--config {path}: it cannot be read ({error.strerror}).") from None
        return None
    if FIELD.encode() not in content:
        return None
    import tomllib  # slow, and rarely needed

    try:
        found = tomllib.loads(content.decode())
    except ValueError as error:
        raise InvalidInput(f"{os.path.abspath(path)} is not TOML ({error}), and names {FIELD}.") from None
    seconds = found.get(FIELD)
    if seconds is None:  # the word is in a comment, or names another program's field
        return None
    if type(seconds) is not int:
        raise InvalidTtl(f"{path}: {FIELD} is a whole number of seconds, not {seconds!a}.")
    return _checked(seconds * 1000, f"{path}: {FIELD} is {seconds}")
