"""The one name of a file: its path from the top of the work tree, however it was written.

Links are followed, because an edit through a link changes the file behind it. Where the file system folds case and
Unicode form (macOS), a part is spelled as it is on disk, and composed (NFC), as git records it. A part that does not
exist yet stays as written. Elsewhere `Readme` and `README` are two files and stay two names.

Reads folders, changes nothing.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Callable
from dibs.base.checkout import root_around
from dibs.base.errors import InvalidInput, InvalidName
from dibs.base.ids import digest
from dibs.core.limits import NAME_BYTES_MAX
from dibs.core.names import check_name

# A path as part of a job name, even with a line break, bytes that are no text, a blank at its end, or too long. Pure.

_DIGITS = 24
_BEFORE = "path:@000000000000/"  # the longest that comes before it
_ROOM = NAME_BYTES_MAX - len(_BEFORE)


def nameable(path: str) -> str:
    """The path itself if it can be part of a name. Otherwise each part that cannot is replaced by a digest of it, and
    so is the end of a path that is too long. Folders stay above what is in them."""
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


def path_from_top(top: str, folder: str, path: str, *, follows_last: bool = True) -> str | None:
    """`src/auth.rs` for a path that is absolute, or relative to `folder`. Without `follows_last`, a link at the end is
    itself meant. None: it is the top itself, or leads out of the work tree, or cannot be a path."""
    try:
        real_top = os.path.realpath(top)
        whole = os.path.join(folder, path)
        if follows_last:
            real = os.path.realpath(whole)
        else:
            above, last = os.path.split(whole.rstrip("/"))
            real = os.path.normpath(os.path.join(os.path.realpath(above), last))
    except (OSError, ValueError):  # ValueError: a NUL byte, or half of a surrogate pair
        return None
    parts = parts_below(real_top, real, folds=folds_case(real_top))
    if parts is None or not folds_case(real_top):
        return None if parts is None else "/".join(parts)
    return "/".join(spelled_as_on_disk(real_top, parts, os.listdir))


def check_stays_inside(path: str) -> str:
    """The path itself. Raises InvalidInput if it is written as one of the work tree around the current folder, and a
    link on the way, which may be tracked, leads out of it."""
    folder = os.getcwd()
    top = os.path.realpath(root_around({}, folder) or folder)
    whole, real = os.path.join(folder, path), os.path.realpath(path)
    if parts_below(top, os.path.normpath(whole), folds=False) and not parts_below(top, real, folds=False):
        raise InvalidInput(f"{path} leads out of this work tree by a link, to {real}. Nothing was written.")
    return path


def recorded_paths(top: str, paths: list[str]) -> list[str]:
    """Paths from the top as git recorded them, as `path_from_top` names them. Links are not followed."""
    if not paths or not folds_case(top):
        return paths
    return list(dict.fromkeys(["/".join(spelled_as_on_disk(top, path.split("/"), os.listdir)) for path in paths]))


def folds_case(top: str) -> bool:
    """Tell whether the file system takes `.GIT` for `.git`."""
    return os.path.lexists(os.path.join(top, ".GIT")) and os.path.lexists(os.path.join(top, ".git"))


def parts_below(top: str, path: str, *, folds: bool) -> list[str] | None:
    """The parts of a path below a folder, both without links."""
    above = [part for part in top.split("/") if part]
    parts = [part for part in path.split("/") if part]
    same = folded if folds else str
    if len(parts) <= len(above) or [same(part) for part in parts[: len(above)]] != [same(part) for part in above]:
        return None
    return parts[len(above) :]


def spelled_as_on_disk(top: str, parts: list[str], listed: Callable[[str], list[str]]) -> list[str]:
    """The parts as the folders list them. `listed` gives the entries of a folder, or raises OSError."""
    import unicodedata  # only where the file system folds

    folder, found = top, []
    for part in parts:
        try:
            entries = listed(folder)
        except OSError:
            entries = []
        if part not in entries:
            part = next((entry for entry in entries if folded(entry) == folded(part)), part)
        found.append(unicodedata.normalize("NFC", part))
        folder = os.path.join(folder, part)
    return found


CHECKOUT_DIGITS = 12


def checkout_id(top: str) -> str:
    """Tells the work tree with this top from all others."""
    return digest((folded if folds_case(top) else str)(os.path.realpath(top)))[:CHECKOUT_DIGITS]


def name_in_checkout(top: str, file: str) -> str:
    """The name of a file for its work tree alone: the same for all spellings of it."""
    return f"path:@{checkout_id(top)}/{nameable(folded(file) if folds_case(top) else file)}"


def folded(text: str) -> str:
    """The same for all spellings that such a file system takes for one, and for some that it tells apart (`ß` and
    `ss`)."""
    if text.isascii():
        return text.lower()
    import unicodedata

    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
