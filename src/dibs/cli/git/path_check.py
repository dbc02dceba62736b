"""Checks changed paths against live claims: which claims of others they touch, and which paths nobody here claimed.

Pure. Whether two names overlap is the rule of `core/names.py`; here it is only asked about many at once, by looking up
what lies above a path instead of comparing each path with each claim.
"""

from __future__ import annotations

from dibs.core.names import above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHARED = "shared"


class PathClaim:
    """One owner's live claim on a `path:` or `repo:` name, as everybody may see it."""

    __slots__ = ("mode", "name", "owner", "remaining_ms", "token")

    def __init__(self, name: str, owner: str, token: int, mode: str, remaining_ms: int) -> None:
        self.name = name
        self.owner = owner
        self.token = token
        self.mode = mode
        self.remaining_ms = remaining_ms


class PathClaims:
    """All live claims of a tree, found by the paths they touch."""

    def __init__(self, holds: Iterable[PathClaim]) -> None:
        self._repo: list[PathClaim] = []
        self._at: dict[str, list[PathClaim]] = {}
        self._within: dict[str, list[PathClaim]] = {}
        for hold in holds:
            if hold.name.startswith("repo:"):
                self._repo.append(hold)
                continue
            self._at.setdefault(hold.name, []).append(hold)
            for name in above(hold.name):
                self._within.setdefault(name, []).append(hold)

    def over(self, path: str) -> list[PathClaim]:
        """Those that cover all of a path: on itself, on a folder it is in, on the whole repository."""
        name = path_name(path)
        found = [*self._repo, *self._at.get(name, ())]
        for outer in above(name):
            found += self._at.get(outer, ())
        return found

    def touching(self, path: str) -> list[PathClaim]:
        """Those that overlap a path: beneath it, too, where a file stands in for what was a folder."""
        return [*self.over(path), *self._within.get(path_name(path), ())]


def path_name(path: str) -> str:
    """The name of a path as git gives it: relative to the top, in the one spelling that names have. What is too long
    for a name, or holds what a name may not, cannot be claimed itself; the folders it is in can."""
    return f"path:{path}"


def others_touched(
    holds: PathClaims, paths: Sequence[str], mine: set[PathClaim]
) -> dict[PathClaim, list[str]]:
    """Claims that are not mine, each with the paths that touch it."""
    found: dict[PathClaim, list[str]] = {}
    for path in paths:
        for hold in holds.touching(path):
            if hold not in mine:
                found.setdefault(hold, []).append(path)
    return found


def not_owned(holds: PathClaims, paths: Sequence[str], mine: set[PathClaim]) -> list[str]:
    """Paths that no claim of mine covers. A shared one does not count: it promises that nobody changes anything."""
    return [
        path for path in paths if not any(hold in mine and hold.mode != SHARED for hold in holds.over(path))
    ]
