"""Counts what one server saw: refusals, and in each of the last minutes requests, new leases, releases, and leases."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.logger import log
from dibs.base.terminal import plain
from dibs.core import events
from dibs.core.limits import MINUTES_KEPT
from dibs.engine.metrics import Metrics
from dibs.engine.tally import Tally

# Requests of unknown callers and of callers who may not: counted, and told in the log, at most a line of each kind in
# LOG_EVERY_MS, however many there are. No line holds a token.

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


MINUTE_S = 60


class Minute(NamedTuple):
    at_s: int  # its beginning, in seconds since 1970
    requests: int
    acquires: int
    releases: int
    live: int


class MinuteSeries:
    """For one event loop. A timer compares running counts once a minute, so a request costs nothing more."""

    def __init__(self, tally: Tally, wall: Callable[[], int] = wall_ms) -> None:
        self._tally = tally
        self._wall = wall
        self._kept: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self._requests: Callable[[], int] = lambda: 0
        self._before = (0, 0, 0)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, requests: Callable[[], int]) -> None:
        """`requests` counts all requests up to now."""
        self._requests = requests
        self._before = self._counts()
        self._later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def since(self, age_s: int) -> list[Minute]:
        oldest_s = self._wall() // 1000 - age_s
        return [minute for minute in self._kept if minute.at_s >= oldest_s]

    def note(self) -> None:
        now = self._counts()
        requests, acquires, releases = (max(0, new - old) for new, old in zip(now, self._before, strict=True))
        begun_s = self._wall() // 1000 - MINUTE_S // 2  # a timer may come a little early or late
        begun_s -= begun_s % MINUTE_S
        self._kept.append(Minute(begun_s, requests, acquires, releases, self._tally.live))
        self._before = now

    def _counts(self) -> tuple[int, int, int]:
        kinds = self._tally.kinds
        return self._requests(), kinds[events.ACQUIRED], kinds[events.RELEASED]

    def _later(self) -> None:
        wait_s = max(1.0, MINUTE_S - self._wall() / 1000 % MINUTE_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self.note()
        self._later()
