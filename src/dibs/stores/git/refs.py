"""Refs compared and swapped: in a clone with one transaction, at a remote with one atomic push.

A `Swap` has a ref's expected old value and its new value. `swap` returns True if all refs were changed, and False if
some ref did not have its old value and nothing was changed. Everything else raises an error.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from dibs.base import clock
from dibs.base.errors import StoreUnavailable
from dibs.base.git_program import GitResult
from dibs.base.ids import new_id
from dibs.core.limits import GIT_RECORD_BYTES_MAX
from dibs.stores.git import errors as trouble
from dibs.stores.git import times as remoteclock
from dibs.stores.git.branch_push import BranchUpdate
from dibs.stores.git.entries import oid_of, pack
from dibs.stores.git.location import GitLocation
from dibs.stores.git.repository import file_lock
from dibs.stores.git.times import Reading

EMPTY_TREE = b""
LOOSE_MAX = 20
CACHE_FILES_MAX = 20_000
ALGORITHMS = ("sha1", "sha256")
CLOCK_KEPT_MS = 60_000


class Swap(NamedTuple):
    """One ref, below the prefix. Empty `old`: it must not exist. Empty `new`: delete it. Both the same: compare."""

    tail: str
    old: str
    new: str


class Refs(ABC):
    """Reads and changes refs for the store. `verifies`: unchanged refs can be compared in the same step."""

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
        if not self._algorithm:
            self.make()
            self._algorithm = self.git.ask("rev-parse", "--show-object-format").decode().strip()
        return self._algorithm

    def make(self) -> None:  # noqa: B027 - a clone is there
        """Make the repository if it is missing."""

    def shrink(self) -> None:  # noqa: B027 - a clone has none
        """Delete what is only a cache, if it is large and nobody uses it."""

    def name(self, tail: str) -> str:
        return f"{self.location.prefix}/{tail}"

    @abstractmethod
    def look(self, tails: Sequence[str]) -> dict[str, str]:
        """Return what refs point at. A tail that ends in `/` means all refs below it, an empty one all refs."""

    @abstractmethod
    def swap(self, swaps: Sequence[Swap], branch_update: BranchUpdate | None = None) -> bool:
        """Change all refs, or none and return False. `branch_update`: a branch in the same push, all or nothing."""

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
            end = position + int(head[2])
            found[head[0]] = (head[1], raw[position:end])
            position = end + 1
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


# The refs of a clone, compared and swapped in one transaction of `git update-ref`.


class LocalRefs(Refs):
    verifies = True
    durably = ("core.fsync=loose-object,pack,reference",)  # git 2.36 and newer; older ones leave it to the system

    def look(self, tails: Sequence[str]) -> dict[str, str]:
        patterns = [self.name(tail).rstrip("/") for tail in tails]
        return self._list(patterns, self.location.prefix + "/") if patterns else {}

    def swap(self, swaps: Sequence[Swap], branch_update: BranchUpdate | None = None) -> bool:
        nothing = "0" * len(self.tree())
        lines = []
        for each in swaps:
            name, old, new = self.name(each.tail), each.old or nothing, each.new or nothing
            if each.old == each.new:
                lines.append(f"verify {name} {old}\n")
            elif not each.new:
                lines.append(f"delete {name} {old}\n")
            else:
                lines.append(f"update {name} {new} {old}\n")
        given = "".join(lines).encode()
        result = self.git.run("update-ref", "--no-deref", "--stdin", given=given, config=self.durably)
        if not result.code and not result.timed_out:
            return True
        now = self.look([each.tail for each in swaps])
        if all(now.get(each.tail, "") == each.new for each in swaps):
            return True  # killed because it took too long, but it had finished
        if any(now.get(each.tail, "") == each.new != each.old for each in swaps):
            raise trouble.torn(self.location, result)
        if any(now.get(each.tail, "") != each.old for each in swaps) or trouble.is_passing(result):
            return False
        raise trouble.refused(self.location, result)


# The refs of a remote, compared and swapped in one atomic push from a private repository.


class RemoteRefs(Refs):
    """The refs of a remote, through a private repository. It is made on first use, and deleted when it is too large. It
    is a cache: everything in it came from the remote, or was pushed there."""

    verifies = False

    def _use(self) -> AbstractContextManager[bool]:
        """Held by every user of the private repository, so that nobody deletes it meanwhile."""
        return file_lock(self.location.folder, "use.lock", shared=True)

    def look(self, tails: Sequence[str]) -> dict[str, str]:
        if not tails:
            return {}
        with self._use():
            self.make()
            # Two processes that fetch into the same refs would conflict: one uses the mirror, others have other refs.
            with file_lock(self.location.folder, "mirror.lock", waits=False) as mine:
                space = "refs/mirror" if mine else f"refs/aside/{new_id()}"
                try:
                    self._fetch(tails, space)
                    return self._list([f"{space}/{tail}".rstrip("/") for tail in tails], space + "/")
                finally:
                    if not mine:
                        self._forget(space)

    def make(self, algorithm: str = ALGORITHMS[0]) -> None:
        """Make the repository, completely or not at all. Two processes that make it at once make the same."""
        path = self.git.git_dir
        if os.path.isdir(path):
            return
        made = f"{path}.{new_id()}"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.git.ask("init", "--quiet", "--bare", "--template=", f"--object-format={algorithm}", made)
            with open(os.path.join(made, "config"), "a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(self._settings())
            os.rename(made, path)
        except OSError as error:
            if not os.path.isdir(path):
                raise StoreUnavailable(f"{path} cannot be made: {error.strerror}.") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _settings(self) -> str:
        """The clone's configuration, so that credentials, rewritten addresses and proxies are its own."""
        if not self.location.include:
            return ""
        path = os.path.relpath(self.location.include, self.git.git_dir)
        quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (path, self.location.name)]
        return (
            f'[include]\n\tpath = "{quoted[0]}"\n'
            f'[remote "{quoted[1]}"]\n\tmirror = false\n\tpromisor = false\n\tprune = false\n\ttagOpt = --no-tags\n'
        )

    def shrink(self) -> None:
        path = self.git.git_dir
        if sum(len(files) for _, _, files in os.walk(path)) > CACHE_FILES_MAX:
            with file_lock(self.location.folder, "use.lock", waits=False) as is_alone:
                if is_alone:
                    shutil.rmtree(path, ignore_errors=True)

    def _fetch(self, tails: Sequence[str], space: str) -> None:
        # A pattern even for one ref: then a missing ref is not an error, and the server lists no others.
        words = ("fetch", *_FETCH, self.location.remote, *[f"+{self.name(tail)}*:{space}/{tail}*" for tail in tails])
        result = self._timed(words)
        if result.code and trouble.is_passing(result):
            # Nobody else writes there, so lock files there are left over from a killed fetch.
            for folder, _, files in os.walk(os.path.join(self.git.git_dir, space)):
                for name in files:
                    if name.endswith(".lock"):
                        os.unlink(os.path.join(folder, name))
            result = self._reach(*words)
        if not result.timed_out and "mismatched algorithms" in result.err:
            self._take_other_algorithm()
            result = self._reach(*words)
        if result.code or result.timed_out:
            raise trouble.unreachable(self.location, result)

    def _timed(self, words: Sequence[str]) -> GitResult:
        """Over HTTP, read the server's clock from its answer."""
        if not self.location.address.startswith(("http://", "https://")) or os.environ.get("GIT_TRACE_CURL"):
            return self._reach(*words)
        path = os.path.join(self.location.folder, f"answer.{new_id()}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        extra = {"GIT_TRACE_CURL": path, "GIT_TRACE_CURL_NO_DATA": "1", "GIT_TRACE_REDACT": "1"}
        try:
            began_ms = clock.steady_ms()
            result = self.git.run(*words, timeout_ms=self.location.timeout_ms, extra=extra)
            self._reading = remoteclock.of_trace(path, began_ms, clock.steady_ms()) or self._reading
            return result
        finally:
            os.unlink(path)

    def _take_other_algorithm(self) -> None:
        """The remote uses another hash algorithm. A remote without refs shows this only on a push."""
        other = next(name for name in ALGORITHMS if name != self.algorithm)
        shutil.rmtree(self.git.git_dir, ignore_errors=True)
        self.make(other)
        self._algorithm = ""

    def _forget(self, space: str) -> None:
        names = self.git.ask("for-each-ref", "--format=delete %(refname)", space)
        if names:
            self.git.run("update-ref", "--stdin", given=names)

    def _reach(self, *words: str) -> GitResult:
        return self.git.run(*words, timeout_ms=self.location.timeout_ms)

    def keep(self, commits: Sequence[bytes]) -> None:
        with self._use():
            super().keep(commits)

    def swap(self, swaps: Sequence[Swap], branch_update: BranchUpdate | None = None) -> bool:
        with self._use():
            result = self._push(swaps, branch_update)
        return _all_accepted(result, swaps, self.location.prefix) or self._outcome_of(swaps, result, branch_update)

    def _push(self, swaps: Sequence[Swap], branch_update: BranchUpdate | None) -> GitResult:
        # A single ref needs no transaction, and some hosts have none.
        moves = [(self.name(each.tail), each.old, each.new) for each in swaps]
        if branch_update is not None and branch_update.old != branch_update.new:
            moves.append((branch_update.name, branch_update.old, branch_update.new))
        words = ["push", *_PUSH, *(["--atomic"] if len(moves) > 1 else [])]
        words += [f"--force-with-lease={name}:{old}" for name, old, _ in moves]
        # With an address git keeps no tracking ref, which would point at objects that only the clone has.
        words.append(self.location.address if branch_update is not None else self.location.remote)
        words += [f"{new}:{name}" for name, _, new in moves]
        env = branch_update.env if branch_update else {}
        return self.git.run(*words, timeout_ms=self.location.timeout_ms, extra=env)

    def _outcome_of(self, swaps: Sequence[Swap], result: GitResult, branch_update: BranchUpdate | None) -> bool:
        """The push did not report success: read its outcome from the refs."""
        if not result.timed_out and "hash algorithm" in result.err:
            self._take_other_algorithm()
            return False
        maybe = trouble.may_have_arrived(result)
        try:
            now = self.look([each.tail for each in swaps])
        except StoreUnavailable as error:
            raise trouble.lost(self.location, result, unknown=maybe) from error
        if not result.code and not result.timed_out:
            return False  # "up to date": somebody else's, because no two records are equal
        changed = [each for each in swaps if each.old != each.new]
        # Even if it was refused: a transport may have sent it twice, and only the second one was answered.
        if self._is_mine(changed[0], now.get(changed[0].tail, "")):
            if all(self._is_mine(each, now.get(each.tail, "")) for each in changed):
                return True
            raise trouble.torn(self.location, result)
        if any(now.get(each.tail, "") != each.old for each in swaps):
            return False  # and what was sent will not be accepted later, either
        if maybe:
            # Not there yet, but the server may still be working on it.
            raise trouble.lost(self.location, result, unknown=True)
        if branch_update is not None:
            branch_update.check(self.location)
        if trouble.is_passing(result):
            return False
        raise trouble.refused(self.location, result)

    def _is_mine(self, swap: Swap, tip: str) -> bool:
        """Return whether our push arrived: the ref has our commit, or a commit that follows it."""
        if tip == swap.new:
            return True
        if not tip or not swap.new:
            return False
        chain = self.chain([tip])
        # A restarted chain names the commit that it replaced.
        return swap.new in chain or swap.new.encode() in self.objects(chain[-1:])[chain[-1]][1]


_FETCH = (
    "--quiet",
    "--prune",
    "--no-tags",
    "--no-write-fetch-head",
    "--refmap=",
    "--no-recurse-submodules",
    "--no-auto-maintenance",
    "--no-show-forced-updates",
)
_PUSH = (
    "--porcelain",
    "--no-verify",
    "--no-follow-tags",
    "--no-signed",
    "--no-recurse-submodules",
    "--no-force-if-includes",
)


def _all_accepted(result: GitResult, swaps: Sequence[Swap], prefix: str) -> bool:
    """Return whether the server accepted every change. "Up to date" counts only for a ref that was compared."""
    if result.code or result.timed_out:
        return False
    flags = {}
    for line in result.out.decode("utf-8", "replace").splitlines():
        flag, _, rest = line.partition("\t")
        flags[rest.partition("\t")[0].rpartition(":")[2]] = flag
    names = {f"{prefix}/{each.tail}": each.old == each.new for each in swaps}
    return all(
        flags.get(name) in ((" ", "*", "+", "-", "=") if looked else (" ", "*", "+", "-"))
        for name, looked in names.items()
    )
