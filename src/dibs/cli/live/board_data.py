"""Looks at the store again and again, for the board."""

from __future__ import annotations

from dibs.base.clock import steady_ms
from dibs.cli.framework.result import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Document = dict[str, Any]


class BoardData:
    """One look. `failure` is set if it failed: then `locks` are those of the last one that did not."""

    def __init__(self, locks: list[Document], locks_ms: int, failure: Answer | None) -> None:
        self.locks = locks
        self.locks_ms = locks_ms  # when they were read
        self.failure = failure
        self.rates: tuple[float, float] | None = None


class BoardLooks:
    def __init__(self, fetch: Callable[[], Document | Answer]) -> None:
        self._fetch = fetch
        self._locks: list[Document] = []
        self._locks_ms = 0

    def look(self) -> BoardData:
        found = self._fetch()
        if isinstance(found, Answer):
            return BoardData(self._locks, self._locks_ms, found)
        self._locks, self._locks_ms = found["locks"], steady_ms()
        return BoardData(self._locks, self._locks_ms, None)
