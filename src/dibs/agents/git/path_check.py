"""Checks changed paths against live claims: which claims of others they touch, and which paths the caller has not
claimed.

Pure. The rule for overlap is in `core/names.py`. This module applies it to many paths at once: it looks up the folders
above a path instead of comparing each path with each claim.
"""

from __future__ import annotations

from dibs.core.overlap import above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHARED = "shared"


class PathClaim:
    """One owner's live claim on a `path:` or `repo:` name: its public fields."""

    __slots__ = ("life", "mode", "name", "owner", "remaining_ms", "token")

    def __init__(self, name: str, owner: str, token: int, mode: str, remaining_ms: int, life: str = "") -> None:
        self.name = name
        self.owner = owner
        self.token = token
        self.mode = mode
        self.remaining_ms = remaining_ms
        self.life = life  # its owner's last sign of life, in words


class PathClaims:
    """All live claims of a tree, indexed by path."""

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
        """The claims that cover a path: on itself, on a folder above it, or on the whole repository."""
        name = path_name(path)
        found = [*self._repo, *self._at.get(name, ())]
        for outer in above(name):
            found += self._at.get(outer, ())
        return found

    def touching(self, path: str) -> list[PathClaim]:
        """The claims that overlap a path, including those below it, for a file that replaces a folder."""
        return [*self.over(path), *self._within.get(path_name(path), ())]


def path_name(path: str) -> str:
    """The job name of a path that git printed: relative to the top, normalised. A path that is too long for a name, or
    has characters that names may not have, cannot be claimed itself; the folders above it can."""
    return f"path:{path}"


def others_touched(holds: PathClaims, paths: Sequence[str], mine: set[PathClaim]) -> dict[PathClaim, list[str]]:
    """Claims of others, each with the changed paths that touch it."""
    found: dict[PathClaim, list[str]] = {}
    for path in paths:
        for hold in holds.touching(path):
            if hold not in mine:
                found.setdefault(hold, []).append(path)
    return found


def not_owned(holds: PathClaims, paths: Sequence[str], mine: set[PathClaim]) -> list[str]:
    """Paths that no claim of mine covers. A shared claim does not count, because it means that nobody changes
    anything."""
    return [path for path in paths if not any(hold in mine and hold.mode != SHARED for hold in holds.over(path))]
