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
from dibs.base.files import replace_file, trusted_path
from dibs.client.settings import read_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.repository.work_tree import Repository

Entry = tuple[str, str]  # real paths: the top of the work tree, the git folder


def is_trusted(env: Mapping[str, str], repository: Repository) -> bool:
    top, common = entry_of(repository)
    listed = entries(env)
    if common not in [folder for _, folder in listed]:
        return False
    return (top, common) in listed or os.path.join(top, ".git") == common or _is_named_back(repository, top, common)


def entry_of(repository: Repository) -> Entry:
    return os.path.realpath(repository.top), os.path.realpath(repository.common)


def _is_named_back(repository: Repository, top: str, common: str) -> bool:
    """Tell whether the repository says that this is a linked work tree of it."""
    own = os.path.realpath(repository.own)
    named = first_line(os.path.join(own, "gitdir"))
    is_below = os.path.dirname(own) == os.path.join(common, "worktrees")
    return is_below and os.path.realpath(os.path.dirname(os.path.join(own, named))) == top


def entries(env: Mapping[str, str]) -> list[Entry]:
    """What the list has. Raises InvalidInput if it is no ordinary file, or too large."""
    path = trusted_path(env)
    content = None if path is None or why_not(path) else read_settings(path)
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


def write(env: Mapping[str, str], listed: list[Entry]) -> str:
    """Write the list, readable by the user alone. Returns its path. Raises InvalidInput."""
    path = trusted_path(env)
    if path is None:
        raise InvalidInput("There is no home folder for a list of trusted repositories. Set HOME.")
    lines = []
    for top, common in sorted(set(listed)):
        if not {"\n", "\t"}.isdisjoint(top + common):
            raise InvalidInput(f"The path {top!a} has a line break or a tab in it. Rename the folder.")
        lines.append(f"{top}\n" if common == os.path.join(top, ".git") else f"{top}\t{common}\n")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(os.path.realpath(path), "".join(lines))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
    return path
