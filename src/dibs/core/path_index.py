"""An index of paths: the claims and places of a tree whose names overlap one.

A tree may have thousands of claims and places, and one command may ask about a thousand names. So they are sorted once
and looked up instead of walked through: names below a name begin with it, so they are adjacent in a sorted list; names
above it are its prefixes. The result is the same as with `overlap.overlaps`.
"""

from __future__ import annotations

from bisect import bisect_left

from dibs.core.overlap import above
from dibs.core.records import SHARED, TreeClaim, TreeEntry

_WALKS = 2  # a claim on one name asks twice, which costs less than sorting


class _Names:
    """Keeps what is at each name of a tree, as rising numbers, and finds the names that overlap one."""

    __slots__ = ("_sorted", "at")

    def __init__(self) -> None:
        self.at: dict[str, list[int]] = {}
        self._sorted: list[str] = []

    def add(self, name: str, number: int) -> None:
        if name not in self.at:
            self.at[name] = []
        self.at[name].append(number)

    def near(self, name: str) -> list[str]:
        """The names that overlap `name`, itself among them."""
        if name.startswith("repo:"):
            return list(self.at)
        if not self._sorted:
            self._sorted = sorted(self.at)
        found = [each for each in (name, *above(name)) if each in self.at]
        found += self._beginning(name if name.endswith("/") else f"{name}/") + self._beginning("repo:")
        return list(dict.fromkeys(found))  # `path:/` begins with itself

    def _beginning(self, prefix: str) -> list[str]:
        at = bisect_left(self._sorted, prefix)
        found = []
        while at < len(self._sorted) and self._sorted[at].startswith(prefix):
            found.append(self._sorted[at])
            at += 1
        return found


class Overlap:
    __slots__ = ("_asked", "_names", "claims")

    def __init__(self, claims: tuple[TreeClaim, ...]) -> None:
        self.claims = claims
        self._asked = 0
        self._names = _Names()

    def of(self, name: str) -> list[TreeClaim]:
        """The claims on other names that overlap `name`, oldest first."""
        if name.startswith("repo:"):
            return [claim for claim in self.claims if claim.name != name]
        self._asked += 1
        if self._asked <= _WALKS:
            over, beneath = frozenset(above(name)), ("repo:", name if name.endswith("/") else f"{name}/")
            near = [claim for claim in self.claims if claim.name in over or claim.name.startswith(beneath)]
            return [claim for claim in near if claim.name != name]
        if not self._names.at:
            for at, claim in enumerate(self.claims):
                self._names.add(claim.name, at)
        found = [self._names.at[each] for each in self._names.near(name) if each != name]
        return [self.claims[at] for at in sorted([at for group in found for at in group])]


class TreeQueue:
    """The places of one tree, by rising numbers. One that leaves is taken out, so all are sorted once in a decision."""

    __slots__ = ("_all", "_entries", "_exclusive", "line")

    def __init__(self, line: tuple[TreeEntry, ...]) -> None:
        self.line = line
        self._entries = {entry.number: entry for entry in line}
        self._all = _Names()
        self._exclusive = _Names()
        for entry in line:
            self._all.add(entry.name, entry.number)
            if entry.mode != SHARED:
                self._exclusive.add(entry.name, entry.number)

    def of(self, name: str) -> list[TreeEntry]:
        """The places that overlap `name`, first come first."""
        numbers = [number for each in self._all.near(name) for number in self._all.at[each]]
        return [self._entries[number] for number in sorted(numbers)]

    def has(self, number: int) -> bool:
        return number in self._entries

    def first(self, name: str, mode: str) -> TreeEntry | None:
        numbers = [group[0] for group in self._excluding(name, mode) if group]
        return self._entries[min(numbers)] if numbers else None

    def count(self, name: str, mode: str, before: int) -> int:
        """Return how many places exclude a claim on `name`, of those before this number; 0: of all."""
        groups = self._excluding(name, mode)
        return sum([bisect_left(group, before) if before else len(group) for group in groups])

    def _excluding(self, name: str, mode: str) -> list[list[int]]:
        names = self._exclusive if mode == SHARED else self._all
        return [names.at[each] for each in names.near(name)]

    def remove(self, name: str, number: int) -> bool:
        """Take a place out of the queue. False if it is not there."""
        entry = self._entries.get(number)
        if entry is None or entry.name != name:
            return False
        del self._entries[number]
        at = bisect_left(self.line, number, key=lambda each: each.number)
        self.line = self.line[:at] + self.line[at + 1 :]
        self._all.at[name].remove(number)
        if entry.mode != SHARED:
            self._exclusive.at[name].remove(number)
        return True
