"""What one server saw in each of the last minutes: requests, new leases, releases, and how many leases there were."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from dibs.base.clock import wall_ms
from dibs.core import events
from dibs.core.limits import MINUTES_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.engine.tally import Tally

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
        """The whole minutes that began in the last so many seconds."""
        oldest_s = self._wall() // 1000 - age_s
        return [minute for minute in self._kept if minute.at_s >= oldest_s]

    def note(self) -> None:
        """A minute is over."""
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
