"""What a place for refs allows, found out by doing it on refs of a moment. Nothing of it stays."""

from __future__ import annotations

from dibs.core.durations import format_duration
from dibs.errors import DibsError
from dibs.ids import new_id
from dibs.stores.git.entries import commit_text, oid_of
from dibs.stores.git.place import PREFIX
from dibs.stores.git.process import check_version
from dibs.stores.git.refs import Swap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.stores.git.refs import Refs
    from dibs.stores.git.store import GitStore

HEADS_PREFIX = "refs/heads/dibs"
TTL_MS_MIN = 60_000
TRIPS_A_TTL = 20  # so that a heartbeat may fail and be repeated, on a bad day, twice


class _Stopped(Exception):
    """A step failed, and the ones after it need it."""


class Probe:
    """The steps, in order. Each says what it tried."""

    def __init__(self, store: GitStore, steady_ms: Callable[[], int]) -> None:
        self._store = store
        self._refs: Refs = store.refs
        self._steady_ms = steady_ms
        self._tails = [f"probe/{new_id()}", f"probe/{new_id()}"]
        self._at = ["", ""]
        self.checks: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        self._note("git", True, f"version {'.'.join(map(str, check_version()))}")
        began_ms = self._steady_ms()
        try:
            self._steps(began_ms)
        except _Stopped:
            pass
        finally:
            self._clean()
        return self.checks

    def _steps(self, began_ms: int) -> None:
        prefix = self._store.place.prefix
        self._step("create", [0], f"refs can be made below {prefix}/")
        self._step("replace", [0], "a ref can be replaced by something unrelated, if it is what was expected")
        self._stale()
        self._step("together", [0, 1], "several refs change in one step, or none")
        pushed_ms = self._steady_ms() - began_ms
        read_ms = self._read()
        at = self._at
        self._at = ["", ""]
        try:
            done = self._refs.swap([Swap(tail, oid, "") for tail, oid in zip(self._tails, at, strict=True)])
        except DibsError as error:
            self._at = at
            self._note(
                "delete", False, f"{error.details} Claims work, but `dibs gc` cannot clear away old refs."
            )
        else:
            self._note("delete", done, "refs can be deleted")
        self._suggest(pushed_ms // 4, read_ms)

    def _step(self, check: str, which: list[int], says: str) -> None:
        made = [self._commit() for _ in which]
        swaps = [
            Swap(self._tails[index], self._at[index], oid) for index, oid in zip(which, made, strict=True)
        ]
        try:
            done = self._refs.swap(swaps)
        except DibsError as error:
            self._note(check, False, f"{error.details}{self._other_prefix() if check == 'create' else ''}")
            raise _Stopped from None
        for index, oid in zip(which, made, strict=True):
            self._at[index] = oid
        self._note(check, done, says if done else "the remote did not do it, and did not say why")

    def _stale(self) -> None:
        """What claims stand on: a change that expects something else is refused."""
        swap = Swap(self._tails[0], self._commit(), self._commit())
        self._note(
            "compare",
            not self._refs.swap([swap]),
            "a change that expects something else than what is there is refused",
        )

    def _commit(self) -> str:
        body = {"dibs": 1, "key": "probe", "record": None, "nonce": new_id()}
        text = commit_text(body, "", self._refs.tree(), 0)
        self._refs.keep([text])
        return oid_of("commit", text, self._refs.algorithm)

    def _read(self) -> int:
        began_ms = self._steady_ms()
        found = self._refs.look(self._tails)
        seen = [found.get(tail, "") for tail in self._tails] == self._at
        self._note(
            "read", seen, "what was written is read back" if seen else "what was written is not read back"
        )
        return self._steady_ms() - began_ms

    def _suggest(self, push_ms: int, read_ms: int) -> None:
        said = f"a read takes {read_ms} ms, a write about {push_ms} ms, so a claim {read_ms + push_ms} ms"
        self._note("speed", True, said)
        ttl_ms = max(TTL_MS_MIN, (read_ms + push_ms) * TRIPS_A_TTL)
        ttl_ms = -(-ttl_ms // 60_000) * 60_000
        self._note(
            "ttl", True, f"--ttl {format_duration(ttl_ms)} or longer leaves room for failed heartbeats"
        )

    def _other_prefix(self) -> str:
        """Where it works instead, if it does."""
        place = self._store.place
        if place.is_local or place.prefix != PREFIX:
            return ""
        place.prefix, oid = HEADS_PREFIX, self._commit()
        try:
            works = self._refs.swap([Swap(self._tails[0], "", oid)])
            if works:
                self._at[0] = oid
                self._clean()
        except DibsError:
            works = False
        finally:
            place.prefix = PREFIX
        return f" {HEADS_PREFIX} works: add ?prefix={HEADS_PREFIX}." if works else ""

    def _clean(self) -> None:
        left = [Swap(tail, oid, "") for tail, oid in zip(self._tails, self._at, strict=True) if oid]
        self._at = ["", ""]
        for swap in left:
            try:
                self._refs.swap([swap])
            except DibsError:
                name = self._refs.name(swap.tail)
                self._note("clean up", False, f"{name} was left behind: delete it, or let it be")

    def _note(self, check: str, ok: bool, says: str) -> None:
        self.checks.append({"check": check, "ok": ok, "says": says})
