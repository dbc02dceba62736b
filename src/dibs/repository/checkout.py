"""What a checkout is called, for people: `app@main`. Read from the git folder without running git."""

from __future__ import annotations

import os

from dibs.repository.namespace import root_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTES_MAX = 4096
_HASH_SHOWN = 7


def label_of(env: Mapping[str, str], folder: str) -> str:
    """The folder's name and the branch, or the beginning of the commit's id; without a repository the folder's name."""
    root = root_around(env, folder) or folder
    name = os.path.basename(os.path.realpath(root)) or "/"
    head = _head(os.path.join(root, ".git"))
    label = f"{name}@{head}" if head else name
    return "".join([each if each.isprintable() else "?" for each in label])


def _head(git: str) -> str:
    own = _first_line(git)
    if own.startswith("gitdir: "):  # a linked work tree: `.git` is a file that names its folder
        git = os.path.join(os.path.dirname(git), own.removeprefix("gitdir: "))
    head = _first_line(os.path.join(git, "HEAD"))
    if head.startswith("ref: "):
        return head.removeprefix("ref: ").removeprefix("refs/heads/")
    return head[:_HASH_SHOWN]


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read(_BYTES_MAX)).partition("\n")[0]
    except OSError:
        return ""
