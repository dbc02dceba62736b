"""Finds the claims of a tree that overlap a name. A tree may have thousands of claims, and one command may ask about a
hundred names, so after a few questions the claims are sorted and looked up instead of walked through.

Names below a name begin with it, so they are adjacent in a sorted list; names above it are its prefixes. The result is
the same as with `names.overlaps`.
"""

from __future__ import annotations

from dibs.core.names import above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.records import TreeClaim

_WALKS = 2  # a claim on one name asks twice, which costs less than sorting


class Overlap:
    """The claims of one tree at one moment."""

    __slots__ = ("_asked", "_names", "_places", "claims")

    def __init__(self, claims: tuple[TreeClaim, ...]) -> None:
        self.claims = claims
        self._asked = 0
        self._names: list[str] = []
        self._places: dict[str, list[int]] = {}

    def of(self, name: str) -> list[TreeClaim]:
        """The claims on other names that overlap `name`, oldest first."""
        if name.startswith("repo:"):
            return [claim for claim in self.claims if claim.name != name]
        self._asked += 1
        beneath = name if name.endswith("/") else f"{name}/"
        if self._asked <= _WALKS:
            return self._walk(name, ("repo:", beneath))
        if not self._names:
            self._sort()
        found = [each for each in above(name) if each in self._places]
        found += self._beginning(beneath) + self._beginning("repo:")
        places = sorted([at for each in found if each != name for at in self._places[each]])
        return [self.claims[at] for at in places]

    def _walk(self, name: str, beneath: tuple[str, str]) -> list[TreeClaim]:
        over = frozenset(above(name))
        return [
            claim
            for claim in self.claims
            if (claim.name in over or claim.name.startswith(beneath)) and claim.name != name
        ]

    def _sort(self) -> None:
        for at, claim in enumerate(self.claims):
            self._places.setdefault(claim.name, []).append(at)
        self._names = sorted(self._places)

    def _beginning(self, prefix: str) -> list[str]:
        from bisect import bisect_left

        at = bisect_left(self._names, prefix)
        found = []
        while at < len(self._names) and self._names[at].startswith(prefix):
            found.append(self._names[at])
            at += 1
        return found
