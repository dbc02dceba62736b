"""Finds the checkout around a folder, and its name for people: `app@main`. Found without running git."""

from __future__ import annotations

import os

from dibs.base.cheap import Mapping
from dibs.base.files import content

_BYTES_MAX = 4096
_HASH_SHOWN = 7
_BRANCHES = "ref: refs/heads/"


def current_folder() -> str | None:
    """The current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def root_around(env: Mapping[str, str], folder: str) -> str | None:
    """Find the top of the work tree around a folder without git. Empty: the environment tells git where."""
    if env.get("GIT_DIR"):
        return ""
    while not os.path.lexists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


def label_of(env: Mapping[str, str], folder: str) -> str:
    """The folder's name and the branch, or the beginning of the commit's id; without a repository the folder's name."""
    root = root_around(env, folder) or folder
    name = os.path.basename(os.path.realpath(root)) or "/"
    head = _head(root)
    shown = head.removeprefix(_BRANCHES).removeprefix("ref: ") if head.startswith("ref: ") else head[:_HASH_SHOWN]
    label = f"{name}@{shown}" if shown else name
    return "".join([each if each.isprintable() else "?" for each in label])


def branch_of(root: str) -> str:
    """The branch that is checked out in a work tree; empty if none is."""
    head = _head(root)
    return head.removeprefix(_BRANCHES) if head.startswith(_BRANCHES) else ""


def git_folder_of(root: str) -> str:
    """The git folder of the work tree with this top."""
    git = os.path.join(root, ".git")
    own = first_line(git)
    if own.startswith("gitdir: "):  # a linked work tree: `.git` is a file that names its folder
        git = os.path.join(root, own.removeprefix("gitdir: "))
    return git


def _head(root: str) -> str:
    """Read HEAD: a reference, or a commit's id; empty if it cannot be read."""
    return first_line(os.path.join(git_folder_of(root), "HEAD"))


def first_line(path: str) -> str:
    """The first line of a file; empty if it cannot be read."""
    return os.fsdecode(content(path, _BYTES_MAX) or b"").partition("\n")[0]
