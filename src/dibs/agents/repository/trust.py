"""Repositories that the user trusts: `dibs trust` adds one to a list in the user's own folder for configuration.

The list has real paths, as git's `safe.directory` has: the top of a work tree, and behind a tab its git folder if that
is not `.git` in it. The pair is trusted, so that neither half can be exchanged alone: a `.git` file or link in an
unpacked archive may name the git folder of a trusted repository. A linked work tree is trusted with its repository if
that names it back. A submodule is a repository of its own. Trust is of the place: what is put there later is trusted,
too.

A list that others can write trusts nothing.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Mapping
from dibs.base.checkout import first_line
from dibs.base.errors import InvalidInput
from dibs.base.files import read_settings, replace_file, trusted_path
from dibs.core.limits import SETTINGS_BYTES_MAX

Entry = tuple[str, str]  # real paths: the top of the work tree, the git folder


def is_trusted(env: Mapping[str, str], top: str, common: str, own: str) -> bool:
    """Tell whether the user trusts a repository: the top of its work tree, its git folder, and that of this tree."""
    top, common = entry_of(top, common)
    listed = entries(env)
    if common not in [folder for _, folder in listed]:
        return False
    return (top, common) in listed or os.path.join(top, ".git") == common or _is_named_back(top, common, own)


def entry_of(top: str, common: str) -> Entry:
    return os.path.realpath(top), os.path.realpath(common)


def _is_named_back(top: str, common: str, own: str) -> bool:
    """Tell whether the repository says that this is a linked work tree of it."""
    own = os.path.realpath(own)
    named = first_line(os.path.join(own, "gitdir"))
    is_below = os.path.dirname(own) == os.path.join(common, "worktrees")
    return is_below and os.path.realpath(os.path.dirname(os.path.join(own, named))) == top


def entries(env: Mapping[str, str]) -> list[Entry]:
    """The entries of the list. Raises InvalidInput if it is no ordinary file, or too large."""
    path = trusted_path(env)
    content = None if path is None or why_not(path) else read_settings(path, SETTINGS_BYTES_MAX)
    found = []
    for line in (content or b"").decode("utf-8", "surrogateescape").split("\n"):
        top, _, common = line.partition("\t")
        if os.path.isabs(top):
            found.append((top, common or os.path.join(top, ".git")))
    return found


def why_not(path: str) -> str:
    """Return why a list cannot be relied on; empty if it can, or is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if found.st_uid not in (0, os.geteuid()):
        return "it belongs to another user"
    return "others can write it" if found.st_mode & 0o022 else ""


def write(path: str, listed: list[Entry]) -> None:
    """Write the list, readable by the user alone. Raises InvalidInput."""
    lines = []
    for top, common in sorted(set(listed)):
        if not {"\n", "\t"}.isdisjoint(top + common):
            raise InvalidInput(f"The path {top!a} has a line break or a tab in it. Rename the folder.")
        lines.append(f"{top}\n" if common == os.path.join(top, ".git") else f"{top}\t{common}\n")
    try:
        replace_file(path, "".join(lines))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
