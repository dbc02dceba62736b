"""Finds the first due records without reading the whole index.

etcd up to 3.4 counts all keys of a range before it returns the first few of them, so on a large store the range must be
narrow. The earliest key is usually not far behind the last earliest one. So the range ends a little after that, and is
widened until it holds something. A small store is read as a whole.
"""

from __future__ import annotations

from dibs.stores.etcd.gateway import unb64
from dibs.stores.etcd.layout import end_of
from dibs.stores.etcd.transaction import range_op

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.stores.etcd.layout import Layout

    Document = dict[str, Any]

SMALL = 1_000
FIRST_STEP_MS = 1_000
STEPS_MAX = 14  # beyond about 4 hours everything is read


class DueIndex:
    """`ask` reads one range; `now` is the store's time."""

    def __init__(self, layout: Layout, ask: Callable[[Document], Document], now: Callable[[], int]) -> None:
        self._layout = layout
        self._ask = ask
        self._now = now
        self._is_large = False
        self._earliest_ms = 0

    def first(self, limit: int) -> list[tuple[int, str]]:
        """Up to `limit` keys in the order of their times: at least one if there is any, and all that are due now, up to
        the limit. It may return fewer than `limit`, because only a part of the index was read."""
        until_ms, step_ms = max(self._now(), self._earliest_ms), FIRST_STEP_MS
        for _ in range(STEPS_MAX if self._is_large else 0):
            found = self._range(self._layout.due(until_ms + 1, ""), limit)
            if found:
                self._earliest_ms = found[0][0]
                return found
            until_ms, step_ms = until_ms + step_ms, step_ms * 2
        found = self._range(end_of(self._layout.dues), limit, whole=True)
        self._earliest_ms = found[0][0] if found else 0
        return found

    def _range(self, end: bytes, limit: int, *, whole: bool = False) -> list[tuple[int, str]]:
        answer = self._ask(range_op(self._layout.dues, end=end, limit=limit, keys_only=True))
        if whole:
            self._is_large = int(answer.get("count", 0)) > SMALL
        return [self._layout.split_due(unb64(kv["key"])) for kv in answer.get("kvs") or ()]
