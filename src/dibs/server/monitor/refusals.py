"""Requests of unknown callers and of callers who may not: counted, and told in the log, at most a line of each kind in
LOG_EVERY_MS, however many there are. No line holds a token."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.base.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.engine.metrics import Metrics

log = logging.getLogger("dibs")

LOG_EVERY_MS = 10_000


class Refusals:
    """For one event loop."""

    def __init__(self, metrics: Metrics, steady: Callable[[], int] = steady_ms) -> None:
        self._counts = metrics.refused
        self._steady = steady
        self._told = dict.fromkeys(self._counts, 0)  # how many were refused at the last line
        self._next_line_ms = dict.fromkeys(self._counts, 0)

    def note(self, status: int, verb: str, client: str, principal: Callable[[], str]) -> None:
        if status not in self._counts:
            return
        self._counts[status] += 1
        now_ms = self._steady()
        if now_ms < self._next_line_ms[status] or not log.isEnabledFor(logging.INFO):
            return
        log.info(
            "refused %d request(s) with %d, the last: %s of %s from %s",
            self._counts[status] - self._told[status],
            status,
            verb,
            plain(principal()),
            client,
        )
        self._told[status] = self._counts[status]
        self._next_line_ms[status] = now_ms + LOG_EVERY_MS
