"""A path as part of a job name, even if no name may hold it: for a line break, bytes that are no text, a blank at its
end, or its length. Pure."""

from __future__ import annotations

from dibs.base.digest import digest
from dibs.base.errors import InvalidName
from dibs.core.limits import NAME_BYTES_MAX
from dibs.core.names import check_name

_DIGITS = 24
_BEFORE = "path:@000000000000/"  # the longest that comes before it
_ROOM = NAME_BYTES_MAX - len(_BEFORE)


def nameable(path: str) -> str:
    """The path itself if it can be part of a name. Else each part that cannot is replaced by a digest of it, and so is
    the end of a path that is too long. Folders stay above what is in them."""
    if _can_be_named(path):
        return path
    parts = [part if _can_be_named(part) else _digested(part) for part in path.split("/")]
    if len("/".join(parts).encode()) <= _ROOM:
        return "/".join(parts)
    kept = 0
    while len("/".join([*parts[: kept + 1], _digested("")]).encode()) <= _ROOM:
        kept += 1
    return "/".join([*parts[:kept], _digested("/".join(parts[kept:]))])


def _can_be_named(path: str) -> bool:
    try:
        check_name(_BEFORE + path)
    except InvalidName:
        return False
    return not path.startswith(" ")


def _digested(text: str) -> str:
    return "~" + digest(text)[:_DIGITS]
