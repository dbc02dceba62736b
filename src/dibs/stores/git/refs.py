"""Refs compared and swapped: in a clone with one transaction, at a remote with one atomic push.

A `Swap` has a ref's expected old value and its new value. `swap` returns True if all refs were changed, and False if
some ref did not have its old value and nothing was changed. Everything else raises an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from dibs.base import clock
from dibs.core.limits import GIT_RECORD_BYTES_MAX
from dibs.stores.git import remoteclock
from dibs.stores.git.entries import oid_of, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dibs.stores.git.branch_push import BranchUpdate
    from dibs.stores.git.location import GitLocation
    from dibs.stores.git.remoteclock import Reading

EMPTY_TREE = b""
LOOSE_MAX = 20
CLOCK_KEPT_MS = 60_000


class Swap:
    """One ref, below the prefix. An empty `old`: it must not exist. An empty `new`: delete it. If both are the same, it
    is only compared."""

    __slots__ = ("new", "old", "tail")

    def __init__(self, tail: str, old: str, new: str) -> None:
        self.tail = tail
        self.old = old
        self.new = new


class Refs(ABC):
    """What the store needs from git. `verifies`: unchanged refs can be compared in the same step."""

    verifies: bool
    durably: tuple[str, ...] = ()  # settings that make git wait for the disk

    def __init__(self, location: GitLocation) -> None:
        self.location = location
        self.git = location.git
        self._algorithm = ""
        self._reading: Reading | None = None
        self._read_ms = 0

    def clock(self) -> Reading | None:
        """The remote's clock, if it has one; read again after a minute."""
        now_ms = clock.steady_ms()
        if self.location.objects and (not self._read_ms or now_ms - self._read_ms > CLOCK_KEPT_MS):
            self._reading = remoteclock.of_folder(self.location.objects, clock.steady_ms)
            self._read_ms = now_ms
        return self._reading

    @property
    def algorithm(self) -> str:
        """The hash algorithm of this repository."""
        if not self._algorithm:
            self._make()
            self._algorithm = self.git.ask("rev-parse", "--show-object-format").decode().strip()
        return self._algorithm

    @abstractmethod
    def _make(self) -> None:
        """Make the repository if it is missing."""

    def name(self, tail: str) -> str:
        return f"{self.location.prefix}/{tail}"

    @abstractmethod
    def look(self, tails: Sequence[str]) -> dict[str, str]:
        """What refs point at. A tail that ends in `/` means all refs below it, an empty one all refs."""

    @abstractmethod
    def swap(self, swaps: Sequence[Swap], branch_update: BranchUpdate | None = None) -> bool:
        """See the module's text. `branch_update`: a branch in the same push, all or nothing."""

    def objects(self, oids: Iterable[str]) -> dict[str, tuple[str, bytes]]:
        """Kind and content of objects. A missing one has the kind `missing`. An object that is not a commit, or is too
        large to be one of ours, has no content: a ref may point at anything."""
        found = self._kinds(oids)
        given = "".join([f"{oid}\n" for oid, (kind, _) in found.items() if kind == "commit"]).encode()
        if not given:
            return found
        raw = self.git.ask("cat-file", "--batch", given=given)
        position = 0
        while position < len(raw):
            end = raw.index(b"\n", position)
            head = raw[position:end].decode().split(" ")
            position = end + 1
            if len(head) != 3:
                found[head[0]] = ("missing", b"")
                continue
            size = int(head[2])
            found[head[0]] = (head[1], raw[position : position + size])
            position += size + 1
        return found

    def _kinds(self, oids: Iterable[str]) -> dict[str, tuple[str, bytes]]:
        given = "".join([f"{oid}\n" for oid in oids]).encode()
        lines = self.git.ask("cat-file", "--batch-check", given=given).decode().splitlines() if given else []
        found: dict[str, tuple[str, bytes]] = {}
        for line in lines:
            oid, kind, *size = line.split(" ")
            is_large = bool(size) and int(size[0]) > GIT_RECORD_BYTES_MAX
            found[oid] = (f"{kind} of {size[0]} bytes" if is_large else kind, b"")
        return found

    def tree(self) -> str:
        return oid_of("tree", EMPTY_TREE, self.algorithm)

    def keep(self, commits: Sequence[bytes]) -> None:
        """Write commits. No ref points at them yet."""
        objects = [("tree", EMPTY_TREE), *[("commit", each) for each in commits]]
        # Many are written as one pack, which is one file instead of one for each.
        words = ("unpack-objects", "-q") if len(commits) < LOOSE_MAX else ("index-pack", "--stdin")
        self.git.ask(*words, given=pack(objects, self.algorithm), config=self.durably)

    def chain(self, oids: Sequence[str]) -> list[str]:
        """These commits and all commits they replaced, in order."""
        given = "".join([f"{oid}\n" for oid in oids]).encode()
        return self.git.ask("rev-list", "--stdin", given=given).decode().split() if given else []

    def _list(self, patterns: Sequence[str], strip: str) -> dict[str, str]:
        raw = self.git.ask("for-each-ref", "--format=%(objectname) %(refname)", *patterns)
        lines = [line.split(" ", 1) for line in raw.decode("utf-8", "replace").splitlines()]
        return {name.removeprefix(strip): oid for oid, name in lines}
