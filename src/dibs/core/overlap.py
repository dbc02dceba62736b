"""Overlap of names in a tree: the promise `tree`.

`path:` and `repo:` names form a tree (`names.in_tree`). A `repo:` name overlaps every name of its namespace. Two paths
overlap if one is the other or above it: a folder and a file inside it do, two files of one folder do not, and a name
that merely begins with the same letters is no folder. Claims on names that overlap exclude each other
(`holds/exclusion.py`) and wait in one line (`waiting/queue.py`). `path_index.py` finds them quickly among thousands.
"""

from __future__ import annotations


def overlaps(one: str, other: str) -> bool:
    if one.startswith("repo:") or other.startswith("repo:"):
        return True
    return one == other or _beneath(one, other) or _beneath(other, one)


def covers(outer: str, inner: str) -> bool:
    return outer.startswith("repo:") or _beneath(inner, outer)


def _beneath(inner: str, outer: str) -> bool:
    return inner.startswith(outer if outer.endswith("/") else outer + "/")


def above(name: str) -> list[str]:
    """The path names that cover a path, nearest first: what to look for among many claims."""
    found = []
    while (cut := name.rfind("/")) > len("path:"):
        name = name[:cut]
        found.append(name)
    return [*found, "path:/"] if name.startswith("path:/") and name != "path:/" else found
