"""The highest fencing numbers that this clone has seen, kept in the clone.

A remote can be restored from a backup, or emptied by `git push --mirror` from a clone that has no claims. Its numbers
would then begin again, and a system that compares them would accept an old owner. A clone that has seen higher numbers
continues above them, and says so. Numbers that no clone has seen are lost.
"""

from __future__ import annotations

import os

from dibs.base import jsontext
from dibs.base.errors import StoreUnavailable
from dibs.base.files import SHARED, replace_file
from dibs.core.limits import GIT_TOKENS_KEPT
from dibs.stores.git.times import Locked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class HighWater:
    """See the module's text. `raised`: new numbers must be above this, because the remote was put back; 0: it was not.
    `fallen` names the refs that showed it, with the number seen before and the number found."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, "tokens.json")
        self._seen: dict[str, int] = self._load()
        self.raised = 0
        self.fallen: dict[str, tuple[int, int]] = {}

    def notice(self, found: Mapping[str, int], floor: int, *, whole: bool) -> None:
        """Compare the numbers found, by the tails of their jobs' refs, with those seen before, and remember what is
        higher. `whole`: `floor` was read with them. Otherwise it may have risen since, and a lower number means
        nothing."""
        risen: dict[str, int] = {}
        for tail, token in found.items():
            at, seen = max(token, floor), self._seen.get(tail, 0)
            if at > seen:
                risen[tail] = at
            elif at < seen:
                self.raised = max(self.raised, seen)
                if whole:
                    self.fallen[tail] = (seen, at)
        if risen:
            self._remember(risen)

    def known(self) -> list[str]:
        """The jobs that were seen, by the tails of their refs."""
        return list(self._seen)

    def passes(self, tail: str, before: int, after: int) -> bool:
        """Whether a job's number may go from `before` to `after`. If not, `raised` is what it must be above."""
        seen = self._seen.get(tail, 0)
        if before < after <= seen:
            self.raised = max(self.raised, seen)
            return False
        return True

    def _remember(self, risen: Mapping[str, int]) -> None:
        with Locked(self._folder):
            for tail, token in (*self._load().items(), *risen.items()):
                self._seen[tail] = max(token, self._seen.get(tail, 0))
            if len(self._seen) > GIT_TOKENS_KEPT:
                self._forget()
            self._save()

    def _forget(self) -> None:
        """Drop the lowest, because the high numbers matter most."""
        by_token = sorted(self._seen, key=self._seen.__getitem__)
        for tail in by_token[: len(by_token) - GIT_TOKENS_KEPT * 9 // 10]:
            del self._seen[tail]

    def _load(self) -> dict[str, int]:
        try:
            with open(self._path, encoding="utf-8") as file:
                kept = jsontext.decode(file.read())
            return {tail: token for tail, token in kept.items() if type(token) is int}
        except (OSError, ValueError, AttributeError):
            return {}

    def _save(self) -> None:
        try:
            replace_file(self._path, jsontext.encode(self._seen), mode=SHARED)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be written: {error.strerror}.") from None
