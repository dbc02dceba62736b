"""The last time that a hook of an agent could not do its work, for people to see: a file in the state folder."""

from __future__ import annotations

import os

from dibs.base.cheap import Mapping
from dibs.base.clock import wall_ms
from dibs.base.files import content, replace_file, state_folder
from dibs.core.limits import LOCK_MEMORY_MS

_BYTES_MAX = 1024


def note_trouble(env: Mapping[str, str], agent: str, why: str) -> None:
    path = _path(env)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, f"{wall_ms()} {agent[:80].replace(' ', '-')} {why}\n")
    except OSError:
        pass  # the agent itself was notified


def last_trouble(env: Mapping[str, str]) -> tuple[int, str, str] | None:
    """The last failure: how many milliseconds ago, whose hook, and why. None if there was none within a week."""
    words = (content(_path(env), _BYTES_MAX) or b"").decode("utf-8", "replace").strip().split(" ", 2)
    if len(words) != 3 or not (words[0].isascii() and words[0].isdecimal()):
        return None
    ago_ms = wall_ms() - int(words[0])
    return (ago_ms, words[1], words[2]) if 0 <= ago_ms < LOCK_MEMORY_MS else None


def _path(env: Mapping[str, str]) -> str:
    return os.path.join(state_folder(env), "agent-trouble")
