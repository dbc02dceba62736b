"""Tests what a location allows, on temporary refs. They are deleted afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.base.errors import DibsError, NotAllowed
from dibs.base.ids import new_id
from dibs.core.durations import format_duration
from dibs.stores.git.entries import commit_text, new_body, oid_of, tail_of
from dibs.stores.git.location import HEADS_PREFIX
from dibs.stores.git.refs import Refs, Swap
from dibs.stores.git.repository import check_version
from dibs.stores.git.tips import Tips

TTL_MS_MIN = 60_000
TRIPS_A_TTL = 20  # so that a heartbeat may fail twice and be repeated
_REPLACES = "a ref can be replaced by an unrelated commit, if it has the expected value"
_FOLLOWS = "a ref can be changed; the remote accepts only fast-forward changes, so a job's history is never cut"


class Probe:
    def __init__(self, tips: Tips, steady_ms: Callable[[], int]) -> None:
        self._tips = tips
        self._refs: Refs = tips.refs
        self._steady_ms = steady_ms
        # If refs cannot be deleted, these stay like other deleted records, until somebody can delete them.
        self._keys = [f"probe/{new_id()}", f"probe/{new_id()}"]
        self._tails = [tail_of(key) for key in self._keys]
        self._at = ["", ""]
        self._follows = False  # the remote accepts only fast-forward changes
        self.checks: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        self._add("git", True, f"version {'.'.join(map(str, check_version()))}")
        began_ms = self._steady_ms()
        try:
            self._steps(began_ms)
        finally:
            self._clean()
        return self.checks

    def _steps(self, began_ms: int) -> None:
        creates = f"refs can be created below {self._tips.location.prefix}/"
        if not (self._step("create", [0], creates) and self._step("replace", [0], _REPLACES)):
            return
        # The basis of claims: a change with a wrong expected value is refused.
        stale = Swap(self._tails[0], self._commit(0), self._commit(0))
        self._add("compare", not self._refs.swap([stale]), "a change with a wrong expected value is refused")
        if not self._step("together", [0, 1], "several refs change in one step, or none"):
            return
        pushed_ms = self._steady_ms() - began_ms
        found = self._refs.look(self._tails)
        seen = [found.get(tail, "") for tail in self._tails] == self._at
        self._add("read", seen, "what was written is read back" if seen else "what was written is not read back")
        read_ms = self._steady_ms() - began_ms - pushed_ms
        at = self._at
        self._at = ["", ""]
        try:
            done = self._refs.swap([Swap(tail, oid, "") for tail, oid in zip(self._tails, at, strict=True)])
        except DibsError as error:
            self._at = at
            self._add("delete", False, f"{error.details} Claims work, but `dibs gc` cannot clear away old refs.")
        else:
            self._add("delete", done, "refs can be deleted")
        self._tips.look([""])
        for notice in self._tips.notices():
            self._add("tokens", True, notice)
        self._clocks()
        self._suggest(pushed_ms // 4, read_ms)

    def _step(self, check: str, which: list[int], says: str) -> bool:
        """False if it failed: the next steps depend on it."""
        made = [self._commit(index) for index in which]
        swaps = [Swap(self._tails[index], self._at[index], oid) for index, oid in zip(which, made, strict=True)]
        try:
            done = self._refs.swap(swaps)
        except DibsError as error:
            if check == "replace" and isinstance(error, NotAllowed) and not self._follows:
                self._follows = True
                return self._step(check, which, _FOLLOWS)
            self._add(check, False, f"{error.details}{self._other_prefix() if check == 'create' else ''}")
            return False
        for index, oid in zip(which, made, strict=True):
            self._at[index] = oid
        self._add(check, done, says if done else "the remote did not do it, and did not say why")
        return True

    def _commit(self, index: int) -> str:
        body = new_body(self._keys[index], self._tips.time.stamp())
        parent = self._at[index] if self._follows else ""
        text = commit_text(body, parent, self._refs.tree(), self._tips.time.wall_ms() // 1000)
        self._refs.keep([text])
        return oid_of("commit", text, self._refs.algorithm)

    def _clocks(self) -> None:
        """Tell whether this machine may use the clock to decide which claims are over."""
        tips = self._tips
        ahead_ms = tips.time.ahead_ms()
        if ahead_ms is None:
            by_watch = "another machine's claim counts as over when this one has watched it for its TTL"
            stated = f"clocks are stated to be within {format_duration(tips.location.skew_ms)} of each other"
            rule = stated if tips.location.skew_is_stated else by_watch
            self._add("clocks", True, f"the remote tells no time; {rule}")
            return
        way = "ahead of" if ahead_ms > 0 else "behind"
        apart = f"{format_duration(abs(ahead_ms))} {way}" if abs(ahead_ms) >= 1000 else "in step with"
        says = f"this machine's is {apart} the remote's"
        if tips.time.is_off():
            says += (
                f", and {format_duration(tips.location.skew_ms)} are allowed: set it right. Until then another "
                "machine's claim counts as over only when this one has watched it for its whole TTL"
            )
        self._add("clocks", not tips.time.is_off(), says)

    def _suggest(self, push_ms: int, read_ms: int) -> None:
        claim_ms = read_ms + push_ms
        self._add("speed", True, f"a read takes {read_ms} ms, a write about {push_ms} ms, so a claim {claim_ms} ms")
        ttl_ms = -(-max(TTL_MS_MIN, claim_ms * TRIPS_A_TTL) // 60_000) * 60_000
        self._add("ttl", True, f"--ttl {format_duration(ttl_ms)} or longer leaves room for failed heartbeats")

    def _other_prefix(self) -> str:
        """A prefix that works instead, if there is one."""
        location = self._tips.location
        if location.is_local or location.prefix == HEADS_PREFIX:
            return ""
        before = location.prefix
        location.prefix, oid = HEADS_PREFIX, self._commit(0)
        try:
            works = self._refs.swap([Swap(self._tails[0], "", oid)])
            if works:
                self._at[0] = oid
                self._clean()
        except DibsError:
            works = False
        finally:
            location.prefix = before
        return f" {HEADS_PREFIX} works: add ?prefix={HEADS_PREFIX}." if works else ""

    def _clean(self) -> None:
        left = [Swap(tail, oid, "") for tail, oid in zip(self._tails, self._at, strict=True) if oid]
        self._at = ["", ""]
        for swap in left:
            try:
                self._refs.swap([swap])
            except DibsError:
                self._add("clean up", False, f"{self._refs.name(swap.tail)} was left behind; you may delete it")

    def _add(self, check: str, ok: bool, says: str) -> None:
        self.checks.append({"check": check, "ok": ok, "says": says})
